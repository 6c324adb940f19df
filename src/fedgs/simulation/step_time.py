"""How long one local step and one selection take on this machine: T_comp and T_select of the time model."""

import time
from collections.abc import Callable
from statistics import median

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from fedgs.rng import stream
from fedgs.selection import SelectionProblem, solve
from fedgs.selection.solve import warm_up

CLASSES = 62


def step_seconds(model: nn.Module, batch_size: int = 32, repeats: int = 11) -> float:
    """Return the median time of a forward pass, a backward pass and an SGD step on 28×28 images."""
    draws = stream(0, "step-time")
    images = torch.from_numpy(draws.random((batch_size, 1, 28, 28), dtype=np.float32))
    labels = torch.from_numpy(draws.integers(0, CLASSES, batch_size))
    parameters: list[Tensor] = list(model.parameters())

    def step() -> None:
        gradients = torch.autograd.grad(cross_entropy(model(images), labels), parameters)
        with torch.no_grad():
            torch._foreach_add_(parameters, gradients, alpha=-0.01)

    for _ in range(3):  # memory and kernels are found in the first steps
        step()
    return _median_seconds(step, repeats)


def selection_seconds(candidates: int, pick: int, solver: str = "gbp-cs", repeats: int = 11) -> float:
    """Return the median time of one selection among mini-batches of 32 samples drawn from 62 classes."""
    draws = stream(0, "selection-time")
    counts = draws.multinomial(32, draws.dirichlet(np.full(CLASSES, 0.3), size=candidates))
    problem = SelectionProblem(counts, np.full(CLASSES, 1 / CLASSES), pick)
    warm_up(solver, problem)
    return _median_seconds(lambda: solve(problem, solver), repeats)


def _median_seconds(action: Callable[[], object], repeats: int) -> float:
    times = []
    for _ in range(repeats):
        began = time.perf_counter()
        action()
        times.append(time.perf_counter() - began)
    return median(times)
