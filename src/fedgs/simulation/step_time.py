"""How long one local step and one selection take on this machine: T_comp and T_select of the time model.

Each is tried several times, and the fastest counts.
"""

import time
from collections.abc import Callable, Sequence

import numpy as np
import torch

from fedgs.algorithms.baseline import Approach, Batch, Sent
from fedgs.rng import stream
from fedgs.selection import SelectionProblem, solve
from fedgs.selection.solve import warm_up
from fedgs.training.stacked_networks import build_network
from fedgs.training.store import one_thread_each

CLASSES = 62


def step_seconds(
    model: str,
    classes: int = CLASSES,
    image_shape: Sequence[int] = (28, 28),
    batch_size: int = 32,
    approach: Approach | None = None,
    devices: int = 1,
    repeats: int = 11,
) -> float:
    """Return the time of one SGD step of one device, on one core of this machine.

    FedGS takes the step of FedAvg, which ``Approach()`` is; other approaches do more (FedMMD looks through a second
    network, CGAU has a larger classifier with columns for all ``devices``) and are measured as they are.
    """
    own = approach or Approach()
    network = own.network(build_network(model, classes, image_shape, "float32"), devices)
    first = network.first_weights(0)
    draws = stream(0, "step-time")
    batch = Batch(
        torch.from_numpy(draws.integers(0, 256, (1, batch_size, *network.image_shape), dtype=np.uint8)),
        torch.from_numpy(draws.integers(0, classes, (1, batch_size))),
        torch.full((1, batch_size), 1 / batch_size),
        torch.zeros((1, batch_size), dtype=torch.int64),
        torch.zeros(1, dtype=torch.int64),
    )
    weights = {name: weight[None].clone() for name, weight in first.items()}
    sent = Sent({name: weight[None] for name, weight in first.items()}, own.init(first))

    def step() -> None:
        trained = {name: weight.detach().requires_grad_() for name, weight in weights.items()}
        losses, _ = own.objective(network, trained, sent, batch)
        gradients = torch.autograd.grad(losses.sum(), list(trained.values()), allow_unused=True)
        with torch.no_grad():
            for (name, weight), gradient in zip(weights.items(), gradients, strict=True):
                if gradient is not None:  # a frozen weight has none
                    weight.add_(gradient + own.pull * (weight - sent.weights[name]), alpha=-0.01)

    with one_thread_each():
        for _ in range(3):  # memory and kernels are found in the first steps
            step()
        return _fastest(step, repeats)


def selection_seconds(
    candidates: int,
    pick: int,
    solver: str = "gbp-cs",
    repeats: int = 11,
    *,
    classes: int = CLASSES,
    batch_size: int = 32,
) -> float:
    """Return the time of one selection among mini-batches drawn from some of the classes."""
    draws = stream(0, "selection-time")
    counts = draws.multinomial(batch_size, draws.dirichlet(np.full(classes, 0.3), size=candidates))
    problem = SelectionProblem(counts, np.full(classes, 1 / classes), pick)
    warm_up(solver, problem)
    return _fastest(lambda: solve(problem, solver), repeats)


def _fastest(action: Callable[[], object], repeats: int) -> float:
    times = []
    for _ in range(repeats):
        began = time.perf_counter()
        action()
        times.append(time.perf_counter() - began)
    return min(times)  # whatever else this machine does only makes it slower
