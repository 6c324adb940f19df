"""``fedgs compare``: several runs in one table and one picture."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from fedgs.settings import Settings

WIDE, NUMBERS, SHORTEST_NAME = 100, 52, 10
"""Columns of a wide terminal, those the table's numbers take, and the least that is left for the names of runs."""
OF_ROUNDS = "of all samples of a round; with fedgs: of those of a factory"
"""What the divergence is where not all runs have super nodes."""


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
    from fedgs.errors import OutputError
    from fedgs.files import make_folder
    from fedgs.report.run_figures import draw_comparison
    from fedgs.simulation.pretraining import pretraining_of
    from fedgs.simulation.runs import read_clock, read_settings

    settings = [read_settings(folder) for folder in folders]
    metrics = [read_lines(folder) for folder in folders]
    names = _names(folders)
    targets = {wanted.eval.target for wanted in settings}
    target_of_all = targets.pop() if len(targets) == 1 else None
    to_target = "to target" if target_of_all is None else f"to {target_of_all:.0%}"
    any_flat = any(wanted.algorithm.flat for wanted in settings)
    methods = [_method(wanted, any_flat) for wanted in settings]
    console = Console()
    longest = max(console.width - NUMBERS - max(map(len, (*methods, "approach"))), SHORTEST_NAME)
    notes = {f"diverg.: {OF_ROUNDS}": None} if any_flat else {}
    divergence = "divergence_of_round" if any_flat else "divergence"
    # In 80 columns one space between two of them has to do.
    table = Table(box=SIMPLE_HEAD, padding=(0, int(console.width >= WIDE), 0, 0), show_edge=False)
    method_title = "approach" if any_flat else "solver"
    for column in ("run", method_title, "rounds", "final", "best", "last 10", "loss", to_target, "diverg."):
        text = column in ("run", method_title)
        table.add_column(column, justify="left" if text else "right", no_wrap=column != "run", overflow="fold")
    for name, method, wanted, lines in zip(names, methods, settings, metrics, strict=True):
        tested = [line for line in lines if "accuracy" in line]
        if not tested:
            table.add_row(tail(name, longest), method, "0")
            continue
        target = wanted.eval.target
        reached = next((str(line["round"]) for line in tested if line["accuracy"] >= target), "×")
        before = pretraining_of(wanted)
        if before is not None:
            reached += f"+{before.training.rounds}"
            notes[f"+{before.training.rounds}: rounds of pre-training"] = None
        divergences = [line[divergence] for line in lines if line.get(divergence) is not None]
        last = [line["accuracy"] for line in tested[-10:]]
        table.add_row(
            tail(name, longest),
            method,
            f"{lines[-1]['round']}"
            + ("" if lines[-1]["round"] == wanted.training.rounds else " of " + str(wanted.training.rounds)),
            f"{tested[-1]['accuracy']:.2%}",
            f"{max(line['accuracy'] for line in tested):.2%}",
            f"{sum(last) / len(last):.2%}",
            f"{tested[-1]['loss']:.4f}",
            f"{reached} ({target:.0%})" if target_of_all is None else reached,
            f"{sum(divergences) / len(divergences):.4f}" if divergences else "–",
        )
    console.print(table)
    for note in notes:
        console.print(note, highlight=False, style="dim")
    clocks = [read_clock(folder) for folder in folders]
    print_clocks(console, names, settings, clocks, [_reached(*run) for run in zip(settings, metrics, strict=True)])
    make_folder(picture.parent)
    try:
        runs, times = dict(zip(names, metrics, strict=True)), dict(zip(names, clocks, strict=True))
        draw_comparison(picture, runs, target_of_all, divergence, OF_ROUNDS * any_flat, times)
    except OutputError as error:
        raise OutputError(f"{error}; choose another with --out") from None
    except ValueError as error:
        raise OutputError(f"{picture}: cannot be drawn ({error}); give a name that ends in .png") from None
    typer.echo(f"picture: {picture}")


def read_lines(folder: Path) -> list[dict[str, Any]]:
    """Return a run's metrics, each line of which holds what tables and pictures are made of."""
    from fedgs.errors import InputFileError
    from fedgs.simulation.runs import METRICS, read_metrics

    lines = read_metrics(folder)
    for number, line in enumerate(lines, start=1):
        if not _is_round(line):
            raise InputFileError(
                f"{folder / METRICS}: line {number} is not that of a round; repeat the run, or take the line out"
            )
    return lines


def _is_round(line: Any) -> bool:
    if not isinstance(line, dict) or not isinstance(line.get("round"), int):
        return False
    needed = [line["accuracy"], line.get("loss")] if "accuracy" in line else []
    wanted = ("divergence", "divergence_of_round", "train_loss")
    maybe = [line[key] for key in wanted if line.get(key) is not None]
    return all(isinstance(value, int | float) for value in (*needed, *maybe))


def _reached(settings: "Settings", lines: Sequence[dict[str, Any]]) -> int | None:
    """Return the first tested round at the target."""
    return next((line["round"] for line in lines if line.get("accuracy", 0.0) >= settings.eval.target), None)


def _method(settings: "Settings", any_flat: bool) -> str:
    """Return what tells the ways of training apart: the solver among runs of FedGS, the approach among others."""
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
