"""The fast path on processors: the factories of a round in threads.

All devices of a super node start from the same model and make one plain SGD step with the same learning rate, so

    Σ_k (n^{m,k} / n^m) (ω − η ∇L(ω; D^{m,k})) = ω − η ∇L(ω; ∪_k D^{m,k}) ,

where L is the mean over samples: the weights n^{m,k} / n^m and the means over n^{m,k} samples cancel to the mean over
the union, for unequal batches too. One forward and backward pass replaces L of them (``union``). Where samples of a
batch are not independent of each other, or devices keep weights of their own, each device has its own pass and the
station adds up what they give.

Factories do not meet within a round. Each trains its T iterations in a thread of its own, with one thread inside; so
the result does not depend on the number of cores. On a GPU they take turns here, and :mod:`fedgs.training.graph` runs
them side by side.
"""

import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from fedgs.training.batches import one_client, union
from fedgs.training.dropout import generator_kept
from fedgs.training.engine import Engine, RoundInput, RoundResult, Setup
from fedgs.training.objective import Sent
from fedgs.training.optimizers import Optimizer
from fedgs.training.precision import gpu_precision, one_thread_each
from fedgs.training.round_plan import RoundPlan
from fedgs.training.step import descend, gradient_of


class FactoryThreads(Engine):
    """Trains each factory in a thread, on union batches or device by device."""

    def __init__(self, setup: Setup, union: bool = True) -> None:
        self.setup, self.layout, self._union = setup, setup.network.layout, union
        self._optimizer = Optimizer.of(setup.training)
        self._local = torch.from_numpy(self.layout.local_places).to(setup.store.device)
        # Random numbers that no key can set come from one generator for all threads: then there is only one.
        alone = setup.traits.draws_elsewhere
        self._threads = 1 if alone else setup.threads or os.cpu_count() or 1
        self._pool: ThreadPoolExecutor | None = None

    def run(self, given: RoundInput) -> RoundResult:
        """Train every factory for a round."""
        result, sent = given.start(self.setup, self._optimizer)
        losses = torch.full(result.losses.shape, torch.nan, device=result.stations.device)

        def train(factory: int) -> None:
            self._train_factory(factory, given, result, losses[:, factory], sent)

        if self.setup.store.device.type == "cuda":
            with gpu_precision(self.setup.training.precision):
                for factory in range(len(result.stations)):
                    train(factory)
        else:
            with one_thread_each(), generator_kept():
                for _ in self._workers().map(train, range(len(result.stations))):
                    pass
        return replace(result, losses=losses.double().cpu().numpy())

    def _workers(self) -> ThreadPoolExecutor:
        if self._pool is None:
            self._pool = ThreadPoolExecutor(
                self._threads, "fedgs-station", initializer=torch.set_num_threads, initargs=(1,)
            )
        return self._pool

    def _train_factory(self, factory: int, given: RoundInput, result: RoundResult, losses: Tensor, sent: Sent) -> None:
        """Train one factory for a round; its parts of ``result`` and its ``losses`` are changed in place."""
        plan, station, local = given.plan, result.stations[factory], result.local
        memory = {entry: value[factory] for entry, value in result.memory.items()}
        setup, layout, optimizer = self.setup, self.layout, self._optimizer
        views = {name: view[None] for name, view in layout.views(station).items()}
        trained = [view[0] for view in list(views.values())[: layout.trained]]
        held = {entry: list(layout.trained_views(memory[entry]).values()) for entry in optimizer.entries}
        start = [sent.weights[name][0] for name in layout.names[: layout.trained]]
        shared = [name not in layout.local for name in layout.names[: layout.trained]]
        share = 1.0 / plan.devices.shape[1]
        for iteration, rate in enumerate(given.rates.tolist()):
            if plan.sizes[iteration, factory].any():
                if self._union:
                    batch = union(setup, plan, iteration, factory)
                    assert batch is not None
                    found = gradient_of(setup.network, setup.objective, views, layout.trained, sent, batch)
                    losses[iteration] = found.losses[0]
                    gradients = [None if value is None else value[0] for value in found.values]
                else:
                    gradients = self._summed(station, plan, iteration, factory, rate, sent, local, losses)
                if optimizer.counts_steps:
                    memory["steps"] += 1
                if local is not None:
                    gradients = [value if here else None for value, here in zip(gradients, shared, strict=True)]
                descend(
                    trained, gradients, rate, optimizer, held, memory.get("steps", 0), setup.training.clip,
                    setup.objective.pull, start,
                )  # fmt: skip
            given.tick(share)

    def _summed(
        self, station: Tensor, plan: RoundPlan, iteration: int, factory: int, rate: float, sent: Sent,
        local: Tensor | None, losses: Tensor,
    ) -> list[Tensor | None]:  # fmt: skip
        """Return the mean gradient of a team, device by device; the station's buffers become the mean of theirs."""
        setup, layout = self.setup, self.layout
        sizes = plan.sizes[iteration, factory]
        total: list[Tensor | None] = [None] * layout.trained
        buffers = torch.zeros(layout.size - layout.trained_size, dtype=torch.float64, device=station.device)
        highest = torch.full_like(station[layout.float_size :], -torch.inf)
        loss = 0.0
        for place in np.flatnonzero(sizes).tolist():
            device, weight = int(plan.devices[iteration, factory, place]), float(sizes[place] / sizes.sum())
            flat = station.clone()
            if local is not None:
                flat[self._local] = local[device]
            views = {name: view[None] for name, view in layout.views(flat).items()}
            batch = one_client(setup, plan, iteration, factory, place)
            found = gradient_of(setup.network, setup.objective, views, layout.trained, sent, batch)
            for number, value in enumerate(found.values):
                if value is not None:
                    before = total[number]
                    total[number] = value[0] * weight if before is None else before.add_(value[0], alpha=weight)
            if local is not None:
                with torch.no_grad():
                    for name, value in zip(layout.names, found.values, strict=False):
                        if name in layout.local and value is not None:
                            views[name].sub_(value, alpha=rate)
                local[device] = flat[self._local]
            buffers.add_(flat[layout.trained_size :], alpha=weight)
            highest = torch.maximum(highest, flat[layout.float_size :])
            loss += weight * float(found.losses[0])
        kept = station[self._local].clone()
        station[layout.trained_size :] = buffers.float()
        station[layout.float_size :] = highest
        station[self._local] = kept
        losses[iteration] = loss
        return total

    def close(self) -> None:
        """Give the threads back."""
        if self._pool is not None:
            self._pool.shutdown()
            self._pool = None
