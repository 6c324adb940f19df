"""Callbacks: what happens beside a run as it goes. Progress displays, files, TensorBoard and your own are such.

    class Stop(fedgs.Callback):
        def on_round(self, state, metrics):
            return metrics["accuracy"] > 0.9        # True ends the run

A callback may define any of the methods below; a plain object with some of them will do.
"""

from collections.abc import Iterable
from dataclasses import dataclass
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

    @property
    def score(self) -> str:
        """The metric that counts."""
        return self.simulator.task.score


class Callback:
    """Is told what happens, and by itself does nothing with it."""

    def on_begin(self, run: Run) -> None:
        """The run begins, or goes on."""

    def on_tick(self, iterations: float) -> None:
        """So many iterations (baselines: rounds) were done since the last call; called from several threads."""

    def on_round(self, state: RunState, metrics: dict[str, Any]) -> bool | None:
        """A round is done; ``metrics`` is its line, with its seconds. True: the run ends here."""

    def on_note(self, line: str) -> None:
        """Something worth a line to the user."""

    def on_end(self, history: "History") -> None:
        """The run has come to its end."""

    def on_stop(self, error: BaseException | None) -> None:
        """The run is over, well (None) or not; called last, whatever happened."""

    def on_pretraining(self, settings: Settings, folder: Path | None) -> "Callback | None":
        """Another run comes before this one; return who looks on there."""
        return None


class Callbacks:
    """All callbacks of a run, told one after the other."""

    def __init__(self, callbacks: Iterable[Any]) -> None:
        self._all = list(callbacks)

    def tell(self, hook: str, *arguments: Any) -> list[Any]:
        """Call a hook of everybody who has it; what they return."""
        return [getattr(one, hook)(*arguments) for one in self._all if callable(getattr(one, hook, None))]

    def note(self, line: str) -> None:
        """Tell a line to everybody."""
        self.tell("on_note", line)

    def tick(self, iterations: float) -> None:
        """Tell that iterations were done."""
        self.tell("on_tick", iterations)

    def before(self, settings: Settings, folder: Path | None) -> "Callbacks":
        """Return who looks on at the pre-training."""
        found = (one.on_pretraining(settings, folder) for one in self._all if hasattr(one, "on_pretraining"))
        return Callbacks(one for one in found if one is not None)
