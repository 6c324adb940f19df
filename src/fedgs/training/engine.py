"""What an engine is: it trains one round of FedGS. Weights in, stations' weights out.

An engine knows the network, the samples and the optimiser; it knows nothing of selection, of the top server or of
files. Every engine must agree with :class:`fedgs.training.per_device.PerDeviceEngine` within float tolerance.

==============  ======================================================================================
``per-device``  the oracle: one device after the other
``fused``       one step on a team's union batch; where samples of a batch are independent of each other
``clients``     every device's own step: threads on processors, streams in a captured graph on a GPU
``graph``       ``fused`` for all factories at once, captured as a CUDA graph
``stacked``     ``graph`` with hand-written kernels, for the paper's CNN
==============  ======================================================================================
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedgs import rng
from fedgs.errors import ConfigError
from fedgs.settings import TrainingSettings
from fedgs.training.network import ModuleNetwork
from fedgs.training.objective import Batch, Objective, Sent
from fedgs.training.optimizers import Optimizer
from fedgs.training.probe import Traits
from fedgs.training.round_plan import RoundPlan
from fedgs.training.step import Gradient, gradient_of
from fedgs.training.store import SampleStore

Tick = Callable[[float], None]
"""Called now and then with the number of iterations (of all factories) done since the last call."""
Note = Callable[[str], None]
"""Told something worth a line to the user."""
KEY_BITS = 34
"""A key of 64 bits is cut to 30, so that a step's number can be added to it."""


@dataclass(frozen=True)
class RoundResult:
    """What a round of training gives."""

    stations: Tensor
    """(factories, size) each station's model after its T iterations; on the engine's device."""
    losses: NDArray[np.float64]
    """(iterations, factories) mean loss over the super node's samples before the step; NaN where there was nobody."""
    memory: dict[str, Tensor] = field(default_factory=dict)
    """What the stations' optimisers remember: (factories, trained weights) each, and ``steps`` (factories,)."""
    local: Tensor | None = None
    """(devices, …) what devices keep to themselves."""


@dataclass(frozen=True)
class Setup:
    """What every engine is made of."""

    network: ModuleNetwork
    store: SampleStore
    training: TrainingSettings
    objective: Objective = field(default_factory=Objective)
    traits: Traits = field(default_factory=Traits)
    seed: int = 0
    threads: int | None = None
    """At most so many on processors; None: one a core."""
    note: Note = lambda line: None

    @property
    def draws(self) -> bool:
        """Whether training draws random numbers at all."""
        return self.network.draws or self.traits.draws_elsewhere or self.store.task.task.augment is not None

    def batch(self, plan: RoundPlan, iteration: int, factory: int, place: int | None = None) -> Batch:
        """Return the batch of one selected device, or where no place is named those of a team as one; D = 1."""
        if place is None:
            samples, who = plan.union(iteration, factory), f"factory {factory}"
        else:
            size, device = plan.sizes[iteration, factory, place], plan.devices[iteration, factory, place]
            samples, who = plan.samples[iteration, factory, place, :size].astype(np.int64), f"device {device}"
        inputs, targets = self.store.batch(samples)
        key = 0
        if self.draws:
            number = (plan.round - 1) * len(plan.devices) + iteration
            key = rng.key(self.seed, "dropout", number, who) >> KEY_BITS
            inputs = self.store.augmented(inputs, key, self.traits.draws_elsewhere)
        shift = None
        if plan.shifts is not None:
            shift = torch.from_numpy(plan.shifts[iteration, factory]).to(self.store.device)[None, None]
        return Batch.of_one(inputs, targets, key=key, shift=shift)

    def each_device(
        self, plan: RoundPlan, iteration: int, factory: int, station: Tensor, sent: Sent, local: Tensor | None
    ) -> Iterator[tuple[int, Tensor, Gradient]]:
        """Yield the batch size of each device of a team, its copy of the station's weights, and its gradient.

        What a device keeps to itself comes from ``local``, and goes back there as it is when the next one is asked for.
        """
        layout = self.network.layout
        own = torch.from_numpy(layout.local_places).to(station.device)
        for place in np.flatnonzero(plan.sizes[iteration, factory]).tolist():
            device, flat = int(plan.devices[iteration, factory, place]), station.clone()
            if local is not None:
                flat[own] = local[device]
            batch = self.batch(plan, iteration, factory, place)
            views = layout.one_client(flat)
            found = gradient_of(self.network, self.objective, views, layout.trained, sent, batch)
            yield int(plan.sizes[iteration, factory, place]), flat, found
            if local is not None:
                local[device] = flat[own]


@dataclass(frozen=True)
class RoundInput:
    """What a round of training is given."""

    weights: Tensor
    """The global model, flat."""
    plan: RoundPlan
    rates: NDArray[np.float64]
    """(iterations,) learning rates."""
    memory: dict[str, Tensor] | None
    """What the stations' optimisers remember from the round before; None: nothing yet."""
    local: Tensor | None
    """(devices, …) what devices keep to themselves."""
    tick: Tick

    def start(self, setup: Setup, optimizer: Optimizer) -> tuple[RoundResult, Sent]:
        """Return a round that has not begun: copies to be trained in place, losses of NaN, and what is sent."""
        device, layout = setup.store.device, setup.network.layout
        iterations, factories, _ = self.plan.devices.shape
        weights = self.weights.to(device)
        result = RoundResult(
            weights.repeat(factories, 1),
            np.full((iterations, factories), np.nan),
            begin_memory(optimizer, self.memory, factories, layout.trained_size, device),
            None if self.local is None else self.local.to(device).clone(),
        )
        return result, Sent(layout.one_client(weights), {})


def begin_memory(
    optimizer: Optimizer, before: dict[str, Tensor] | None, rows: int, size: int, device: torch.device
) -> dict[str, Tensor]:
    """Return what optimisers remember at the beginning of a round: copies of what is there, else nothing at all."""
    if before:
        return {entry: value.to(device).clone() for entry, value in before.items()}
    memory = {entry: torch.zeros(rows, size, device=device) for entry in optimizer.entries}
    if optimizer.counts_steps:
        memory["steps"] = torch.zeros(rows, device=device)
    return memory


class Engine(ABC):
    """Trains one round."""

    def train_round(
        self,
        weights: Tensor,
        plan: RoundPlan,
        rates: NDArray[np.float64],
        memory: dict[str, Tensor] | None = None,
        local: Tensor | None = None,
        tick: Tick | None = None,
    ) -> RoundResult:
        """Train every factory of ``plan`` from the global ``weights``; the arguments are the fields of RoundInput."""
        return self.run(RoundInput(weights, plan, rates, memory, local, tick or (lambda share: None)))

    @abstractmethod
    def run(self, given: RoundInput) -> RoundResult:
        """Train a round; nothing that is given changes."""

    def close(self) -> None:  # noqa: B027 (most have nothing to give back)
        """Give back threads and memory; by default there are none."""


def make_engine(setup: Setup) -> Engine:
    """Return the engine the settings ask for; ``auto`` is the fastest one that is exact here."""
    from fedgs.training.fused import FactoryThreads
    from fedgs.training.graph import GraphEngine
    from fedgs.training.per_device import PerDeviceEngine
    from fedgs.training.stacked import StackedEngine, misfit

    on_gpu = setup.store.device.type == "cuda"
    together = why_not_fused(setup)
    name: str = setup.training.engine
    if name == "auto":
        if on_gpu:
            name = "clients" if together else "graph" if misfit(setup) else "stacked"
        else:
            name = "clients" if together else "fused"
    if name in ("fused", "graph", "stacked") and together:
        raise ConfigError(
            f"training.engine={name!r} takes a team's batches as one, but {together}; use 'auto' or 'clients'"
        )
    if name == "per-device":
        return PerDeviceEngine(setup)
    if name == "stacked":
        if reason := misfit(setup):
            raise ConfigError(f"training.engine='stacked' {reason}; use 'auto'")
        return StackedEngine(setup)
    if name == "graph" and not on_gpu:
        raise ConfigError("training.engine='graph' is a CUDA graph and needs device='cuda'; use 'auto' or 'fused'")
    if name == "graph" or (name == "clients" and on_gpu and not setup.network.layout.local):
        return GraphEngine(setup, union=name == "graph")
    return FactoryThreads(setup, union=name == "fused")


def why_not_fused(setup: Setup) -> str:
    """Return why a team's step is not one step on its union batch; "" where it is."""
    if setup.traits.mixes_samples:
        return setup.traits.mixes_samples
    if not setup.objective.per_sample:
        return "this objective compares the samples of a device with each other"
    if setup.network.layout.local:
        return "task.keep_local gives every device weights of its own"
    return ""
