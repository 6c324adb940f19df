"""δ and β of a run, measured at its model: the gradients that :mod:`fedgs.network.divergence` asks for.

Proposition 1 of FedGS compares, for the super node of factory m, three gradients at the same weights:

    P_m·g_m      of its own batch
    P_m·g_c      of all data, classes weighted as in that batch
    P_real·g_c   of all data

g_c has a row a class: the mean gradient over the train samples of that class, at most ``per_class`` of them drawn at
random. One pass over these samples gives all rows; every super node then costs its own batch and a product with them.
The rows take (classes × weights) float32: 1.6 GB for the paper's CNN. The batches are those the run's own selection
takes next. β is estimated between the weights and those one step of gradient descent further, on the same samples.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import cross_entropy

from fedgs.config import Settings
from fedgs.data import Federation
from fedgs.models import build_model
from fedgs.network.divergence import GradientDivergence, divergence_of_gradients, smoothness_estimate
from fedgs.rng import stream
from fedgs.simulation.images import ImageStore
from fedgs.simulation.layout import Layout
from fedgs.simulation.round_plan import RoundPlan

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
    """Gradients of a model's mean cross-entropy, flat."""

    def __init__(self, settings: Settings, federation: Federation, device: torch.device) -> None:
        training = settings.training
        self.federation = federation
        self._store = ImageStore(federation, device)
        self._model = build_model(training.model, len(federation.classes), federation.images.shape[1:], settings.seed)
        self._model.to(device)
        self.layout = Layout.of(self._model)
        self._flat = torch.zeros(self.layout.size, device=device)
        self.layout.bind(self._model, self._flat)

    def at(self, weights: Tensor, samples: NDArray[np.int64]) -> Tensor:
        """Return the gradient (weights,) of the mean loss over samples."""
        self._flat.copy_(weights)
        parameters = list(self._model.parameters())
        total = torch.zeros_like(self._flat, dtype=torch.float64)
        for first in range(0, len(samples), BATCH):
            images, labels = self._store.batch(samples[first : first + BATCH])
            loss = cross_entropy(self._model(images), labels, reduction="sum")
            found = torch.autograd.grad(loss, parameters)
            total += self.layout.flatten(dict(zip(self.layout.names, found, strict=True)), torch.empty_like(self._flat))
        return (total / len(samples)).float()


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
    by_class = _samples_by_class(federation, seed, per_class)
    rows = torch.stack([gradients.at(weights, samples) for samples in by_class.values()])
    kinds = list(by_class)

    def mixed(shares: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the gradient of all data with these shares of the classes."""
        share = torch.from_numpy(shares[kinds]).to(rows)
        mixture: NDArray[np.float64] = (share @ rows).double().cpu().numpy()
        return mixture

    central = mixed(target)
    actual, bounds = [], []
    for iteration in iterations:
        for factory in np.flatnonzero(plan.totals[iteration]).tolist():
            union = plan.union(iteration, factory)
            shares = np.bincount(labels[union], minlength=len(target)) / len(union)
            own = gradients.at(weights, union).double().cpu().numpy()
            found = divergence_of_gradients(own[None], mixed(shares)[None], central)
            actual.append(found.actual)
            bounds.append(found.bounds)
    further = weights - learning_rate * torch.from_numpy(central).to(weights)
    there = sum(target[kind] * gradients.at(further, by_class[kind]).double().cpu().numpy() for kind in kinds)
    return Measured(
        GradientDivergence(np.concatenate(actual), np.concatenate(bounds)),
        smoothness_estimate(central, there, weights.double().cpu().numpy(), further.double().cpu().numpy()),
        float(np.linalg.norm(central)),
        len(bounds),
        sum(len(samples) for samples in by_class.values()),
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
