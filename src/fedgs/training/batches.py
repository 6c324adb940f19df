"""From a plan to the batch of a step: a device's own, or a team's batches as one."""

from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray

from fedgs import rng
from fedgs.data.arrays import map_tree
from fedgs.training.objective import Batch
from fedgs.training.round_plan import RoundPlan

if TYPE_CHECKING:
    from fedgs.training.engine import Setup

KEY_BITS = 34
"""A key of 64 bits is cut to 30, so that a step's number can be added to it."""


def one_client(setup: "Setup", plan: RoundPlan, iteration: int, factory: int, place: int) -> Batch:
    """Return the batch of one selected device, D = 1."""
    size = int(plan.sizes[iteration, factory, place])
    samples = plan.samples[iteration, factory, place, :size].astype(np.int64)
    device = int(plan.devices[iteration, factory, place])
    return _batch(setup, plan, iteration, factory, samples, f"device {device}")


def union(setup: "Setup", plan: RoundPlan, iteration: int, factory: int) -> Batch | None:
    """Return the batches of a team as one, D = 1; None where there is nobody."""
    samples = plan.union(iteration, factory)
    return _batch(setup, plan, iteration, factory, samples, f"factory {factory}") if len(samples) else None


def _batch(
    setup: "Setup", plan: RoundPlan, iteration: int, factory: int, samples: NDArray[np.int64], who: str
) -> Batch:
    store, device = setup.store, setup.store.device
    inputs, targets = store.batch(samples)
    key = 0
    if setup.draws:
        number = (plan.round - 1) * len(plan.devices) + iteration
        key = rng.key(setup.seed, "dropout", number, who) >> KEY_BITS
        inputs = augmented(setup, inputs, key)
    count = len(samples)
    shift = None
    if plan.shifts is not None:
        shift = torch.from_numpy(plan.shifts[iteration, factory]).to(device)[None, None]
    return Batch(
        map_tree(lambda value: value[None], inputs),
        map_tree(lambda value: value[None], targets),
        torch.full((1, count), 1 / count, device=device),
        torch.zeros((1, count), dtype=torch.int64, device=device),
        torch.tensor([key]),
        full=True,
        shift=shift,
    )


def augmented(setup: "Setup", inputs: Any, key: int) -> Any:
    """Return inputs changed at random, where the task asks for it."""
    augment = setup.store.task.task.augment
    if augment is None:
        return inputs
    generator = torch.Generator(setup.store.device)
    generator.manual_seed(key)
    return augment(inputs, generator)
