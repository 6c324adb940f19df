"""``fedgs baselines``: what algorithm.name can be, and the options of each."""

from typing import Any


def baselines() -> None:
    """List the baselines FedGS is compared with, and their options."""
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table

    from fedgs.algorithms import BASELINES

    table = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0), show_edge=False)
    table.add_column("algorithm.name", no_wrap=True)
    table.add_column("what it does", ratio=2)
    table.add_column("algorithm.options", ratio=3)
    table.add_row("fedgs", "devices selected in factories, the default", "")
    for name, entry in BASELINES.items():
        table.add_row(name, entry.summary, " ".join(_shown(*option) for option in entry.options.items()))
    console = Console()
    console.print(table)
    console.print(
        "fedgs run --set algorithm.name=fedprox --set algorithm.options.mu=0.5; docs/reference/baselines.md",
        highlight=False, markup=False, soft_wrap=True,
    )  # fmt: skip


def _shown(option: str, default: Any) -> str:
    if default is None:
        return option
    number = isinstance(default, float) and not isinstance(default, bool)
    return f"{option}={default:.3g}" if number else f"{option}={str(default).lower()}"
