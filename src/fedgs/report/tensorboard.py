"""A run as TensorBoard events (extra ``fedgs[tensorboard]``)."""

from pathlib import Path

from fedgs.algorithms.run_state import RunState
from fedgs.errors import MissingDependencyError
from fedgs.simulation.callbacks import Watcher
from fedgs.simulation.simulator import Timing

SCALARS = ("accuracy", "loss", "train_loss", "divergence", "learning_rate")


class TensorBoardWatcher(Watcher):
    """Writes one event a number and round into a folder."""

    def __init__(self, folder: Path) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError:
            raise MissingDependencyError(
                "tensorboard=true needs the library of that name; install it with: pip install 'fedgs[tensorboard]'"
            ) from None
        self._make = SummaryWriter
        self._folder = folder

    def begin(self, state: RunState) -> None:
        """Open the events; what a run that was killed wrote beyond its checkpoint is not shown."""
        self._writer = self._make(str(self._folder), purge_step=state.round + 1 if state.round else None)
        if state.round == 0:
            self._write(state)

    def round(self, state: RunState, timing: Timing) -> None:
        """Write a round's numbers."""
        self._write(state)
        self._writer.add_scalar("seconds", timing.total, state.round)

    def _write(self, state: RunState) -> None:
        line = state.metrics[-1]
        for name in SCALARS:
            if line.get(name) is not None:
                self._writer.add_scalar(name, line[name], state.round)
        for name, value in line.get("percentiles", {}).items():
            self._writer.add_scalar(f"accuracy of devices/{name}th percentile", value, state.round)

    def end(self) -> None:
        """Close the events."""
        self._writer.close()
