"""Local training of a round's clients: what all ways of doing it share, and the choice among them.

==========================  =================================================================================
:mod:`.sequential`          one client after the other: the oracle; in threads, any network on processors
:mod:`.slots`               any network on a GPU: a captured step a slot, sixteen slots side by side
:mod:`.stacked_clients`     the built-in CNNs on processors: clients of a bucket in one stack of weights
:mod:`.captured_clients`    the built-in CNNs on a GPU: all clients in one stack, their step a captured graph
==========================  =================================================================================
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedgs.settings import TrainingSettings
from fedgs.training.client_plan import ClientPlan
from fedgs.training.network import ModuleNetwork, Network
from fedgs.training.objective import Objective, Sent
from fedgs.training.optimizers import Optimizer
from fedgs.training.probe import Traits
from fedgs.training.store import SampleStore

KEYS_A_STEP = 16
"""Random numbers a step may use."""
Tick = Callable[[float], None]
"""Told shares of the whole."""


@dataclass(frozen=True)
class Trained:
    """What the participants of a round have come to, in the order of the plan."""

    weights: dict[str, Tensor]
    """(P, …) each: their weights and buffers."""
    losses: NDArray[np.float64]
    """(S, P) the task's loss of each step, before it; NaN where there was none."""
    accuracies: NDArray[np.float64] | None
    """(P,) training accuracies, where the objective asks for them."""


@dataclass(frozen=True)
class ClientSetup:
    """What every way of local training is made of."""

    network: Network
    objective: Objective
    store: SampleStore
    client_ids: NDArray[np.int64]
    """The clients' numbers as the network knows them."""
    training: TrainingSettings
    traits: Traits = field(default_factory=Traits)
    threads: int | None = None
    note: Callable[[str], None] = lambda line: None


class ClientTraining(ABC):
    """Trains the participants of a round."""

    def __init__(self, setup: ClientSetup) -> None:
        self.setup = setup
        self.network, self.objective, self.store = setup.network, setup.objective, setup.store
        self.layout = setup.network.layout
        self.client_ids, self.clip, self.precision = setup.client_ids, setup.training.clip, setup.training.precision
        self.optimizer = Optimizer.of(setup.training)

    @abstractmethod
    def train(
        self, sent: Sent, plan: ClientPlan, rate: float, tick: Tick | None = None, local: Tensor | None = None
    ) -> Trained:
        """Train all participants from what was sent, with one learning rate.

        ``local`` (devices, …) is what devices keep to themselves; it is updated in place.
        """

    def close(self) -> None:  # noqa: B027 (most have nothing to give back)
        """Give back what was taken; by default nothing."""


def make_client_training(setup: ClientSetup) -> ClientTraining:
    """Return the fastest way that is exact here, or the oracle where the settings ask for it."""
    from fedgs.training.captured_clients import CapturedTraining
    from fedgs.training.sequential import Sequential
    from fedgs.training.slots import SlotTraining
    from fedgs.training.stacked_clients import StackedTraining

    on_gpu = setup.store.device.type == "cuda"
    if setup.training.engine == "per-device":
        return Sequential(setup, threads=1)
    if not takes_modules(setup.network):
        return CapturedTraining(setup) if on_gpu else StackedTraining(setup)
    if on_gpu:
        return SlotTraining(setup)
    # Random numbers that no key can set come from one generator for all threads: then there is only one.
    return Sequential(setup, threads=1 if setup.traits.draws_elsewhere else setup.threads)


def takes_modules(network: Network) -> bool:
    """Whether a network, or what it is built on, is a plain module: one client at a time, with prepared inputs."""
    base = getattr(network, "base", network)
    return isinstance(base, ModuleNetwork)


def running_accuracies(plan: ClientPlan, hits: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the training accuracy of each client over its last epoch, from (S, P) hits."""
    last = [hits[n - e : n, k].sum() for k, (n, e) in enumerate(zip(plan.steps, plan.epoch_steps, strict=True))]
    return np.array(last) / plan.num_samples


def local_places(network: Network, device: torch.device) -> Tensor | None:
    """Return which numbers of the flat weights never leave a device; None where all travel."""
    places = network.layout.local_places
    return torch.from_numpy(places).to(device) if len(places) else None
