"""Callbacks of a run: progress displays, files, TensorBoard, and your own.

    class Stop(fedgs.Callback):
        def on_round(self, state, metrics):
            return metrics["accuracy"] > 0.9        # True ends the run

A callback may define any of the methods below; a plain object with some of them will do.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedgs.algorithms.run_state import RunState
from fedgs.settings import Settings

if TYPE_CHECKING:
    from fedgs.simulation.history import History
    from fedgs.simulation.simulator import Simulator


@dataclass(frozen=True)
class Run:
    """The run that a callback belongs to."""

    settings: Settings
    simulator: "Simulator"
    state: RunState
    """From which it begins, or goes on."""
    folder: Path | None
    identity: str
    """What its checkpoints are known by."""
    resumed: bool
    timings: list[dict[str, Any]] = field(default_factory=list)
    """What each round took, one row a round; grows as the run goes on."""

    @property
    def score(self) -> str:
        """The metric that counts."""
        return self.simulator.task.score


class Callback:
    """A callback that does nothing; override the hooks you need."""

    def on_begin(self, run: Run) -> None:
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


class Callbacks:
    """All callbacks of a run, called one after the other."""

    def __init__(self, callbacks: Iterable[Any]) -> None:
        self._all = list(callbacks)

    def call(self, hook: str, *arguments: Any) -> list[Any]:
        """Call a hook of every callback that has it; return what they return."""
        return [getattr(one, hook)(*arguments) for one in self._all if callable(getattr(one, hook, None))]

    def note(self, line: str) -> None:
        """Give a line to all callbacks."""
        self.call("on_note", line)

    def tick(self, iterations: float) -> None:
        """Report iterations that were done."""
        self.call("on_tick", iterations)
