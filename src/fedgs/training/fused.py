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

from dataclasses import replace

import torch
from torch import Tensor

from fedgs.training.engine import Engine, RoundInput, RoundResult, Setup
from fedgs.training.objective import Sent
from fedgs.training.optimizers import Optimizer
from fedgs.training.precision import Workers
from fedgs.training.round_plan import RoundPlan
from fedgs.training.step import descend, gradient_of, with_unused


class FactoryThreads(Engine):
    """Trains each factory in a thread, on union batches or device by device."""

    def __init__(self, setup: Setup, union: bool = True) -> None:
        self.setup, self.layout, self._union = setup, setup.network.layout, union
        self._optimizer = Optimizer.of(setup.training)
        self._local = torch.from_numpy(self.layout.local_places).to(setup.store.device)
        # Random numbers that no key can set come from one generator for all threads: then there is only one.
        threads = 1 if setup.traits.draws_elsewhere else setup.threads
        self._workers = Workers(setup.store.device, setup.training.precision, threads)

    def run(self, given: RoundInput) -> RoundResult:
        """Train every factory for a round."""
        result, sent = given.start(self.setup, self._optimizer)
        losses = torch.full(result.losses.shape, torch.nan, device=result.stations.device)

        def train(factory: int) -> None:
            self._train_factory(factory, given, result, losses[:, factory], sent)

        self._workers.each(train, range(len(result.stations)))
        return replace(result, losses=losses.double().cpu().numpy())

    def _train_factory(self, factory: int, given: RoundInput, result: RoundResult, losses: Tensor, sent: Sent) -> None:
        """Train one factory for a round; its parts of ``result`` and its ``losses`` are changed in place."""
        plan, station, local = given.plan, result.stations[factory], result.local
        memory = {entry: value[factory] for entry, value in result.memory.items()}
        setup, layout, optimizer = self.setup, self.layout, self._optimizer
        views = layout.one_client(station)
        trained = [view[0] for view in list(views.values())[: layout.trained]]
        held = {entry: list(layout.trained_views(memory[entry]).values()) for entry in optimizer.entries}
        start = [sent.weights[name][0] for name in layout.names[: layout.trained]]
        shared = [name not in layout.local for name in layout.names[: layout.trained]]
        share = 1.0 / plan.devices.shape[1]
        for iteration, rate in enumerate(given.rates.tolist()):
            if plan.sizes[iteration, factory].any():
                if self._union:
                    batch = setup.batch(plan, iteration, factory)
                    found = gradient_of(setup.network, setup.objective, views, layout.trained, sent, batch)
                    losses[iteration] = found.losses[0]
                    gradients = [None if value is None else value[0] for value in found.values]
                else:
                    gradients = self._summed(station, plan, iteration, factory, rate, sent, local, losses)
                gradients = with_unused(gradients, trained, optimizer, setup.objective.pull)
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
        layout = self.layout
        team = int(plan.sizes[iteration, factory].sum())
        total: list[Tensor | None] = [None] * layout.trained
        buffers = torch.zeros(layout.size - layout.trained_size, dtype=torch.float64, device=station.device)
        highest = torch.full_like(station[layout.float_size :], -torch.inf)
        loss = 0.0
        for size, flat, found in self.setup.each_device(plan, iteration, factory, station, sent, local):
            weight = size / team
            for number, value in enumerate(found.values):
                if value is not None:
                    before = total[number]
                    total[number] = value[0] * weight if before is None else before.add_(value[0], alpha=weight)
            for (name, view), value in zip(layout.trained_views(flat).items(), found.values, strict=True):
                if name in layout.local and value is not None:
                    view.sub_(value[0], alpha=rate)
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
        self._workers.close()
