"""The live display of a run: round, iterations a second, accuracy, divergence, time left. Silent without a terminal."""

import time
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from fedgs.simulation.watch import Watcher

if TYPE_CHECKING:
    from fedgs.config import Settings
    from fedgs.simulation.simulator import Timing
    from fedgs.simulation.state import RunState


class RunDisplay(Watcher):
    """A bar on stderr while it is a terminal."""

    def __init__(self, name: str, settings: "Settings") -> None:
        self._name, self._rounds, self._iterations = name, settings.training.rounds, settings.training.iterations
        self._console = Console(stderr=True)
        self._progress = Progress(
            TextColumn("[bold]{task.description}"),
            BarColumn(bar_width=24),
            TaskProgressColumn(),
            TextColumn("{task.fields[facts]}"),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(),
            console=self._console,
            transient=True,
            disable=not self._console.is_terminal,
        )
        self._accuracy = "–"

    def begin(self, state: "RunState") -> None:
        """Show the bar."""
        total = self._rounds * self._iterations
        self._task = self._progress.add_task(
            self._name, total=total, completed=state.round * self._iterations, facts="the first round …"
        )
        self._progress.start()
        self._began, self._done = time.perf_counter(), 0

    def tick(self, iterations: float) -> None:
        """Move the bar."""
        self._progress.advance(self._task, iterations)

    def round(self, state: "RunState", timing: "Timing") -> None:
        """Show what the round came to."""
        line = state.metrics[-1]
        self._done += self._iterations
        if "accuracy" in line:
            self._accuracy = f"{line['accuracy']:.2%}"
        divergence = line.get("divergence")
        speed = self._done / max(time.perf_counter() - self._began, 1e-9)
        facts = f"round {state.round}/{self._rounds}  {speed:.1f} it/s  accuracy {self._accuracy}" + (
            "" if divergence is None else f"  divergence {divergence:.4f}"
        )
        self._progress.update(self._task, completed=state.round * self._iterations, facts=facts)

    def note(self, line: str) -> None:
        """Print a line above the bar."""
        self._console.print(f"fedgs: note: {line}", markup=False, highlight=False, soft_wrap=True)

    def end(self) -> None:
        """Take the bar away."""
        self._progress.stop()
