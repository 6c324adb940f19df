"""``fedgs compare``: several runs in one table and one picture."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from fedgs.settings import Settings

WIDE, NUMBERS, SHORTEST_NAME = 100, 52, 10
"""Columns of a wide terminal, those the table's numbers take, and the least that is left for the names of runs."""


def compare(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN...", help="Folders of runs.")],
    out: Annotated[Path, typer.Option(help="The picture to write.")] = Path("runs/comparison.png"),
) -> None:
    """Compare runs: accuracy and loss, simulated time and bytes, one picture."""
    compare_folders(runs, out)


def compare_folders(folders: Sequence[Path], picture: Path) -> None:
    """Print the table of these runs and draw them into one picture."""
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table

    from fedgs.cli.compare_clock import print_clocks
    from fedgs.errors import OutputError
    from fedgs.files import make_folder
    from fedgs.report.run_figures import OF_ROUNDS
    from fedgs.report.units import readable_score
    from fedgs.simulation.compare import compare as compare_histories
    from fedgs.simulation.history import load_history

    histories = [load_history(folder) for folder in folders]
    short = [folder.resolve().name for folder in folders]
    names = short if len(set(short)) == len(short) else [str(folder) for folder in folders]
    comparison = compare_histories(*histories, names=names)
    score, rows = comparison.score, comparison.rows
    settings = [history.settings for history in histories]
    targets = {row["target"] for row in rows}
    target_of_all = targets.pop() if len(targets) == 1 else None
    to_target = "to target" if target_of_all is None else f"to {readable_score(score, target_of_all, 0)}"
    any_baseline = any(wanted.algorithm.is_baseline for wanted in settings)
    methods = [_method(wanted, any_baseline) for wanted in settings]
    console = Console()
    longest = max(console.width - NUMBERS - max(map(len, (*methods, "baseline"))), SHORTEST_NAME)
    notes = {f"diverg.: {OF_ROUNDS}": None} if any_baseline else {}
    divergence = "divergence_of_round" if any_baseline else "divergence"
    # In 80 columns one space between two of them has to do.
    table = Table(box=SIMPLE_HEAD, padding=(0, int(console.width >= WIDE), 0, 0), show_edge=False)
    method_title = "baseline" if any_baseline else "solver"
    for column in ("run", method_title, "rounds", "final", "best", "last 10", "loss", to_target, "diverg."):
        text = column in ("run", method_title)
        table.add_column(column, justify="left" if text else "right", no_wrap=column != "run", overflow="fold")
    for row, method in zip(rows, methods, strict=True):
        if row["final"] is None:
            table.add_row(tail(row["run"], longest), method, "0")
            continue
        reached = "×" if row["target_round"] is None else str(row["target_round"])
        if row["target"] is None:
            reached = "–"
        if row["pretraining_rounds"]:
            reached += f"+{row['pretraining_rounds']}"
            notes[f"+{row['pretraining_rounds']}: rounds of pre-training"] = None
        table.add_row(
            tail(row["run"], longest),
            method,
            f"{row['rounds']}" + ("" if row["rounds"] == row["of_rounds"] else f" of {row['of_rounds']}"),
            *(readable_score(score, row[key], 2) for key in ("final", "best", "last_10")),
            f"{row['loss']:.4f}",
            f"{reached} ({readable_score(score, row['target'], 0)})"
            if target_of_all is None and row["target"] is not None
            else reached,
            f"{row[divergence]:.4f}" if row[divergence] is not None else "–",
        )
    console.print(table)
    for note in notes:
        console.print(note, highlight=False, style="dim")
    clocks = [[dict(line) for line in history.clock] or None for history in histories]
    title = "target" if target_of_all is None else to_target
    print_clocks(console, names, settings, clocks, [row["target_round"] for row in rows], title)
    make_folder(picture.parent)
    try:
        comparison.plot(picture)
    except OutputError as error:
        raise OutputError(f"{error}; choose another with --out") from None
    except ValueError as error:
        raise OutputError(f"{picture}: cannot be drawn ({error}); give a name that ends in .png") from None
    typer.echo(f"picture: {picture}")


def _method(settings: "Settings", any_baseline: bool) -> str:
    """Return what differs between runs: the solver where all are FedGS, else the algorithm."""
    if settings.algorithm.is_baseline:
        return settings.algorithm.name
    return f"fedgs {settings.selection.solver}" if any_baseline else settings.selection.solver


def tail(name: str, longest: int) -> str:
    """Return the end of a long name, where the names of compared runs differ."""
    return name if len(name) <= longest else "…" + name[1 - longest :]
