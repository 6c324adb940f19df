"""The plain network of a task, and one step of one device with it: what the time model measures."""

from collections.abc import Callable
from typing import Any

import torch

from fedgs.data.arrays import leaves, map_tree
from fedgs.tasks.bind import BoundTask, sample_inputs
from fedgs.tasks.prepare import full_shape
from fedgs.training.network import ModuleNetwork, Network
from fedgs.training.objective import Batch, Objective, Sent
from fedgs.training.optimizers import Optimizer
from fedgs.training.stacked_networks import NETWORKS, build_network
from fedgs.training.step import descend, gradient_of
from fedgs.training.store import SampleStore

RATE = 0.01


def plain_network(task: BoundTask, device: torch.device, precision: str = "tf32") -> Network:
    """Return the network of a task for clients: stacked for the built-in CNNs, else its module."""
    if task.built_in in NETWORKS:
        shape = full_shape(task.federation.inputs.shape[1:])
        return build_network(str(task.built_in), len(task.classes), shape, precision)
    return ModuleNetwork(task, device, precision)


def local_step(task: BoundTask, objective: Objective, batch_size: int) -> Callable[[], object]:
    """Return one step of a device with this objective on the processor, with samples of the largest device."""
    cpu = torch.device("cpu")
    plain = plain_network(task, cpu, "float32")
    network = objective.network(plain, len(task.federation))
    layout = network.layout
    first = network.first_weights(0)
    weights = {name: first[name][None].clone() for name in layout.names}
    sent = Sent({name: value.clone() for name, value in weights.items()}, _memory(objective, first))
    batch = _batch(task, plain, batch_size)

    def step() -> None:
        found = gradient_of(network, objective, weights, layout.trained, sent, batch)
        descend(
            list(weights.values()), found.values, RATE, Optimizer(), {}, 0,
            pull=objective.pull, start=list(sent.weights.values()),
        )  # fmt: skip

    return step


def _memory(objective: Objective, weights: dict[str, Any]) -> dict[str, Any]:
    init = getattr(objective, "init", None)
    return dict(init(weights)) if callable(init) else {}


def _batch(task: BoundTask, network: Network, size: int) -> Batch:
    if isinstance(network, ModuleNetwork):
        inputs, targets = (map_tree(lambda value: value[None], tree) for tree in sample_inputs(task, size))
    else:
        device = int(task.federation.train.sizes.argmax())
        rows = torch.from_numpy(task.federation.train[device][:size].copy())
        inputs, targets = SampleStore(task, torch.device("cpu")).pixels(rows[None])
    count = next(leaves(targets))[1].shape[1]
    numbers = torch.zeros((1, count), dtype=torch.int64)
    return Batch(inputs, targets, torch.full((1, count), 1 / count), numbers, numbers[0, :1], full=True)
