"""What an engine is: it trains one round. Weights in, stations' weights out.

An engine knows the network, the images and the optimiser; it knows nothing of selection, of the top server or of
files. Every engine must agree with :class:`fedgs.training.per_device.PerDeviceEngine` within float tolerance.
A faster one is a class with these two methods and a line in :func:`make_engine`.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray
from torch import Tensor, nn

from fedgs.errors import ConfigError
from fedgs.settings import TrainingSettings
from fedgs.training.round_plan import RoundPlan
from fedgs.training.store import ImageStore

Tick = Callable[[float], None]
"""Called now and then with the number of iterations (of all factories) done since the last call."""


@dataclass(frozen=True)
class RoundResult:
    """What a round of training gives."""

    stations: Tensor
    """(factories, weights) each station's model after its T iterations; on the engine's device."""
    losses: NDArray[np.float64]
    """(iterations, factories) mean loss over the super node's samples before the step; NaN where there was nobody."""
    momentum: Tensor | None
    """(factories, weights) the stations' velocities, when there is momentum."""


class Engine(Protocol):
    """Trains one round."""

    def train_round(
        self,
        weights: Tensor,
        plan: RoundPlan,
        rates: NDArray[np.float64],
        momentum: Tensor | None = None,
        tick: Tick | None = None,
    ) -> RoundResult:
        """Train every factory of ``plan`` from the global ``weights`` (flat), with one learning rate an iteration.

        ``momentum`` is that of the round before; None begins at rest.
        """
        ...

    def close(self) -> None:
        """Give back threads and memory."""
        ...


def make_engine(model: nn.Module, store: ImageStore, settings: TrainingSettings) -> Engine:
    """Return the engine the settings ask for; ``auto`` is the fastest there is for the device."""
    from fedgs.training.fused import FusedEngine
    from fedgs.training.graph import GraphEngine
    from fedgs.training.per_device import PerDeviceEngine
    from fedgs.training.stacked import StackedEngine, fits

    on_gpu = store.device.type == "cuda"
    name: str = settings.engine
    if name == "auto":
        name = ("stacked" if fits(model, store) else "graph") if on_gpu else "fused"
    if name == "per-device":
        return PerDeviceEngine(model, store, settings)
    if name == "fused":
        return FusedEngine(model, store, settings)
    if name == "stacked":
        if not fits(model, store):
            raise ConfigError("training.engine='stacked' is for the paper's CNN on grey images; use 'auto'")
        return StackedEngine(model, store, settings)
    if not on_gpu:
        raise ConfigError("training.engine='graph' is a CUDA graph and needs --device cuda; use 'auto' or 'fused'")
    return GraphEngine(model, store, settings)
