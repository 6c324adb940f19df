"""The progress of a reproduction on stderr: one line that moves on a terminal, else a line for every job that is done.

     42% 0:12:10 ━━━━╸━━━━━ left 0:16:37 10/23 Table II: FedAvg, seed 0

    fedgs: 10 of 23: Table II: FedAvg, seed 0, 72.1 s

Percentage and times go by jobs and what is done of the one at work; the moving line fits 80 columns, and narrower
ones without its bar.
"""

import time
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import BarColumn, ProgressColumn, TaskProgressColumn, TextColumn, TimeElapsedColumn
from rich.progress import Progress as Bar
from rich.table import Column

from reproduction.experiments.jobs import Job, Progress, Result

if TYPE_CHECKING:
    from collections.abc import Sequence

BARS = {110: 24, 78: 10}
"""Columns of a terminal from which there is room for a bar, and how long it is."""


class JobsDisplay(Progress):
    """A line on stderr that moves while it is a terminal; else one a job, for whoever reads the log of a long job."""

    def __init__(self, console: Console | None = None) -> None:
        self._console = console or Console(stderr=True)
        bar = next((length for width, length in BARS.items() if self._console.width >= width), 0)
        columns: list[ProgressColumn] = [
            TaskProgressColumn(table_column=Column(no_wrap=True)),
            TimeElapsedColumn(table_column=Column(no_wrap=True)),
            *([BarColumn(bar_width=bar)] if bar else []),
            TextColumn("{task.description}", markup=False, table_column=Column(no_wrap=True)),
        ]
        taken = len("100% 0:00:00 ") + (bar + 1 if bar else 0)
        self._room = max(self._console.width - taken, 10)
        self._bar = Bar(*columns, console=self._console, transient=True, disable=not self._console.is_terminal)

    def begin(self, jobs: "Sequence[Job]", done: int) -> None:
        """Show the line."""
        self._total, self._done, self._began, self._first = len(jobs), done, time.perf_counter(), done
        self._task = self._bar.add_task("…", total=max(len(jobs), 1), completed=done)
        if self._console.is_terminal:
            self._bar.start()

    def job(self, job: Job) -> None:
        """Name the job that begins."""
        self._title = job.title
        self._show(0.0)

    def share(self, share: float) -> None:
        """Move on."""
        completed = self._bar.tasks[self._task].completed + share
        self._show(min(completed - self._done, 1.0))

    def _show(self, share: float) -> None:
        completed = self._done + share
        passed = time.perf_counter() - self._began
        gained = completed - self._first
        left = f"left {_clock(passed / gained * (self._total - completed))} " if gained > 0.02 else ""
        text = f"{left}{self._done + 1}/{self._total} {self._title}"
        cut = text if len(text) <= self._room else text[: self._room - 1] + "…"
        self._bar.update(self._task, completed=completed, description=cut)

    def end(self, job: Job, result: Result) -> None:
        """Count it."""
        self._done += 1
        self._bar.update(self._task, completed=self._done)
        if not self._console.is_terminal:
            self._say(f"fedgs: {self._done} of {self._total}: {job.title}, {result['seconds']:.1f} s")
        if result.get("failed"):
            self._say(f"fedgs: note: {job.title} diverged: {result['failed']}")

    def note(self, job: Job, text: str) -> None:
        """Say it."""
        self._say(f"fedgs: note: {job.title}: {text}")

    def _say(self, line: str) -> None:
        self._console.print(line, markup=False, highlight=False, soft_wrap=True)

    def close(self) -> None:
        """Take the line away."""
        if self._console.is_terminal:
            self._bar.stop()


def _clock(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02d}:{rest:02d}"
