"""The oracle of local training: one device after the other, batch by batch, as the specification's A.1 has it.

No stack, no filling up, no buckets: each device's model alone, on mini-batches of their true sizes. Slow, and simple
enough to be right; :mod:`fedgs.training.stacked_clients` must equal it for every approach.
"""

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from fedgs.algorithms.baseline import Batch, Sent, cross_entropy
from fedgs.simulation.participants import FlatPlan
from fedgs.training.clipping import factor_of
from fedgs.training.stacked_clients import KEYS_A_STEP, LocalTraining, Trained
from fedgs.training.store import gpu_precision, one_thread_each


class OneByOne(LocalTraining):
    """Trains the participants of a round one after the other."""

    def train(self, sent: Sent, plan: FlatPlan, rate: float, tick: Callable[[float], None] | None = None) -> Trained:
        """Train all participants from what was sent."""
        stacked = self.layout.stacked(len(plan.devices), self.store.device)
        losses = np.full(plan.sizes.shape, np.nan)
        accuracies = np.zeros(len(plan.devices))
        with one_thread_each(), gpu_precision(self.precision):
            for place in range(len(plan.devices)):
                weights, losses[:, place], accuracies[place] = self._train_one(sent, plan, place, rate)
                for name, weight in weights.items():
                    stacked[name][place] = weight[0]
                if tick is not None:
                    tick(1 / len(plan.devices))
        return Trained(stacked, losses, None if self.approach.train_acc is None else accuracies)

    def _train_one(
        self, sent: Sent, plan: FlatPlan, place: int, rate: float
    ) -> tuple[dict[str, Tensor], np.ndarray, float]:
        weights = {name: weight.detach().clone() for name, weight in sent.weights.items()}
        velocity = {name: torch.zeros_like(weight) for name, weight in weights.items()}
        losses, steps = np.full(len(plan.sizes), np.nan), int(plan.steps[place])
        epoch = int(plan.epoch_steps[place])
        running = final = 0
        for step in range(steps):
            own = {name: weight.clone().requires_grad_() for name, weight in weights.items()}
            batch = self._batch(plan, place, step)
            loss, logits = self.approach.objective(self.network, own, sent, batch)
            gradients = torch.autograd.grad(loss.sum(), list(own.values()), allow_unused=True)
            losses[step] = float(cross_entropy(logits.detach(), batch))
            if step >= steps - epoch:
                running += int((logits.argmax(-1) == batch.labels).sum())
            factor = 1.0
            if self.clip is not None:
                factor = float(factor_of([gradient for gradient in gradients if gradient is not None], self.clip))
            for (name, weight), gradient in zip(weights.items(), gradients, strict=True):
                if gradient is not None:
                    velocity[name] = self.momentum * velocity[name] + factor * gradient
                    weights[name] = weight - rate * (
                        velocity[name] + self.approach.pull * (weight - sent.weights[name])
                    )
        for step in range(epoch if self.approach.train_acc == "final" else 0):
            batch = self._batch(plan, place, step)
            logits = self.approach.logits(self.network, weights, sent.memory, batch.images, batch.owners)
            final += int((logits.argmax(-1) == batch.labels).sum())
        hits = final if self.approach.train_acc == "final" else running
        return weights, losses, hits / int(plan.num_samples[place])

    def _batch(self, plan: FlatPlan, place: int, step: int) -> Batch:
        size, device = int(plan.sizes[step, place]), self.store.device
        places = torch.from_numpy(self.store.places(plan.samples[step, place, :size])).to(device)[None]
        images, labels = self.store.pixels(places)
        owner = int(self.owners[plan.devices[place]])
        return Batch(
            images,
            labels,
            torch.full((1, size), 1 / size, device=device),
            torch.full((1, size), owner, device=device),
            torch.tensor([int(plan.keys[place]) + KEYS_A_STEP * step], device=device),
        )
