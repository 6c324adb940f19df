"""Those who look on while a run goes its way: progress bars, TensorBoard, a benchmark's stop-watch."""

from fedgs.algorithms.run_state import RunState
from fedgs.settings import Settings
from fedgs.simulation.simulator import Timing


class Watcher:
    """Is told what happens, and by itself does nothing with it."""

    def pretraining(self, settings: Settings) -> "Watcher | None":
        """Another run comes before this one; return who looks on there."""
        return None

    def begin(self, state: RunState) -> None:
        """The run begins, or goes on, from this state."""

    def tick(self, iterations: float) -> None:
        """So many iterations (flat approaches: rounds) were done since the last call; called from several threads."""

    def round(self, state: RunState, timing: Timing) -> None:
        """A round is done."""

    def note(self, line: str) -> None:
        """Something worth a line to the user."""

    def end(self) -> None:
        """The run is over, well or not."""
