"""``fedgs settings``: every key with its default and its meaning."""

from typing import Annotated

import typer


def settings(
    pattern: Annotated[
        str | None, typer.Argument(help="Part of a key or of its meaning (rate), or a pattern (training.*).")
    ] = None,
) -> None:
    """List all settings (for a TOML file or --set): key, default, meaning."""
    from fnmatch import fnmatchcase

    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    from fedgs.errors import ConfigError
    from fedgs.settings import PlannerSettings
    from fedgs.settings_list import settings_rows

    rows, wanted = list(settings_rows(PlannerSettings)), (pattern or "").lower()
    found = [row for row in rows if wanted in f"{row.path} {row.meaning}".lower() or fnmatchcase(row.path, wanted)]
    if not found:
        raise ConfigError(f"{pattern}: no setting has this in its key or its meaning; fedgs settings lists all")
    table = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0), show_edge=False)
    table.add_column("key", no_wrap=True)
    table.add_column("default", overflow="fold", max_width=18)
    table.add_column("meaning", ratio=1)
    for row in found:
        values = row.values.replace("`", "")
        table.add_row(
            row.path, escape(row.default), escape(row.meaning) + (f" [dim]({escape(values)})[/]" if values else "")
        )
    Console().print(table)
