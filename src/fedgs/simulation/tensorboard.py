"""A run as TensorBoard events (extra ``fedgs[tensorboard]``)."""

from pathlib import Path
from typing import Any

from fedgs.algorithms.run_state import RunState
from fedgs.errors import MissingDependencyError
from fedgs.simulation.callbacks import Callback, Run

SCALARS = ("loss", "train_loss", "divergence", "learning_rate", "seconds")


class TensorBoard(Callback):
    """Writes one event a number and round into a folder."""

    def __init__(self, folder: str | Path) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError:
            raise MissingDependencyError(
                "tensorboard=true needs the library of that name; install it with: pip install 'fedgs[tensorboard]'"
            ) from None
        self._make = SummaryWriter
        self._folder = Path(folder)
        self._writer: Any = None
        self._score = "accuracy"
        self._metrics: tuple[str, ...] = ("accuracy",)

    def on_begin(self, run: Run) -> None:
        """Open the events; what a run that was killed wrote beyond its checkpoint is not shown."""
        state = run.state
        self._score, self._metrics = run.score, tuple(run.simulator.task.metrics)
        self._writer = self._make(str(self._folder), purge_step=state.round + 1 if state.round else None)
        if state.round == 0:
            self._write(state.round, state.metrics[-1])

    def on_round(self, state: RunState, metrics: dict[str, Any]) -> None:
        """Write a round's numbers."""
        self._write(state.round, metrics)

    def _write(self, number: int, line: dict[str, Any]) -> None:
        for name in (*self._metrics, *SCALARS):
            if line.get(name) is not None:
                self._writer.add_scalar(name, line[name], number)
        for name, value in line.get("percentiles", {}).items():
            if value is not None:
                self._writer.add_scalar(f"{self._score} of devices/{name}th percentile", value, number)

    def on_stop(self, error: BaseException | None) -> None:
        """Close the events."""
        if self._writer is not None:
            self._writer.close()
