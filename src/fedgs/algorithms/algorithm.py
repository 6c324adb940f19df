"""What an algorithm is, and what runs its rounds.

An algorithm is a small frozen object with its options: ``FedGS(objective=FedProx(mu=0.1))``, ``FedProx(mu=0.1)``. Bound
to a context (settings, task, samples, processes) it gives what runs its rounds, each a function from one state to the
next. The simulator has what all algorithms share: plans, tests, averaging for tests, the lines of metrics, the clock.
"""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedgs.algorithms.run_state import RunState
from fedgs.settings import Settings
from fedgs.training.engine import Note, Tick
from fedgs.training.layout import Layout
from fedgs.training.objective import Weights
from fedgs.training.store import SampleStore

if TYPE_CHECKING:
    from collections.abc import Callable

    from fedgs.simulation.process_group import ProcessGroup
    from fedgs.tasks.bind import BoundTask

    Forward = Callable[[NDArray[np.int64], NDArray[np.int64]], Any]
    """From samples and the devices they belong to, to outputs (samples, …)."""


@dataclass(frozen=True)
class Context:
    """What an algorithm is given: the settings, the task and its samples, and the processes it shares the work with."""

    settings: Settings
    task: "BoundTask"
    store: SampleStore
    group: "ProcessGroup"
    note: Note = lambda line: None


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
    stations: dict[str, Tensor] = field(default_factory=dict)
    """What the optimisers of this process's stations remember."""
    local: Tensor | None = None
    """What devices keep to themselves."""


class Algorithm(Protocol):
    """Something that can be run: FedGS, a baseline, or your own."""

    @property
    def kind(self) -> Literal["fedgs", "baseline"]:
        """``fedgs``: plans are teams of stations; ``baseline``: plans are participants of a round."""
        ...

    def bind(self, context: Context) -> "Rounds":
        """Return what runs its rounds."""
        ...


class Rounds(Protocol):
    """Runs rounds."""

    layout: Layout
    server_label: str
    """How an error names the server's side and the setting to change."""
    smallest_batch: int
    """Samples that a training step needs at least."""

    def check(self, begun: bool) -> None:
        """Find what would stop a run that is still to come; ``begun``: it goes on from a checkpoint."""
        ...

    def first_weights(self, pretrained: Tensor | None) -> Tensor:
        """Return the flat weights the run starts from, on the device; ``pretrained`` is a plain network, flat."""
        ...

    def begin(self, weights: Tensor) -> dict[str, Any]:
        """Return what the server remembers before the first round."""
        ...

    def run_round(self, state: RunState, plan: Any, tick: Tick | None) -> Outcome:
        """Train one round."""
        ...

    def forwards(self, state: RunState) -> "dict[str, Forward]":
        """Return the ways to test a state's model: that which counts has the name "", others are logged beside it."""
        ...

    def close(self) -> None:
        """Give back threads and memory."""
        ...


def mean(values: NDArray[np.float64]) -> float | None:
    """Return the mean, None of nothing."""
    return float(values.mean()) if len(values) else None


def device_views(layout: Layout, flat: Tensor, local: Tensor | None) -> "Callable[[NDArray[np.int64]], Weights]":
    """Return what gives the weights (1, …) for samples of some devices.

    Where devices keep weights to themselves (``local``), all samples of a call belong to one device.
    """
    shared = {name: view[None] for name, view in layout.views(flat).items()}
    places = torch.from_numpy(layout.local_places).to(flat.device)

    def views(devices: NDArray[np.int64]) -> Weights:
        if local is None:
            return shared
        own = flat.clone()
        own[places] = local[int(devices[0])].to(flat.device)
        return {name: view[None] for name, view in layout.views(own).items()}

    return views
