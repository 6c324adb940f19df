"""A network as a function of its weights: any torch module, one client at a time.

    network = ModuleNetwork(bound, device)
    outputs = network(weights, inputs, clients, keys)       # weights (1, …) each, inputs (1, B, …)

The module itself is never changed: ``torch.func.functional_call`` runs it with the weights it is given, in train mode
where there are ``keys``, in eval mode where there are none. Buffers that the module updates in place (running
statistics) are updated in the tensors given. Every thread has a copy of the module, which shares all tensors with the
others.

Algorithms that cut a network (FedFusion, CGAU, FedMMD's hidden layer) do so through :meth:`Network.forward`: ``fuse``
changes what the part named by ``Task.features`` gives, ``classify`` takes the place of the part named by ``Task.head``.
"""

import copy
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple, TypedDict, Unpack

import torch
from torch import Tensor, nn
from torch.func import functional_call

from fedgs.data.arrays import map_tree
from fedgs.errors import ConfigError
from fedgs.tasks.bind import BoundTask
from fedgs.tasks.build import seed_generators, some_samples
from fedgs.tasks.losses import predicted_classes
from fedgs.tasks.task import users_own
from fedgs.training.dropout import LAYERS, SeededDropout, seed_dropout, with_seeded_dropout
from fedgs.training.layout import Layout
from fedgs.training.objective import Batch, Weights
from fedgs.training.precision import mixed_precision

WORD = 16
"""Bytes that GPU kernels read at a time."""


class Cuts(TypedDict, total=False):
    """Where an algorithm takes hold of a forward pass."""

    fuse: Callable[[Tensor], Tensor]
    """Changes what the part named by ``Task.features`` gives."""
    classify: Callable[[Tensor], Tensor]
    """Takes the place of the part named by ``Task.head``."""
    hidden: bool
    """Whether what that part sees is wanted."""


class Forward(NamedTuple):
    """What a network gives."""

    outputs: Any
    """(D, B, …)."""
    hidden: Tensor | None
    """(D, B, features) what the last layer sees; None where nobody asked."""


class Network(ABC):
    """A function from weights and inputs to outputs, for D clients at once."""

    layout: Layout
    dtype: torch.dtype = torch.float32
    """In which products are taken."""

    @property
    @abstractmethod
    def num_classes(self) -> int:
        """Classes that the outputs stand for."""

    @property
    @abstractmethod
    def head(self) -> str:
        """The name of the last layer."""

    @property
    @abstractmethod
    def feature_channels(self) -> int:
        """Channels of what is fused."""

    @abstractmethod
    def forward(
        self, weights: Weights, inputs: Any, clients: Tensor, keys: Tensor | None = None, **cuts: Unpack[Cuts]
    ) -> Forward:
        """Return the outputs; ``keys`` are the random numbers of a training step, None when testing."""

    def __call__(self, weights: Weights, inputs: Any, clients: Tensor, keys: Tensor | None = None) -> Any:
        """Return the outputs."""
        return self.forward(weights, inputs, clients, keys).outputs

    @abstractmethod
    def features(self, weights: Weights, inputs: Any) -> Tensor:
        """Return what is fused of one network, weights (1, …), for inputs (1, B, …); without a gradient."""

    @abstractmethod
    def loss(self, outputs: Any, batch: Batch) -> Tensor:
        """Return each client's mean loss (D,) over the samples that count."""

    @abstractmethod
    def hits(self, outputs: Any, batch: Batch) -> Tensor:
        """Return how many samples of each client were put into the right class."""

    @abstractmethod
    def first_weights(self, seed: int) -> dict[str, Tensor]:
        """Return the weights a run starts from, without the clients' dimension; plain networks: and the buffers."""

    def on_backbone(self, plain: Weights, seed: int) -> dict[str, Tensor]:
        """Return first weights that take from a trained plain network what they have in common."""
        return self.first_weights(seed) | dict(plain)


@dataclass(frozen=True)
class WrappedNetwork(Network):
    """A network built on another one; as it stands it does what that one does."""

    base: Network

    # What is said of the network itself is said of the plain one.
    dtype = property(lambda self: self.base.dtype)
    num_classes = property(lambda self: self.base.num_classes)
    head = property(lambda self: self.base.head)
    feature_channels = cached_property(lambda self: self.base.feature_channels)

    def forward(
        self, weights: Weights, inputs: Any, clients: Tensor, keys: Tensor | None = None, **cuts: Unpack[Cuts]
    ) -> Forward:
        """Return its outputs."""
        return self.base.forward(weights, inputs, clients, keys, **cuts)

    def features(self, weights: Weights, inputs: Any) -> Tensor:
        """Return its features."""
        return self.base.features(weights, inputs)

    def loss(self, outputs: Any, batch: Batch) -> Tensor:
        """Return its loss."""
        return self.base.loss(outputs, batch)

    def hits(self, outputs: Any, batch: Batch) -> Tensor:
        """Return how many samples were right."""
        return self.base.hits(outputs, batch)


class ModuleNetwork(Network):
    """Any torch module; one client at a time (D = 1)."""

    def __init__(self, task: BoundTask, device: torch.device, precision: str = "tf32") -> None:
        self.task, self.device, self.precision = task, device, precision
        self.layout = Layout.of(task.module, task.task.keep_local)
        module = copy.deepcopy(task.module).to(device)
        on_cpu = device.type == "cpu"
        self._module = with_seeded_dropout(module) if on_cpu else module
        self.draws = any(type(layer) in (*LAYERS, SeededDropout) for layer in self._module.modules())
        """Whether it has dropout layers."""
        self.draws_elsewhere = False
        """Whether it draws random numbers outside them (:mod:`fedgs.training.probe`)."""
        self._here = threading.local()

    @property
    def num_classes(self) -> int:
        """Bins of the task, where they are classes."""
        if not self.task.classifies:
            raise ConfigError(
                "this algorithm is for classification: a task with cross-entropy, balanced by its classes"
            )
        return len(self.task.classes)

    @property
    def head(self) -> str:
        """The name of the last layer: a dense one."""
        name = self._name_of("head")
        if not isinstance(self.task.module.get_submodule(name), nn.Linear):
            raise ConfigError(f"task.head={name!r} is not a torch.nn.Linear, which this algorithm needs")
        return name

    @property
    def feature_channels(self) -> int:
        """Channels of what the part named by ``Task.features`` gives."""
        inputs, _ = some_samples(self.task.task, self.task.federation, 1)
        weights = {name: value[None].to(self.device) for name, value in self.first_weights(0).items()}
        return self.features(weights, map_tree(lambda value: value[None].to(self.device), inputs)).shape[2]

    def forward(
        self, weights: Weights, inputs: Any, clients: Tensor, keys: Tensor | None = None, **cuts: Unpack[Cuts]
    ) -> Forward:
        """Run the module with the weights of one client."""
        module = self._copy(keys is not None)
        if keys is not None and self.device.type == "cpu":
            key = int(keys[0])
            seed_dropout(module, key)
            if self.draws_elsewhere:  # trained in one thread, so that the order of draws is fixed
                seed_generators(key)
        seen: list[Tensor] = []
        fuse, classify = cuts.get("fuse"), cuts.get("classify")
        with ExitStack() as hooks:
            if fuse is not None:
                part = self._part(module, "features")
                hooks.enter_context(part.register_forward_hook(lambda _, __, out: fuse(out[None])[0]))
            if classify is not None or cuts.get("hidden"):
                head = self._part(module, "head")
                hooks.enter_context(head.register_forward_pre_hook(lambda _, given: seen.append(given[0])))
                if classify is not None:
                    hooks.enter_context(head.register_forward_hook(lambda _, given, __: classify(given[0][None])[0]))
            outputs = self._run(module, weights, inputs)
        return Forward(map_tree(lambda value: value[None], outputs), seen[0][None] if seen else None)

    def features(self, weights: Weights, inputs: Any) -> Tensor:
        """Return what the part named by ``Task.features`` gives, in eval mode."""
        found: list[Tensor] = []
        module = self._copy(False)
        part = self._part(module, "features")
        with torch.no_grad(), part.register_forward_hook(lambda _, __, out: found.append(out)):
            self._run(module, weights, inputs)
        return found[0][None]

    def loss(self, outputs: Any, batch: Batch) -> Tensor:
        """Return the mean loss, (1,)."""
        # squeeze and not [0], which would copy on the way back
        own, targets, inputs = (
            map_tree(lambda value: value.squeeze(0), tree) for tree in (outputs, batch.targets, batch.inputs)
        )
        with users_own(f"task.loss {self.task.loss.name}: fails on a batch"):
            if batch.full:
                return self.task.loss.mean(own, targets, inputs)[None]
            total: Tensor = (self.task.loss(own, targets, inputs) * batch.shares[0]).sum()
        return total[None]

    def hits(self, outputs: Any, batch: Batch) -> Tensor:
        """Return how many samples were put into the right class, (1,)."""
        right: Tensor = (predicted_classes(outputs[0]) == batch.targets[0]) & (batch.shares[0] > 0)
        return right.sum()[None].float()

    def first_weights(self, seed: int) -> dict[str, Tensor]:
        """Return the weights and buffers the task was bound with; they were drawn under the run's seed."""
        return {
            name: value.clone() for name, value in self.layout.views(self.layout.of_module(self.task.module)).items()
        }

    def _copy(self, training: bool) -> nn.Module:
        """Return this thread's copy of the module, in train or eval mode."""
        key = "train" if training else "eval"
        found: nn.Module | None = getattr(self._here, key, None)
        if found is None:
            found = sharing_copy(self._module).train(training)
            setattr(self._here, key, found)
        return found

    def _run(self, module: nn.Module, weights: Weights, inputs: Any) -> Any:
        # squeeze and not [0], which would copy on the way back
        own = {name: weights[name].squeeze(0) for name in self.layout.names if name in weights}
        kinds = self.layout.integer_types
        moved = {name: own[name].detach().to(kind) for name, kind in kinds.items() if name in own}
        if self.device.type == "cuda":
            there = {name: as_a_gpu_reads(weight) for name, weight in own.items() if name not in kinds}
            moved |= {name: weight for name, weight in there.items() if weight is not own[name]}
        arguments = map_tree(lambda value: value[0], inputs)
        with mixed_precision(self.device, self.precision):
            named = arguments if isinstance(arguments, dict) else None
            unnamed = () if named else arguments  # a tuple, or a single input
            with users_own(f"task.model {self.task.task.named()}: fails on a batch"):
                outputs = functional_call(module, {**own, **moved}, unnamed, named)
        if module.training:
            with torch.no_grad():
                for name in self.layout.names[self.layout.trained :]:  # buffers that the module may have updated
                    if name in moved:
                        own[name].copy_(moved[name])
        return map_tree(lambda value: value.float() if value.is_floating_point() else value, outputs)

    def _part(self, module: nn.Module, what: str) -> nn.Module:
        return module.get_submodule(self._name_of(what))

    def _name_of(self, what: str) -> str:
        name: str | None = getattr(self.task, what)
        if name is None:
            raise ConfigError(
                f"this algorithm cuts the network and needs to know where; give Task({what}=…), or task.{what}, the "
                "name of a submodule"
            )
        return name


def as_a_gpu_reads(weight: Tensor) -> Tensor:
    """Return a weight at an address that GPU kernels can read in whole words, itself if it lies there.

    A view into a flat vector can begin anywhere, and some kernels of cuDNN stop with "misaligned address" then: batch
    normalisation of channels-last images. The gradient goes through the copy.
    """
    return weight if weight.data_ptr() % WORD == 0 else weight.clone()


def sharing_copy(module: nn.Module) -> nn.Module:
    """Return a copy of a module that shares all its tensors."""
    tensors = [*module.parameters(), *module.buffers()]
    return copy.deepcopy(module, {id(tensor): tensor for tensor in tensors})
