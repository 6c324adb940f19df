"""How long one local step and one selection take on this machine: T_comp and T_select of the time model.

Each is tried several times, and the fastest counts.
"""

import time
from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch.nn.functional import cross_entropy

from fedgs.rng import stream
from fedgs.selection import SelectionProblem, solve
from fedgs.selection.solve import warm_up
from fedgs.tasks.cnn import build_model
from fedgs.tasks.prepare import as_input
from fedgs.training.dropout import generator_kept
from fedgs.training.precision import one_thread_each

CLASSES = 62
REPEATS = 11


def step_seconds(
    model: str,
    classes: int = CLASSES,
    image_shape: Sequence[int] = (28, 28),
    batch_size: int = 32,
    repeats: int = REPEATS,
) -> float:
    """Return the time of one SGD step of a built-in network on one core of this machine."""
    draws = stream(0, "step-time")
    images = as_input(torch.from_numpy(draws.integers(0, 256, (batch_size, *image_shape), dtype=np.uint8)))
    labels = torch.from_numpy(draws.integers(0, classes, batch_size))
    network = build_model(model, classes, image_shape)
    optimizer = torch.optim.SGD(network.parameters(), lr=0.01)

    def step() -> None:
        optimizer.zero_grad()
        cross_entropy(network(images), labels).backward()  # type: ignore[no-untyped-call]
        optimizer.step()

    return fastest(step, repeats)


def selection_seconds(
    candidates: int,
    pick: int,
    solver: str = "gbp-cs",
    repeats: int = REPEATS,
    *,
    classes: int = CLASSES,
    batch_size: int = 32,
) -> float:
    """Return the time of one selection among mini-batches drawn from some of the classes."""
    draws = stream(0, "selection-time")
    counts = draws.multinomial(batch_size, draws.dirichlet(np.full(classes, 0.3), size=candidates))
    problem = SelectionProblem(counts, np.full(classes, 1 / classes), pick)
    warm_up(solver, problem)
    return fastest(lambda: solve(problem, solver), repeats)


def fastest(action: Callable[[], object], repeats: int = REPEATS) -> float:
    """Return the seconds of the fastest of several repeats, on one thread, after a few to get ready."""
    times = []
    with one_thread_each(), generator_kept():
        for _ in range(3):  # memory and kernels are found in the first ones
            action()
        for _ in range(repeats):
            began = time.perf_counter()
            action()
            times.append(time.perf_counter() - began)
    return min(times)  # whatever else this machine does only makes it slower
