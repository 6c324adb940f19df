"""Callbacks of a run: progress displays, files, and your own; trackers are in :mod:`fedgs.simulation.trackers`.

    class Stop(fedgs.Callback):
        def on_round(self, state, metrics):
            return metrics["accuracy"] > 0.9        # True ends the run

A callback may define any of the methods below; any object with one of them is a callback.
"""

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedgs.algorithms.run_state import RunState
from fedgs.errors import ConfigError
from fedgs.settings import Settings

if TYPE_CHECKING:
    from fedgs.simulation.history import History
    from fedgs.simulation.run import Run


class Callback:
    """A callback that does nothing; override the hooks you need.

    Examples:
        >>> import fedgs, numpy as np, torch
        >>> x, y = np.random.rand(200, 4), np.arange(200) % 3
        >>> federation = fedgs.Federation.from_arrays(x, y, devices=np.arange(200) % 10, factories=2)
        >>> task = fedgs.classification(lambda: torch.nn.Linear(4, 3))
        >>> class Print(fedgs.Callback):
        ...     def on_round(self, state, metrics):
        ...         print(state.round, metrics["accuracy"] > 0)
        >>> history = fedgs.run(task, federation, rounds=2, pick=2, callbacks=[Print()])
        1 True
        2 True
    """

    def on_begin(self, run: "Run") -> None:
        """Called when the run begins or resumes."""

    def on_tick(self, iterations: float) -> None:
        """Called with the number of iterations (baselines: rounds) since the last call, from several threads."""

    def on_round(self, state: RunState, metrics: dict[str, Any]) -> bool | None:
        """Called after each round with its metrics and seconds; return True to end the run."""

    def on_note(self, line: str) -> None:
        """Called with a message for the user."""

    def on_end(self, history: "History") -> None:
        """Called when the run is finished, with its history."""

    def on_stop(self, error: BaseException | None) -> None:
        """Called last in every case; ``error`` is None unless the run failed."""

    def on_pretraining(self, settings: Settings, folder: Path | None) -> "Callback | None":
        """Called before a pre-training run; return the callback of that run."""
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
