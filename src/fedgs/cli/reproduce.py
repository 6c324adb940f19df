"""``fedgs reproduce``: the paper's figures and tables, and what goes beyond it, by one command each."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fedgs.experiments.parts import Part, Progress

EXPERIMENTS = {"selection-study": "does selection earn its keep: five policies on nine federations"}


def reproduce(
    what: Annotated[str, typer.Argument(help=", ".join(EXPERIMENTS) + ".", metavar="WHAT")],
    femnist: Annotated[
        Path | None, typer.Option(help="FEMNIST, in any of its forms; without it glyphs at a small size.")
    ] = None,
    rounds: Annotated[int | None, typer.Option(min=1, help="Rounds of every run (default: the experiment's).")] = None,
    seeds: Annotated[str, typer.Option(help="Seeds, separated by commas.")] = "0",
    device: Annotated[str, typer.Option(help="auto, cpu or cuda.")] = "auto",
    out: Annotated[Path, typer.Option(help="Folder of results; parts that are there are not run again.")] = Path(
        "results"
    ),
    stop_after: Annotated[
        float | None, typer.Option(min=0, help="Begin no part later than so many seconds from the start.")
    ] = None,
    overrides: Annotated[
        list[str] | None, typer.Option("--set", help="key.path=value for every run; repeatable.")
    ] = None,
) -> None:
    """Run an experiment part by part; write JSON, tables and pictures."""
    from fedgs.errors import ConfigError
    from fedgs.experiments.parts import run_parts
    from fedgs.experiments.reproduction import Reproduction
    from fedgs.simulation.simulator import pick_device

    if what not in EXPERIMENTS:
        raise ConfigError(f"reproduce {what}: there is no such experiment; choose one of {', '.join(EXPERIMENTS)}")
    reproduction = Reproduction(femnist, _numbers(seeds), rounds, overrides or [])
    parts = reproduction.study_parts()
    results = run_parts(parts, out, reproduction.federation, pick_device(device), _progress(), stop_after)
    typer.echo(f"{out}: {len(results)} of {len(parts)} parts")


def _numbers(text: str) -> list[int]:
    from fedgs.errors import ConfigError

    try:
        numbers = [int(part) for part in text.split(",")]
    except ValueError:
        numbers = [-1]
    if min(numbers) < 0 or len(set(numbers)) < len(numbers):
        raise ConfigError(f"--seeds {text}: give different whole numbers from 0 on, separated by commas, as in 0,1,2")
    return numbers


def _progress() -> "Progress":
    from rich.console import Console
    from rich.progress import BarColumn, TaskProgressColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
    from rich.progress import Progress as Bar

    from fedgs.experiments.parts import Progress

    console = Console(stderr=True)
    bar = Bar(
        TaskProgressColumn(), TimeElapsedColumn(), TimeRemainingColumn(), BarColumn(bar_width=20),
        TextColumn("{task.description}", markup=False), console=console, transient=True,
        disable=not console.is_terminal,
    )  # fmt: skip

    class Shown(Progress):
        def begin(self, parts: "Sequence[Part]", done: int) -> None:
            self._task = bar.add_task("…", total=len(parts), completed=done)
            bar.start()

        def part(self, part: "Part") -> None:
            self._completed = bar.tasks[self._task].completed
            bar.update(self._task, description=part.title)

        def tick(self, share: float) -> None:
            bar.advance(self._task, share)

        def end(self, part: "Part") -> None:
            bar.update(self._task, completed=self._completed + 1)
            if not console.is_terminal:
                typer.echo(f"fedgs: {part.title}", err=True)

    return Shown()
