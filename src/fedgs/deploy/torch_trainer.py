"""A device's step with any network, on one thread; and the task of a run as top server and device build it."""

import copy
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from fedgs.data.arrays import map_tree
from fedgs.deploy.proto import fedgs_wire_pb2 as pb
from fedgs.deploy.sources import Batch
from fedgs.deploy.tensors import Flat, Shapes
from fedgs.deploy.trainers import network_digest
from fedgs.errors import ConfigError
from fedgs.settings import TaskSettings
from fedgs.tasks.bind import bins_of, parts_of
from fedgs.tasks.build import build_module, prepare_of
from fedgs.tasks.losses import Loss
from fedgs.tasks.prepare import (
    NormalisedInputs,
    as_tensor,
    call,
    device_moments,
    normalised,
    prepare_targets,
    stand_in,
    statistics_of,
)
from fedgs.tasks.task import Task, task_from, users_own
from fedgs.training.layout import Layout, frozen_weights


@dataclass(frozen=True)
class Deployed:
    """A task without its data: the network, and which of its weights travel."""

    task: Task
    module: nn.Module
    layout: Layout
    shapes: Shapes
    """Of what travels, in the order of the wire."""

    @classmethod
    def of(cls, task: Task, classes: int, inputs: Any, seed: int, normalise: bool = False) -> "Deployed":
        """Return a task with its network, built to shapes without any data.

        ``normalise``: the network begins with the normalisation of its inputs, which changes nothing yet.
        """
        empty = stand_in(inputs, classes)
        module = build_module(task, empty, seed)
        if normalise:
            module = normalised(module, empty, prepare_of(task))
        layout = Layout.of(module, task.keep_local)
        shared = layout.only(set(layout.names) - layout.local)
        return cls(task, module, layout, Shapes(shared.tensors, shared.buffers, shared.integers))

    @property
    def head(self) -> str:
        """The name of the last layer; "" where nobody says."""
        name = parts_of(self.task)[0]
        return f"{'network.' if isinstance(self.module, NormalisedInputs) else ''}{name}" if name else ""

    @property
    def channels(self) -> int:
        """How many channels are normalised."""
        known = dict(self.module.named_buffers()) if isinstance(self.module, NormalisedInputs) else {}
        return sum(len(values) for name, values in statistics_of(known).items() if name.startswith("mean"))

    def digest(self, bins: int, batch_size: int) -> str:
        """Return the digest of the network; frozen weights count with their values."""
        everything = {**dict(self.module.named_parameters()), **dict(self.module.named_buffers())}
        tensors = [
            (name, tuple(value.shape), str(value.dtype).removeprefix("torch.")) for name, value in everything.items()
        ]
        frozen = b"".join(value.numpy().tobytes() for _, value in sorted(frozen_weights(self.module).items()))
        return network_digest(tensors, bins, batch_size, frozen)

    def first_weights(self) -> dict[str, torch.Tensor]:
        """Return what travels, with its first values, as float32."""
        known = {**dict(self.module.named_parameters()), **dict(self.module.named_buffers())}
        return {name: known[name].detach().float().clone() for name in self.shapes.names}


class TorchTrainer:
    """Trains any network one step at a time."""

    def __init__(self, task: pb.Task, spec: Any, inputs: Any) -> None:
        torch.set_num_threads(1)  # a mini-batch is too small to share out among cores
        try:
            spec = TaskSettings.model_validate(spec) if isinstance(spec, dict) else spec
        except ValueError as error:
            raise ConfigError(f"the station's task is not valid: {str(error).splitlines()[0]}") from None
        deployed = Deployed.of(task_from(spec), task.classes, inputs, task.seed, task.normalise)
        self.shapes, self._task, self._classes = deployed.shapes, deployed.task, task.classes
        self.digest = deployed.digest(task.classes, task.batch_size)
        self._prepare = prepare_of(deployed.task)
        self._loss = Loss.of(deployed.task.loss)
        self._module = copy.deepcopy(deployed.module).train()
        if any(weight.ndim == 4 for weight in self._module.parameters()):
            self._module.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        known = {**dict(self._module.named_parameters()), **dict(self._module.named_buffers())}
        self._travelling = [known[name] for name in self.shapes.names]
        self._local = [known[name] for name in deployed.layout.names if name in deployed.layout.local]
        self._trained = self.shapes.trained
        self._generator = torch.Generator().manual_seed(task.seed)

    def bins(self, batch: Batch) -> NDArray[np.int64]:
        """Return the bin of each sample."""
        return bins_of(self._task, batch.targets, self._classes)

    def moments(self, pieces: Iterable[Any]) -> NDArray[np.float64]:
        """Return number, sum and sum of squares of each channel's values, as they travel."""
        found = device_moments(pieces, self._prepare, "here")
        return np.concatenate([one for one in found if one is not None], axis=1).reshape(-1)

    def step(self, weights: Flat, batch: Batch, learning_rate: float) -> tuple[Flat, float]:
        """Return the change of weights and buffers, and the loss before the step."""
        given = list(self.shapes.views(weights).values())
        with torch.no_grad():
            for own, value in zip(self._travelling, given, strict=True):
                own.copy_(torch.from_numpy(np.array(value)))
        own_local = [weight for weight in self._local if weight.requires_grad]
        wanted = [*self._travelling[: self._trained], *own_local]
        with users_own("the task cannot train on this batch"):
            inputs = self._prepare(map_tree(as_tensor, map_tree(np.asarray, batch.inputs)))
            if self._task.augment is not None:
                inputs = self._task.augment(inputs, self._generator)
            targets = prepare_targets(map_tree(as_tensor, map_tree(np.asarray, batch.targets)))
            loss = self._loss.mean(call(self._module, inputs), targets, inputs)
            found = torch.autograd.grad(loss, wanted, allow_unused=True)
        change = np.zeros(self.shapes.size, np.float32)
        views = list(self.shapes.views(change).values())
        for view, gradient in zip(views, found[: self._trained], strict=False):
            if gradient is not None:
                np.multiply(gradient.numpy(), np.float32(-learning_rate), out=view)
        for view, own, before in zip(
            views[self._trained :], self._travelling[self._trained :], given[self._trained :], strict=True
        ):
            view[...] = own.detach().float().numpy() - before
        with torch.no_grad():  # what stays on the device moves here
            for weight, gradient in zip(own_local, found[self._trained :], strict=True):
                if gradient is not None:
                    weight.sub_(gradient, alpha=learning_rate)
        return change, float(loss.detach())
