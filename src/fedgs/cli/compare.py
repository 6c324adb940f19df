"""``fedgs compare``: several runs in one table and one picture."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from fedgs.settings import Settings

WIDE, NUMBERS, SHORTEST_NAME = 100, 52, 10
"""Columns of a wide terminal, those the table's numbers take, and the least that is left for the names of runs."""


def compare(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN...", help="Folders of runs.")],
    out: Annotated[Path, typer.Option(help="The picture to write.")] = Path("runs/comparison.png"),
) -> None:
    """Lay runs over each other: accuracy and loss, simulated time and bytes, one picture."""
    compare_folders(runs, out)


def compare_folders(folders: Sequence[Path], picture: Path) -> None:
    """Print the table of these runs and draw them into one picture."""
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table

    from fedgs.cli.compare_clock import print_clocks
    from fedgs.cli.run_display import shown_score
    from fedgs.errors import OutputError
    from fedgs.files import make_folder
    from fedgs.report.run_figures import OF_ROUNDS
    from fedgs.simulation.compare import compare as compare_histories
    from fedgs.simulation.load import load_history

    histories = [load_history(folder) for folder in folders]
    for folder, history in zip(folders, histories, strict=True):
        read_lines(folder, history.score)  # each line holds what tables and pictures are made of
    names = _names(folders)
    comparison = compare_histories(*histories, names=names)
    score, rows = comparison.score, comparison.rows
    settings = [history.settings for history in histories]
    targets = {row["target"] for row in rows}
    target_of_all = targets.pop() if len(targets) == 1 else None
    to_target = "to target" if target_of_all is None else f"to {shown_score(score, target_of_all, 0)}"
    any_flat = any(wanted.algorithm.flat for wanted in settings)
    methods = [_method(wanted, any_flat) for wanted in settings]
    console = Console()
    longest = max(console.width - NUMBERS - max(map(len, (*methods, "baseline"))), SHORTEST_NAME)
    notes = {f"diverg.: {OF_ROUNDS}": None} if any_flat else {}
    divergence = "divergence_of_round" if any_flat else "divergence"
    # In 80 columns one space between two of them has to do.
    table = Table(box=SIMPLE_HEAD, padding=(0, int(console.width >= WIDE), 0, 0), show_edge=False)
    method_title = "baseline" if any_flat else "solver"
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
            *(shown_score(score, row[key], 2) for key in ("final", "best", "last_10")),
            f"{row['loss']:.4f}",
            f"{reached} ({shown_score(score, row['target'], 0)})"
            if target_of_all is None and row["target"] is not None
            else reached,
            f"{row[divergence]:.4f}" if row[divergence] is not None else "–",
        )
    console.print(table)
    for note in notes:
        console.print(note, highlight=False, style="dim")
    clocks = [[dict(line) for line in history.clock] or None for history in histories]
    short = "target" if target_of_all is None else to_target
    print_clocks(console, names, settings, clocks, [row["target_round"] for row in rows], short)
    make_folder(picture.parent)
    try:
        comparison.plot(picture)
    except OutputError as error:
        raise OutputError(f"{error}; choose another with --out") from None
    except ValueError as error:
        raise OutputError(f"{picture}: cannot be drawn ({error}); give a name that ends in .png") from None
    typer.echo(f"picture: {picture}")


def read_lines(folder: Path, score: str = "accuracy") -> list[dict[str, Any]]:
    """Return a run's metrics, each line of which holds what tables and pictures are made of."""
    from fedgs.errors import InputFileError
    from fedgs.simulation.folder import METRICS, read_metrics

    lines = read_metrics(folder)
    for number, line in enumerate(lines, start=1):
        if not _is_round(line, score):
            raise InputFileError(
                f"{folder / METRICS}: line {number} is not that of a round; repeat the run, or take the line out"
            )
    return lines


def _is_round(line: Any, score: str) -> bool:
    if not isinstance(line, dict) or not isinstance(line.get("round"), int):
        return False
    needed = [line[score], line.get("loss")] if line.get(score) is not None else []
    wanted = ("divergence", "divergence_of_round", "train_loss")
    maybe = [line[key] for key in wanted if line.get(key) is not None]
    return all(isinstance(value, int | float) for value in (*needed, *maybe))


def _method(settings: "Settings", any_flat: bool) -> str:
    """Return what tells the ways of training apart: the solver among runs of FedGS, the baseline among others."""
    if settings.algorithm.flat:
        return settings.algorithm.name
    return f"fedgs {settings.selection.solver}" if any_flat else settings.selection.solver


def tail(name: str, longest: int) -> str:
    """Return the end of a long name, where the names of runs beside each other differ."""
    return name if len(name) <= longest else "…" + name[1 - longest :]


def _names(folders: Sequence[Path]) -> list[str]:
    """Return short names that tell the runs apart."""
    short = [folder.resolve().name for folder in folders]
    return short if len(set(short)) == len(short) else [str(folder) for folder in folders]
