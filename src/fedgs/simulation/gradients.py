"""δ and β of a run, measured at its model: the gradients that :mod:`fedgs.network.convergence` asks for.

Proposition 1 of FedGS compares, for the super node of factory m, three gradients at the same weights:

    P_m·g_m      of its own batch
    P_m·g_c      of all data, classes weighted as in that batch
    P_real·g_c   of all data

g_c has a row a class: the mean gradient over the train samples of that class, at most ``per_class`` of them drawn at
random. One pass over these samples gives all rows; every super node then costs its own batch and a product with them.
The rows take (classes × weights) float32: 1.6 GB for the paper's CNN. The batches are those the run's own selection
takes next. β is estimated between the weights and those one step of gradient descent further, on the same samples.
"""

import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedgs.data import Federation
from fedgs.data.arrays import map_tree
from fedgs.network.convergence import GradientDivergence, divergence_of_gradients, smoothness_estimate
from fedgs.rng import stream
from fedgs.tasks.bind import BoundTask
from fedgs.training.network import ModuleNetwork
from fedgs.training.precision import one_thread_each
from fedgs.training.round_plan import RoundPlan
from fedgs.training.store import SampleStore

BATCH = 256
"""Samples of one pass; a gradient does not depend on it but for rounding."""


@dataclass(frozen=True)
class Measured:
    """What the convergence bound needs to know of a run."""

    divergence: GradientDivergence
    """of every super node looked at"""
    smoothness: float
    """β"""
    gradient: float
    """‖P_real·g_c‖, the length of the gradient itself"""
    nodes: int
    """super nodes looked at"""
    samples: int
    """samples of all data looked at"""

    @property
    def delta(self) -> float:
        """δ."""
        return self.divergence.delta


class Gradients:
    """Gradients of a network's mean loss, flat; threads may take them side by side."""

    def __init__(self, task: BoundTask, device: torch.device) -> None:
        self.federation = task.federation
        self._store = SampleStore(task, device)
        self._network = ModuleNetwork(task, device, "float32")
        self.layout = self._network.layout

    def at(self, weights: Tensor, samples: NDArray[np.int64]) -> Tensor:
        """Return the gradient (trained weights,) of the mean loss over samples, in eval mode."""
        task, layout = self._store.task, self.layout
        views = {name: view[None] for name, view in layout.views(weights.detach()).items()}
        own = {name: views[name].clone().requires_grad_() for name in layout.names[: layout.trained]}
        total = torch.zeros(layout.trained_size, dtype=torch.float64, device=weights.device)
        for first in range(0, len(samples), BATCH):
            inputs, targets = self._store.batch(samples[first : first + BATCH])
            clients = torch.zeros((1, len(samples[first : first + BATCH])), dtype=torch.int64, device=weights.device)
            outputs = self._network({**views, **own}, map_tree(lambda value: value[None], inputs), clients)
            outputs = map_tree(lambda value: value[0], outputs)
            losses = task.loss(outputs, targets, inputs)
            found = torch.autograd.grad(losses.sum(), list(own.values()), allow_unused=True)
            flat = torch.zeros(layout.trained_size, device=weights.device)
            for view, gradient in zip(layout.trained_views(flat).values(), found, strict=True):
                if gradient is not None:
                    view.copy_(gradient[0])
            total += flat
        return (total / len(samples)).float()

    def of_each(self, weights: Tensor, sets: Sequence[NDArray[np.int64]]) -> Iterator[Tensor]:
        """Yield the gradient of each set of samples; on processors a thread a core takes them."""
        if self._store.device.type == "cuda":
            yield from (self.at(weights, samples) for samples in sets)
            return
        cores = os.cpu_count() or 1
        with one_thread_each(), ThreadPoolExecutor(cores, initializer=torch.set_num_threads, initargs=(1,)) as pool:
            for first in range(0, len(sets), cores):  # no more gradients in memory than there are cores
                yield from pool.map(lambda samples: self.at(weights, samples), sets[first : first + cores])


def measure(
    gradients: Gradients,
    weights: Tensor,
    plan: RoundPlan,
    iterations: Sequence[int],
    learning_rate: float,
    seed: int,
    per_class: int | None = 200,
) -> Measured:
    """Return δ over the super nodes of some iterations of a plan, and β, at these weights."""
    federation = gradients.federation
    labels, target = federation.labels, federation.p_real()
    class_wise = _samples_by_class(federation, seed, per_class)
    kinds, samples = list(class_wise), list(class_wise.values())
    size = gradients.layout.trained_size
    rows = torch.empty(len(kinds), size, device=weights.device)
    for row, gradient in zip(rows, gradients.of_each(weights, samples), strict=True):
        row.copy_(gradient)

    def mixed(shares: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the gradient of all data with these shares of the classes."""
        mixture: NDArray[np.float64] = (torch.from_numpy(shares[kinds]).to(rows) @ rows).double().cpu().numpy()
        return mixture

    central = mixed(target)
    nodes = [
        plan.union(iteration, factory)
        for iteration in iterations
        for factory in np.flatnonzero(plan.totals[iteration]).tolist()
    ]
    found = []
    for union, gradient in zip(nodes, gradients.of_each(weights, nodes), strict=True):
        shares = np.bincount(labels[union], minlength=len(target)) / len(union)
        own = gradient.double().cpu().numpy()
        found.append(divergence_of_gradients(own[None], mixed(shares)[None], central))
    further = weights.clone()
    further[:size] -= learning_rate * torch.from_numpy(central).to(weights)
    there = np.zeros(size)
    for kind, gradient in zip(kinds, gradients.of_each(further, samples), strict=True):
        there += target[kind] * gradient.double().cpu().numpy()
    return Measured(
        GradientDivergence(
            np.concatenate([one.actual for one in found]), np.concatenate([one.bounds for one in found])
        ),
        smoothness_estimate(
            central, there, weights[:size].double().cpu().numpy(), further[:size].double().cpu().numpy()
        ),
        float(np.linalg.norm(central)),
        len(nodes),
        sum(map(len, samples)),
    )


def _samples_by_class(federation: Federation, seed: int, per_class: int | None) -> dict[int, NDArray[np.int64]]:
    """Return train samples of every class there is, at most so many of each."""
    everything = np.asarray(federation.train.flat, dtype=np.int64)
    kinds = federation.labels[everything]
    found = {}
    for kind in np.unique(kinds).tolist():
        samples = everything[kinds == kind]
        if per_class is not None and len(samples) > per_class:
            samples = stream(seed, "gradients", kind).permutation(samples)[:per_class]
        found[int(kind)] = samples
    return found
