"""Callbacks of a run: progress displays, files, TensorBoard, and your own.

    class Stop(fedgs.Callback):
        def on_round(self, state, metrics):
            return metrics["accuracy"] > 0.9        # True ends the run

A callback may define any of the methods below; a plain object with some of them will do.
"""

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedgs.algorithms.run_state import RunState
from fedgs.errors import ConfigError, MissingDependencyError
from fedgs.settings import Settings

if TYPE_CHECKING:
    from fedgs.simulation.history import History
    from fedgs.simulation.run import Run

SCALARS = ("loss", "train_loss", "divergence", "learning_rate", "seconds")
"""What TensorBoard is given beside the task's metrics."""


class Callback:
    """A callback that does nothing; override the hooks you need."""

    def on_begin(self, run: "Run") -> None:
        """The run begins, or goes on."""

    def on_tick(self, iterations: float) -> None:
        """So many iterations (baselines: rounds) were done since the last call; called from several threads."""

    def on_round(self, state: RunState, metrics: dict[str, Any]) -> bool | None:
        """A round is done; ``metrics`` is its line, with its seconds. True: the run ends here."""

    def on_note(self, line: str) -> None:
        """Something worth a line to the user."""

    def on_end(self, history: "History") -> None:
        """The run is finished."""

    def on_stop(self, error: BaseException | None) -> None:
        """The run is over, well (None) or not; called last, whatever happened."""

    def on_pretraining(self, settings: Settings, folder: Path | None) -> "Callback | None":
        """Another run comes before this one; return its callback."""
        return None


def checked_callbacks(given: Iterable[Any]) -> list[Any]:
    """Return the callbacks; what has no hook is refused, because a run would never call it."""
    hooks = [name for name in vars(Callback) if name.startswith("on_")]
    if not isinstance(given, Iterable):
        raise ConfigError(f"callbacks must be a list, not a {type(given).__name__}")
    found = list(given)
    for one in found:
        if isinstance(one, type) or not any(callable(getattr(one, hook, None)) for hook in hooks):
            raise ConfigError(
                f"callbacks: {getattr(one, '__name__', type(one).__name__)!r} is no object with a hook "
                f"({', '.join(hooks)}); give an instance of a class derived from fedgs.Callback"
            )
    return found


class TensorBoard(Callback):
    """Writes one TensorBoard event a number and round into a folder (extra ``fedgs[tensorboard]``)."""

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

    def on_begin(self, run: "Run") -> None:
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
