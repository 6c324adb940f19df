"""What a method is: it plays the training of one round. FedGS is one, the flat approaches together another.

The simulator has what all methods share: planning ahead, testing, averaging for tests, the lines of metrics.
"""

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from fedgs.algorithms.run_state import RunState
from fedgs.network.clock import RoundCost, VirtualClock
from fedgs.simulation.evaluate import Forward
from fedgs.simulation.prefetch import Plan
from fedgs.training.engine import Tick
from fedgs.training.layout import Layout


@dataclass(frozen=True)
class Outcome:
    """What a round's training gives."""

    weights: Tensor
    """The next global model, flat."""
    server: dict[str, Any]
    """What the server remembers."""
    line: dict[str, Any]
    """What the round's line of metrics says of the training."""
    rate: float
    """The last learning rate."""
    momentum: Tensor | None = None
    """Velocities of this process's stations, where there are any."""


class Method(Protocol):
    """Plays rounds."""

    layout: Layout
    server_words: str
    """How an error names the server's side and the setting to change."""

    def plan(self) -> Plan[Any]:
        """Return the plan of a new run."""
        ...

    def check(self, begun: bool) -> None:
        """Find what would stop a run that is still to come; ``begun``: it goes on from a checkpoint."""
        ...

    def first_weights(self, pretrained: Tensor | None) -> Tensor:
        """Return the flat weights the run starts from, on the device; ``pretrained`` is a plain network, flat."""
        ...

    def begin(self, weights: Tensor) -> dict[str, Any]:
        """Return what the server remembers before the first round."""
        ...

    def play(self, state: RunState, plan: Any, tick: Tick | None) -> Outcome:
        """Train one round."""
        ...

    def measure_step(self) -> float:
        """Return the seconds of one local step, measured here and now."""
        ...

    def cost(self, clock: VirtualClock, plan: Any) -> RoundCost:
        """Return what a round of this plan would take and send in a real park."""
        ...

    def forwards(self, weights: Tensor, server: dict[str, Any]) -> dict[str, Forward]:
        """Return the ways to test a model: that which counts has the name "", others are logged beside it."""
        ...

    def close(self) -> None:
        """Give back threads and memory."""
        ...


def mean(values: NDArray[np.float64]) -> float | None:
    """Return the mean, None of nothing."""
    return float(values.mean()) if len(values) else None
