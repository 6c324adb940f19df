"""The network that settings name, built to the shapes of their data without a run: its size, the time of a step."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from fedgs.data import Federation
from fedgs.data.arrays import leaves, map_tree
from fedgs.data.dataset import ONE_BIN
from fedgs.data.femnist import fitting_layouts
from fedgs.data.sources import EMBEDDED, embedded
from fedgs.errors import ConfigError, FedgsError
from fedgs.settings import Settings
from fedgs.simulation.federations import load_data
from fedgs.simulation.run_clock import REPEATS, fastest
from fedgs.tasks.build import build_module, prepare_of, run_network
from fedgs.tasks.prepare import as_tensor, stand_in
from fedgs.tasks.task import Task, task_from, users_own
from fedgs.training.layout import Layout

FEMNIST = stand_in([(28, 28), "uint8"], 62)
"""Its shapes are known without reading its files, which take long or are not there yet."""


@dataclass(frozen=True, eq=False)
class PlannedNetwork:
    """A network, and the shapes that it was built to."""

    task: Task
    shapes: Federation
    """One sample of zeros, and the names of the classes."""
    module: nn.Module

    @property
    def weights(self) -> int:
        """The numbers that travel between a device and its station."""
        return Layout.of(self.module, self.task.keep_local).shared_size

    def step_seconds(self, batch_size: int = 32, repeats: int = REPEATS) -> float:
        """Return the time of one SGD step on one core of this machine."""
        optimizer = torch.optim.SGD([one for one in self.module.parameters() if one.requires_grad], lr=0.01)
        inputs = self._inputs(batch_size)

        def step() -> None:
            optimizer.zero_grad()
            outputs = run_network(self.task, self.module, inputs)
            # The loss takes no time beside the network, so any one will do.
            total = torch.stack([value.sum() for _, value in leaves(outputs)]).sum()
            total.backward()  # type: ignore[no-untyped-call]
            optimizer.step()

        self.module.train()
        return fastest(step, repeats)

    def try_out(self) -> None:
        """Refuse a network that does not take such inputs."""
        with torch.no_grad():
            run_network(self.task, self.module.eval(), self._inputs(1))

    def _inputs(self, count: int) -> Any:
        stored = map_tree(lambda array: as_tensor(array.repeat(count, axis=0)), self.shapes.inputs)
        with users_own("task.prepare: fails on zeros"):
            return prepare_of(self.task)(stored)


def planned_network(settings: Settings) -> PlannedNetwork:
    """Return the network of the settings; their data are looked at, unless their shapes are known."""
    task, shapes = task_from(settings.task), _shapes(settings)
    network = PlannedNetwork(task, shapes, build_module(task, shapes, settings.seed))
    network.try_out()
    return network


def _shapes(settings: Settings) -> Federation:
    name = settings.data.name
    if name == "femnist" or (name not in EMBEDDED and fitting_layouts(Path(name))):
        return FEMNIST
    try:
        # An embedded set has the same shapes whatever its size, and a small one is made in no time.
        data = embedded(name, 2, 12) if name in EMBEDDED else load_data(settings)
    except FedgsError as error:
        raise ConfigError(f"{error}; to plan without the data give plan.model_bytes, or --run with a run") from None
    one = map_tree(lambda array: [array.shape[1:], array.dtype.str], data.inputs)
    return stand_in(one, data.classes or ONE_BIN)
