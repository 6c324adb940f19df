"""The display of a run on stderr: percentage, times, round, accuracy, divergence.

     42% 0:01:10 left 0:01:37 quick 42/100  acc 81.2%  div 0.036

What matters most stands first, and in 80 columns nothing of it is cut; wider terminals also show a bar and the speed.
Without a terminal the same line is printed every ten seconds.
"""

import os
import time
from collections.abc import Callable
from datetime import timedelta
from threading import Event, Thread
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.progress import (
    BarColumn,
    Progress,
    ProgressColumn,
    TaskProgressColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.table import Column

from fedgs.report.units import readable_score
from fedgs.simulation.callbacks import Callback

if TYPE_CHECKING:
    from pathlib import Path

    from fedgs.algorithms.run_state import RunState
    from fedgs.settings import Settings
    from fedgs.simulation.run import Run

WIDE = 100
"""Columns from which there is room for a bar and the speed."""
LONGEST_NAME, BAR, TIMES = 16, 24, len("100% 0:00:00 left 0:00:00 ")


class ProgressLines:
    """Prints every few seconds what a command is doing; on a terminal only while nothing else shows it."""

    def __init__(self, every: float, console: Console | None = None) -> None:
        self.console, self._every = console or Console(stderr=True), every
        self.words: Callable[[], str] | None = lambda: "reads the data, builds the network, tests it once …"
        """What to print; None: nothing."""
        self._ended = Event()

    def __enter__(self) -> "ProgressLines":
        if os.environ.get("RANK", "0") == "0":  # of torchrun's processes one speaks
            Thread(target=self._print, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()

    def _print(self) -> None:
        while not self._ended.wait(self._every):
            if self.words is not None:
                self.console.print(f"fedgs: {self.words()}", markup=False, highlight=False, soft_wrap=True)


class RunDisplay(Callback):
    """A live line on a terminal; elsewhere it has the lines printed."""

    def __init__(
        self, name: str, settings: "Settings", console: Console | None = None, lines: ProgressLines | None = None
    ) -> None:
        self._baseline = settings.algorithm.is_baseline
        self._rounds = settings.training.rounds
        self._iterations = 1 if self._baseline else settings.training.iterations
        self._name = _cut(name, LONGEST_NAME)
        self._console = console or Console(stderr=True)
        self._lines = lines or ProgressLines(0.0, self._console)
        self._wide = self._console.width >= WIDE
        columns: list[ProgressColumn] = [
            TaskProgressColumn(table_column=Column(no_wrap=True)),
            TimeElapsedColumn(table_column=Column(no_wrap=True)),
            TextColumn("left", table_column=Column(no_wrap=True)),
            TimeRemainingColumn(table_column=Column(no_wrap=True)),
            TextColumn("{task.description}", style="bold", markup=False, table_column=Column(no_wrap=True)),
            *([BarColumn(bar_width=BAR)] if self._wide else []),
            TextColumn("{task.fields[facts]}", markup=False, table_column=Column(no_wrap=True)),
        ]
        self._progress = Progress(
            *columns, console=self._console, transient=True, disable=not self._console.is_terminal
        )
        self._score, self._shown = "accuracy", "–"

    def on_pretraining(self, settings: "Settings", folder: "Path | None") -> "RunDisplay":
        """Show a line of its own."""
        return RunDisplay("pre-training", settings, self._console, self._lines)

    def on_begin(self, run: "Run") -> None:
        """Show the line."""
        state, self._score = run.state, run.score
        total = self._rounds * self._iterations
        done = state.round * self._iterations
        facts = self._fitting("the first round …")
        self._lines.words = None if self._console.is_terminal else self._line
        self._task = self._progress.add_task(self._name, total=total, completed=done, facts=facts)
        self._progress.start()
        self._began, self._done = time.perf_counter(), 0

    def on_tick(self, iterations: float) -> None:
        """Move on."""
        self._progress.advance(self._task, iterations)

    def on_round(self, state: "RunState", metrics: dict[str, Any]) -> None:
        """Show what the round came to."""
        line = metrics
        self._done += self._iterations
        if line.get(self._score) is not None:
            self._shown = readable_score(self._score, line[self._score])
        facts = [
            f"{state.round}/{self._rounds}",
            f"{'acc' if self._score == 'accuracy' else self._score} {self._shown}",
        ]
        if line.get("divergence") is not None:
            facts.append(f"div {line['divergence']:.3f}")
        if self._wide:
            seconds = max(time.perf_counter() - self._began, 1e-9)
            facts.append(
                f"{seconds / self._done:.1f} s/round" if self._baseline else f"{self._done / seconds:.1f} it/s"
            )
        shown = self._fitting("  ".join(facts))
        self._progress.update(self._task, completed=state.round * self._iterations, facts=shown)

    def _fitting(self, facts: str) -> str:
        """Cut what would make the table shorten its other columns too."""
        taken = TIMES + len(self._name) + 1 + (BAR + 1 if self._wide else 0)
        return _cut(facts, self._console.width - taken)

    def on_note(self, line: str) -> None:
        """Print a line above."""
        self._console.print(f"fedgs: note: {line}", markup=False, highlight=False, soft_wrap=True)

    def on_stop(self, error: BaseException | None) -> None:
        """Take the line away."""
        self._progress.stop()
        self._lines.words = lambda: "writes results and pictures …"

    def _line(self) -> str:
        task = self._progress.tasks[0]
        done, left = (str(timedelta(seconds=int(some))) if some is not None else "-:--:--"
                      for some in (task.elapsed, task.time_remaining))  # fmt: skip
        return f"{task.percentage:3.0f}% {done} left {left} {self._name} {task.fields['facts']}"


def _cut(text: str, width: int) -> str:
    return text if len(text) <= width else text[: max(width - 1, 0)] + "…"
