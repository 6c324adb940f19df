"""Local training of a round's clients: what all ways of doing it share, and the choice among them.

==========================  =================================================================================
class ``Sequential``        one client after the other: the oracle; in threads, any network on processors
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
from fedgs.tasks.bind import BoundTask
from fedgs.tasks.build import some_samples
from fedgs.tasks.prepare import full_shape
from fedgs.training.network import ModuleNetwork, Network
from fedgs.training.objective import Batch, Objective, Sent, Weights
from fedgs.training.optimizers import Optimizer
from fedgs.training.precision import Workers
from fedgs.training.probe import Traits
from fedgs.training.round_plan import ClientPlan
from fedgs.training.stacked_networks import NETWORKS, build_network
from fedgs.training.step import descend, gradient_of
from fedgs.training.store import SampleStore

KEYS_A_STEP = 16
"""Random numbers a step may use."""
MEASURED_RATE = 0.01
"""The learning rate of a step that is only measured."""
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

    def accuracies(
        self, plan: ClientPlan, hits: NDArray[np.float64], final: NDArray[np.float64]
    ) -> NDArray[np.float64] | None:
        """Return the training accuracy the objective asks for, of each client.

        ``hits`` (S, P): right answers of each step, before it; ``final`` (P,): those of the finished models.
        """
        if self.objective.train_acc is None:
            return None
        if self.objective.train_acc == "running":
            ends = zip(plan.steps, plan.epoch_steps, strict=True)
            final = np.array([hits[n - e : n, place].sum() for place, (n, e) in enumerate(ends)])
        return final / plan.num_samples


class Sequential(ClientTraining):
    """Trains clients one after the other, batch by batch.

    No stack, no filling up: each client's model alone, on mini-batches of their true sizes. With one thread it is slow
    and simple enough to be right, the oracle that every other way must equal. With several, clients are shared out over
    threads, each with one thread inside: the way of any network on processors, the same to the bit however many threads
    there are.
    """

    def __init__(self, setup: ClientSetup, threads: int | None = None) -> None:
        super().__init__(setup)
        self._workers = Workers(self.store.device, self.precision, threads)
        self._prepared = takes_modules(setup.network)

    def train(
        self, sent: Sent, plan: ClientPlan, rate: float, tick: Tick | None = None, local: Tensor | None = None
    ) -> Trained:
        """Train all participants from what was sent."""
        device, count = self.store.device, len(plan.devices)
        flats = torch.empty(count, self.layout.size, device=device)
        start = self.layout.flatten(
            {name: sent.weights[name][0] for name in self.layout.names}, torch.empty_like(flats[0])
        )
        losses = np.full(plan.sizes.shape, np.nan)
        hits, final = np.zeros(plan.sizes.shape), np.zeros(count)

        def train(place: int) -> None:
            flats[place] = start
            self._train_one(flats[place], sent, plan, place, rate, local, losses[:, place], hits[:, place], final)
            if tick is not None:
                tick(1 / count)

        self._workers.each(train, range(count))
        return Trained(self.layout.views(flats), losses, self.accuracies(plan, hits, final))

    def close(self) -> None:
        """End the threads."""
        self._workers.close()

    def _train_one(
        self, flat: Tensor, sent: Sent, plan: ClientPlan, place: int, rate: float, local: Tensor | None,
        losses: NDArray[np.float64], hits: NDArray[np.float64], final: NDArray[np.float64],
    ) -> None:  # fmt: skip
        """Train one client in place."""
        layout, optimizer = self.layout, self.optimizer
        own_places, device = local_places(self.network, flat.device), int(plan.devices[place])
        if local is not None and own_places is not None:
            flat[own_places] = local[device]
        views = layout.one_client(flat)
        trained = [view[0] for view in list(views.values())[: layout.trained]]
        start = pulled_to(self.network, sent.weights, views)
        memory = {entry: [torch.zeros_like(weight) for weight in trained] for entry in optimizer.entries}
        for step in range(int(plan.steps[place])):
            batch = self._batch(plan, place, step)
            found = gradient_of(self.network, self.objective, views, layout.trained, sent, batch)
            losses[step] = float(found.losses[0])
            if self.objective.train_acc == "running":
                hits[step] = float(self.network.hits(found.outputs, batch)[0])
            gradients = [None if value is None else value[0] for value in found.values]
            descend(trained, gradients, rate, optimizer, memory, step + 1, self.clip, self.objective.pull, start)
        if self.objective.train_acc == "final":
            with torch.no_grad():
                for step in range(int(plan.epoch_steps[place])):  # the batches of the first epoch are all the samples
                    batch = self._batch(plan, place, step)
                    found = self.objective.outputs(self.network, views, sent.memory, batch.inputs, batch.clients)
                    final[place] += float(self.network.hits(found, batch)[0])
        if local is not None and own_places is not None:
            local[device] = flat[own_places]

    def _batch(self, plan: ClientPlan, place: int, step: int) -> Batch:
        samples = plan.samples[step, place, : plan.sizes[step, place]].astype(np.int64)
        key = int(plan.keys[place]) + KEYS_A_STEP * step
        if self._prepared:
            inputs, targets = self.store.batch(samples)
            inputs = self.store.augmented(inputs, key, self.setup.traits.draws_elsewhere)
        else:
            inputs, targets = self.store.pixels(torch.from_numpy(self.store.places(samples)).to(self.store.device))
        return Batch.of_one(inputs, targets, int(self.client_ids[plan.devices[place]]), key)


def make_client_training(setup: ClientSetup) -> ClientTraining:
    """Return the fastest way that is exact here, or the oracle where the settings ask for it."""
    from fedgs.training.captured_clients import CapturedTraining
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


def local_places(network: Network, device: torch.device) -> Tensor | None:
    """Return which numbers of the flat weights never leave a device; None where all travel."""
    places = network.layout.local_places
    return torch.from_numpy(places).to(device) if len(places) else None


def pulled_to(network: Network, sent: Weights, own: Weights) -> list[Tensor]:
    """Return the weights that a client's are pulled towards: those it was sent; what it keeps to itself is its own."""
    layout = network.layout
    return [(own if name in layout.local else sent)[name][0] for name in layout.names[: layout.trained]]


def plain_network(task: BoundTask, device: torch.device, precision: str = "tf32") -> Network:
    """Return the network of a task for clients: stacked for the built-in CNNs, else its module."""
    if task.built_in in NETWORKS:
        shape = full_shape(task.federation.inputs.shape[1:])
        return build_network(str(task.built_in), len(task.classes), shape, precision)
    return ModuleNetwork(task, device, precision)


def local_step(task: BoundTask, objective: Objective, batch_size: int) -> Callable[[], object]:
    """Return one step of a device with this objective on the processor, with samples of the largest device.

    The time model measures it.
    """
    cpu = torch.device("cpu")
    plain = plain_network(task, cpu, "float32")
    network = objective.network(plain, len(task.federation))
    layout, first = network.layout, network.first_weights(0)
    weights = {name: first[name][None].clone() for name in layout.names}
    memory = objective.init(first) if hasattr(objective, "init") else {}
    memory |= objective.init_clients({name: first[name] for name in layout.names[: layout.trained]}, 1)
    sent = Sent({name: value.clone() for name, value in weights.items()}, dict(memory))
    if isinstance(plain, ModuleNetwork):
        batch = Batch.of_one(*some_samples(task.task, task.federation, batch_size))
    else:
        samples = task.federation.train[int(task.federation.train.sizes.argmax())][:batch_size]
        batch = Batch.of_one(*SampleStore(task, cpu).pixels(torch.from_numpy(samples.copy())))

    def step() -> None:
        found = gradient_of(network, objective, weights, layout.trained, sent, batch)
        descend(
            list(weights.values()), found.values, MEASURED_RATE, Optimizer(), {}, 0,
            pull=objective.pull, start=list(sent.weights.values()),
        )  # fmt: skip

    return step
