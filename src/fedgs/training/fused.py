"""The fast path: one SGD step on the union batch of a super node.

All devices of a super node start from the same model and make one plain SGD step with the same learning rate, so

    Σ_k (n^{m,k} / n^m) (ω − η ∇L(ω; D^{m,k})) = ω − η ∇L(ω; ∪_k D^{m,k}) ,

where L is the mean over samples: the weights n^{m,k} / n^m and the means over n^{m,k} samples cancel to the mean over
the union, for unequal batches too. One forward and backward pass replaces L of them.

Factories do not meet within a round. On processors each trains its T iterations in a thread of its own, with
one thread inside; so the result does not depend on the number of cores. On a GPU they take turns here, and
:mod:`fedgs.training.graph` runs them side by side.
"""

import copy
import os
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from fedgs.settings import TrainingSettings
from fedgs.training.clipping import factor_of
from fedgs.training.engine import RoundResult, Tick
from fedgs.training.layout import Layout
from fedgs.training.round_plan import RoundPlan
from fedgs.training.store import ImageStore, gpu_precision, mixed_precision, one_thread_each


class FusedEngine:
    """Trains each factory on its union batches."""

    def __init__(
        self, model: nn.Module, store: ImageStore, training: TrainingSettings, threads: int | None = None
    ) -> None:
        """``threads``: how many factories at once on processors (default: one a core)."""
        self.store, self.training = store, training
        self.layout = Layout.of(model)
        self._template = model
        self._models: list[nn.Module] = []
        self._threads = threads or os.cpu_count() or 1
        self._pool: ThreadPoolExecutor | None = None

    def train_round(
        self,
        weights: Tensor,
        plan: RoundPlan,
        rates: NDArray[np.float64],
        momentum: Tensor | None = None,
        tick: Tick | None = None,
    ) -> RoundResult:
        """Train every factory for a round."""
        iterations, factories, _ = plan.devices.shape
        device = self.store.device
        stations = weights.to(device).repeat(factories, 1)
        velocity = None
        if self.training.momentum:
            velocity = torch.zeros_like(stations) if momentum is None else momentum.to(device).clone()
        losses = torch.full((iterations, factories), torch.nan, device=device)
        self._prepare(factories)

        def train(factory: int) -> None:
            mine = None if velocity is None else velocity[factory]
            self._train_factory(factory, stations[factory], plan, rates, mine, losses[:, factory], tick)

        if device.type == "cuda":
            with gpu_precision(self.training.precision):
                for factory in range(factories):
                    train(factory)
        else:
            with one_thread_each():
                for _ in self._workers().map(train, range(factories)):
                    pass
        return RoundResult(stations, losses.double().cpu().numpy(), velocity)

    def _prepare(self, factories: int) -> None:
        """Have a network for every factory; their weights are the factories' own."""
        while len(self._models) < factories:
            self._models.append(copy.deepcopy(self._template).to(self.store.device))

    def _workers(self) -> ThreadPoolExecutor:
        if self._pool is None:
            self._pool = ThreadPoolExecutor(
                self._threads, "fedgs-station", initializer=torch.set_num_threads, initargs=(1,)
            )
        return self._pool

    def _train_factory(
        self,
        factory: int,
        station: Tensor,
        plan: RoundPlan,
        rates: NDArray[np.float64],
        velocity: Tensor | None,
        losses: Tensor,
        tick: Tick | None,
    ) -> None:
        """Train one factory for a round; ``station``, ``velocity`` and ``losses`` are changed in place."""
        model = self._models[factory]
        self.layout.bind(model, station)
        parameters: list[Tensor] = list(model.parameters())
        velocities = None if velocity is None else list(self.layout.views(velocity).values())
        share = 1.0 / plan.devices.shape[1]
        mixed = mixed_precision(self.store.device, self.training.precision)
        for iteration, rate in enumerate(rates.tolist()):
            samples = plan.union(iteration, factory)
            if len(samples):
                images, labels = self.store.batch(samples)
                with mixed:
                    logits = plan.shifted(model(images).float(), iteration, factory)
                    loss = cross_entropy(logits, labels)
                gradients = torch.autograd.grad(loss, parameters)
                losses[iteration] = loss.detach()
                with torch.no_grad():
                    if self.training.clip is not None:
                        gradients = torch._foreach_mul(gradients, factor_of(gradients, self.training.clip))
                    if velocities is not None:
                        torch._foreach_mul_(velocities, self.training.momentum)
                        torch._foreach_add_(velocities, gradients)
                        torch._foreach_add_(parameters, velocities, alpha=-rate)
                    else:
                        torch._foreach_add_(parameters, gradients, alpha=-rate)
            if tick is not None:
                tick(share)

    def close(self) -> None:
        """Give the threads back."""
        if self._pool is not None:
            self._pool.shutdown()
            self._pool = None
