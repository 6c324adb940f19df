"""The oracle: every selected device by itself, as the paper has it.

Each device takes the station's model, makes one SGD step on its own mini-batch (eq. sgd), and the station averages
by batch size (eq. internal-aggr):

    ω^{m,k} = ω^m − η ∇L(ω^m; D^{m,k}) ,     ω^m ← Σ_k (n^{m,k} / n^m) ω^{m,k} ,

in float64 and in the order of the devices; buffers likewise, of whole numbers the greatest. Slow, and simple enough to
be right; the fast engines must equal it.

What is not in the paper is applied to the mean gradient ḡ = (ω^m − average) / η: clipping first, then the
station's optimiser (:mod:`fedgs.training.optimizers`), then an objective's pull towards the model the round began with.
What a device keeps to itself (``Task.keep_local``) it steps by itself and sends to nobody.
"""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedgs.tasks.build import generators_kept
from fedgs.training.engine import Engine, RoundInput, RoundResult, Setup
from fedgs.training.objective import Sent
from fedgs.training.optimizers import Optimizer
from fedgs.training.precision import gpu_precision, one_thread_each
from fedgs.training.round_plan import RoundPlan
from fedgs.training.step import clip_scale


class PerDeviceEngine(Engine):
    """Trains device by device, on any torch device."""

    def __init__(self, setup: Setup) -> None:
        self.setup, self.layout = setup, setup.network.layout
        self._optimizer = Optimizer.of(setup.training)
        self._averages = self._optimizer.plain and not setup.objective.pull and setup.training.clip is None
        """The average of the devices' models is the next model; nothing needs their mean gradient."""
        self._local = torch.from_numpy(self.layout.local_places).to(setup.store.device)

    def run(self, given: RoundInput) -> RoundResult:
        """Train the factories one after the other, and their devices one after the other."""
        plan, rates, start = given.plan, given.rates, given.weights.to(self.setup.store.device)
        # Batches of one device are too small to share out among cores; and so the number of cores changes no bit.
        with one_thread_each(), generators_kept(), gpu_precision(self.setup.training.precision):
            result, sent = given.start(self.setup, self._optimizer)
            for iteration in range(len(rates)):
                for factory, station in enumerate(result.stations):
                    if plan.sizes[iteration, factory].any():
                        found = self._average(station, plan, iteration, factory, rates, sent, result.local)
                        result.losses[iteration, factory] = found[2]
                        own = {entry: value[factory] for entry, value in result.memory.items()}
                        self._move(station, *found[:2], float(rates[iteration]), own, start)
                given.tick(1.0)
            return result

    def _average(
        self, station: Tensor, plan: RoundPlan, iteration: int, factory: int, rates: NDArray[np.float64], sent: Sent,
        local: Tensor | None,
    ) -> tuple[Tensor, Tensor, float]:  # fmt: skip
        """Return the means of the devices' models after their step, of their gradients, of their losses before it."""
        layout, rate = self.layout, float(rates[iteration])
        total = int(plan.sizes[iteration, factory].sum())
        average = torch.zeros(layout.size, dtype=torch.float64, device=station.device)
        mean = torch.zeros(layout.trained_size, dtype=torch.float64, device=station.device)
        highest = torch.full_like(station[layout.float_size :], -torch.inf)
        loss_sum = 0.0
        for size, flat, found in self.setup.each_device(plan, iteration, factory, station, sent, local):
            weights, gradients = layout.trained_views(flat).values(), layout.trained_views(mean).values()
            for weight, into, gradient in zip(weights, gradients, found.values, strict=True):
                if gradient is not None:
                    weight.sub_(gradient[0], alpha=rate)
                    if not self._averages:
                        into.add_(gradient[0], alpha=size / total)
            average.add_(flat, alpha=size / total)
            highest = torch.maximum(highest, flat[layout.float_size :])
            loss_sum += size * float(found.losses[0])
        result = average.float()
        result[layout.float_size :] = highest
        if local is not None:
            result[self._local] = station[self._local]
        return result, mean.float(), loss_sum / total

    def _move(
        self, station: Tensor, average: Tensor, gradient: Tensor, rate: float, memory: dict[str, Tensor], start: Tensor
    ) -> None:
        """Bring a station from where it is to the average, or to where its optimiser goes instead."""
        optimizer, clip, pull = self._optimizer, self.setup.training.clip, self.setup.objective.pull
        if self._averages:
            station.copy_(average)
            return
        size = self.layout.trained_size
        before = station[:size].clone()
        inside = self._local[self._local < size]
        gradient[inside] = 0.0  # a station knows nothing of what devices keep
        if clip is not None:
            gradient = gradient * clip_scale(gradient.norm(), clip)
        if optimizer.counts_steps:
            memory["steps"] += 1
        direction, new = optimizer.direction(gradient, before, memory, memory.get("steps", 0))
        for entry, value in new.items():
            memory[entry].copy_(value)
        if pull:
            direction = direction + pull * (before - start[:size])
        station.copy_(average)
        station[:size] = before - rate * direction
        station[inside] = before[inside]
