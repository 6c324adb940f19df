"""The oracle: every selected device by itself, as the paper has it.

Each device takes the station's model, makes one SGD step on its own mini-batch (eq. sgd), and the station averages
by batch size (eq. internal-aggr):

    ω^{m,k} = ω^m − η ∇L(ω^m; D^{m,k}) ,     ω^m ← Σ_k (n^{m,k} / n^m) ω^{m,k} ,

in float64 and in the order of the devices. Slow, and simple enough to be right; the fast engines must equal it.

Station momentum (not in the paper) is applied to what the average moved by: with ḡ = (ω^m − average) / η,
velocity ← μ · velocity + ḡ and ω^m ← ω^m − η · velocity. So is clipping (:mod:`fedgs.training.clipping`), before momentum.
"""

import copy

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from fedgs.settings import TrainingSettings
from fedgs.training.clipping import shortened
from fedgs.training.engine import RoundResult, Tick
from fedgs.training.layout import Layout
from fedgs.training.round_plan import RoundPlan
from fedgs.training.store import ImageStore, gpu_precision, one_thread_each


class PerDeviceEngine:
    """Trains device by device, on any torch device."""

    def __init__(self, model: nn.Module, store: ImageStore, training: TrainingSettings) -> None:
        self.store, self.training = store, training
        self.layout = Layout.of(model)
        self._flat = torch.zeros(self.layout.size, device=store.device)
        self._model = copy.deepcopy(model).to(store.device)
        self.layout.bind(self._model, self._flat)
        self._parameters = list(self._model.parameters())

    def train_round(
        self,
        weights: Tensor,
        plan: RoundPlan,
        rates: NDArray[np.float64],
        momentum: Tensor | None = None,
        tick: Tick | None = None,
    ) -> RoundResult:
        """Train the factories one after the other, and their devices one after the other."""
        # Batches of one device are too small to share out among cores; and so the number of cores changes no bit.
        with one_thread_each(), gpu_precision(self.training.precision):
            return self._train_round(weights, plan, rates, momentum, tick)

    def _train_round(
        self, weights: Tensor, plan: RoundPlan, rates: NDArray[np.float64], momentum: Tensor | None, tick: Tick | None
    ) -> RoundResult:
        iterations, factories, _ = plan.devices.shape
        stations = weights.to(self.store.device).repeat(factories, 1)
        velocity = None
        if self.training.momentum:
            velocity = torch.zeros_like(stations) if momentum is None else momentum.to(stations.device).clone()
        losses = np.full((iterations, factories), np.nan)
        for iteration in range(iterations):
            for factory in range(factories):
                if not plan.sizes[iteration, factory].any():
                    continue
                rate = float(rates[iteration])
                average, losses[iteration, factory] = self._step(stations[factory], plan, iteration, factory, rate)
                if self.training.clip is not None and rate > 0:
                    moved = average - stations[factory]
                    average = stations[factory] + moved * shortened(moved.norm() / rate, self.training.clip)
                if velocity is None:
                    stations[factory] = average
                else:
                    velocity[factory].mul_(self.training.momentum).add_((stations[factory] - average) / rate)
                    stations[factory].sub_(velocity[factory], alpha=rate)
            if tick is not None:
                tick(1.0)
        return RoundResult(stations, losses, velocity)

    def _step(
        self, station: Tensor, plan: RoundPlan, iteration: int, factory: int, rate: float
    ) -> tuple[Tensor, float]:
        """Return the station's average and the loss of one iteration in one factory."""
        total = int(plan.sizes[iteration, factory].sum())
        average = torch.zeros(self.layout.size, dtype=torch.float64, device=station.device)
        loss_sum = 0.0
        for place in np.flatnonzero(plan.sizes[iteration, factory]):
            size = int(plan.sizes[iteration, factory, place])
            samples = plan.samples[iteration, factory, place, :size].astype(np.int64)
            images, labels = self.store.batch(samples)
            self._flat.copy_(station)
            loss = cross_entropy(plan.shifted(self._model(images), iteration, factory), labels)
            gradients = torch.autograd.grad(loss, self._parameters)
            with torch.no_grad():
                for parameter, gradient in zip(self._parameters, gradients, strict=True):
                    parameter.sub_(gradient, alpha=rate)
            average.add_(self._flat, alpha=size / total)
            loss_sum += size * float(loss.detach())
        return average.float(), loss_sum / total

    def close(self) -> None:
        """Nothing to give back."""
