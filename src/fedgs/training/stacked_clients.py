"""Local training of many clients at once: weights stacked, one step for all that are still busy.

For the built-in CNNs. Every participant has its own copy of the model, (P, …) a weight. Step s of the round is step s
of every client: one forward and one backward pass over the mini-batches of all who have that many, each client with its
own weights (:mod:`fedgs.training.stacked_layers`). They lie sorted by their number of steps, so the busy ones are the
first A of the stack, and a step costs nothing for those who are done. Short batches are filled up with samples of no
share, which is exact: such a sample's gradient is multiplied by 0.

On a GPU all participants are one stack (:mod:`fedgs.training.captured_clients`). On processors they are cut into
buckets of clients alike in size, and threads share out the buckets (:func:`bucket_size`); the cut does not depend on
the number of cores, so neither does any bit.

Memory: P copies of the model (they are the uploads: IDA needs no other room), as many of gradients on a GPU, and one
bucket of gradients a thread on processors. 100 clients and the paper's CNN: 2.64 GB of uploads.
"""

from collections.abc import Callable, Mapping
from types import MappingProxyType, ModuleType
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedgs.training import stacked_ops
from fedgs.training.clients import KEYS_A_STEP, ClientSetup, ClientTraining, Tick, Trained
from fedgs.training.deferred import DeferredLayer
from fedgs.training.objective import Batch, Sent
from fedgs.training.precision import Workers
from fedgs.training.round_plan import ClientPlan
from fedgs.training.stacked_layers import triton_kernels
from fedgs.training.step import clip_factors
from fedgs.training.store import SampleStore

CACHED_WEIGHTS = 750_000
"""A bucket has at most so many weights, or one client; beyond it a step leaves the caches."""
BUCKETS = 8
"""There are at least so many buckets, if there are so many clients: else cores would have nothing to do."""
NOTHING_DEFERRED: Mapping[str, DeferredLayer] = MappingProxyType({})
Memory = dict[str, dict[str, Tensor]]
"""What the clients' optimisers remember: (P, …) a weight, by entry."""


def bucket_size(clients: int, weights: int) -> int:
    """Return how many of a round's clients one thread of a processor trains together; ``weights``: of each."""
    return max(1, min(clients // BUCKETS, CACHED_WEIGHTS // weights))


class StackedTraining(ClientTraining):
    """Trains the participants of a round together."""

    def __init__(self, setup: ClientSetup) -> None:
        super().__init__(setup)
        self._workers = Workers(self.store.device, self.precision, setup.threads)
        self._ops: ModuleType = triton_kernels(self.store.device) or stacked_ops

    def train(
        self, sent: Sent, plan: ClientPlan, rate: float, tick: Tick | None = None, local: Tensor | None = None
    ) -> Trained:
        """Train all participants from what was sent."""
        device, (steps, count) = self.store.device, plan.sizes.shape
        stacked = self.layout.stacked(count, device)
        for name, weight in stacked.items():
            weight.copy_(sent.weights[name].expand_as(weight))
        losses = torch.full((steps, count), float("nan"), device=device)
        hits = torch.zeros(steps, count, device=device)
        final = torch.zeros(count, device=device)
        all_steps = max(int(plan.steps.sum()), 1)

        size = bucket_size(count, self.layout.size)

        def work(first: int) -> None:
            part = slice(first, min(first + size, count))
            self._train_bucket(
                sent, plan.only(np.arange(count)[part]), rate,
                {name: weight[part] for name, weight in stacked.items()},
                losses[:, part], hits[:, part], final[part],
                (lambda busy: tick(busy / all_steps)) if tick is not None else None,
            )  # fmt: skip

        self._workers.each(work, range(0, count, size))
        return Trained(
            stacked, losses.double().numpy(), self.accuracies(plan, *(one.double().numpy() for one in (hits, final)))
        )

    def close(self) -> None:
        """End the threads."""
        self._workers.close()

    def _train_bucket(
        self, sent: Sent, plan: ClientPlan, rate: float, weights: dict[str, Tensor],
        losses: Tensor, hits: Tensor, final: Tensor, tick: Callable[[float], None] | None,
    ) -> None:  # fmt: skip
        """Train some participants, in place."""
        memory = self.fresh_memory(weights)
        batches = Batches(self.store, plan, self.client_ids)
        rates = torch.full((len(plan.devices),), rate)
        for step in range(len(plan.sizes)):
            active = plan.active(step)
            if active == 0:
                break
            batch = batches.step(step, active)
            found, logits = self.descend(weights, memory, step + 1, sent, batch, rates[:active], active)
            losses[step, :active] = found
            if self.objective.train_acc == "running":
                hits[step, :active] = self.network.hits(logits, batch)
            if tick is not None:
                tick(float(active))
        if self.objective.train_acc == "final":
            self._final_hits(sent, plan, batches, weights, final)

    def fresh_memory(self, weights: Mapping[str, Tensor]) -> Memory:
        """Return what the clients' optimisers remember before their first step."""
        return {
            entry: {name: torch.zeros_like(weight) for name, weight in weights.items()}
            for entry in self.optimizer.entries
        }

    def descend(
        self, weights: dict[str, Tensor], memory: Memory, steps: Any, sent: Sent, batch: Batch, rates: Tensor,
        active: int, deferred: Mapping[str, DeferredLayer] = NOTHING_DEFERRED,
    ) -> tuple[Tensor, Tensor]:  # fmt: skip
        """Make step number ``steps`` of the first ``active`` clients, each with its own rate; losses and logits before
        it.

        The loss returned is the task's alone, whatever penalty the objective adds to it. Layers in ``deferred`` keep
        their steps to themselves for now.
        """
        # .data, because autograd would otherwise see other threads step down in their parts of the same tensor.
        own = {name: weight.data[:active].requires_grad_() for name, weight in weights.items() if name not in deferred}
        everything: dict[str, Any] = {**own, **deferred}
        losses, logits = self.objective.objective(self.network, everything, sent, batch)
        gradients = torch.autograd.grad(losses.sum(), list(own.values()), allow_unused=True)
        with torch.no_grad():
            factors = None
            if self.clip is not None:
                written = (gradient for gradient in gradients if gradient is not None)
                factors = clip_factors(written, self.clip, (layer.norms(active) for layer in deferred.values()))
            for name, gradient in zip(own, gradients, strict=True):
                if gradient is None:  # of a frozen weight
                    continue
                weight = own[name].detach()
                if factors is not None:
                    gradient = gradient * factors.view(-1, *[1] * (gradient.ndim - 1))
                direction = self._direction(name, gradient, weight, memory, steps, active)
                if direction.stride() != weight.stride():
                    direction = torch.empty_like(weight).copy_(direction)
                self._ops.step_down(weight, direction, sent.weights[name], rates, self.objective.pull)
            for layer in deferred.values():
                layer.step(rates, factors)
            return self.network.loss(logits, batch), logits.detach()

    def _direction(
        self, name: str, gradient: Tensor, weight: Tensor, memory: Memory, steps: Any, active: int
    ) -> Tensor:
        optimizer = self.optimizer
        if optimizer.plain:
            return gradient
        held = {entry: memory[entry][name][:active] for entry in optimizer.entries}
        if optimizer.name == "momentum" and not optimizer.weight_decay:  # in place: it is as large as the weights
            return held["velocity"].mul_(optimizer.momentum).add_(gradient)
        direction, new = optimizer.direction(gradient, weight, held, steps)
        for entry, value in new.items():
            held[entry].copy_(value)
        found: Tensor = direction
        return found

    @torch.no_grad()
    def _final_hits(
        self, sent: Sent, plan: ClientPlan, batches: "Batches", weights: dict[str, Tensor], final: Tensor
    ) -> None:
        """Add up how many training samples each finished model has right."""
        for step in range(int(plan.epoch_steps.max())):  # the batches of the first epoch are all the samples
            active = int((plan.epoch_steps > step).sum())
            batch = batches.step(step, active)
            own = {name: weight[:active] for name, weight in weights.items()}
            logits = self.objective.outputs(self.network, own, sent.memory, batch.inputs, batch.clients)
            final[:active] += self.network.hits(logits, batch)


class Batches:
    """The mini-batches of a round, where the training wants them."""

    def __init__(self, store: SampleStore, plan: ClientPlan, client_ids: NDArray[np.int64]) -> None:
        counting = plan.samples >= 0
        shares = counting / np.maximum(plan.sizes, 1)[..., None]
        device = store.device
        self._store = store
        self.places = torch.from_numpy(store.places(np.where(counting, plan.samples, 0))).to(device)
        """(S, P, B) where the samples lie; that of sample 0 beyond a batch's size."""
        self.shares = torch.from_numpy(shares.astype(np.float32)).to(device)
        """(S, P, B) 1/n for each sample of a batch, 0 beyond."""
        self.clients = torch.from_numpy(client_ids[plan.devices]).to(device)
        self.keys = torch.from_numpy(plan.keys).to(device)

    def step(self, step: int, active: int) -> Batch:
        """Return the batches of the first ``active`` clients."""
        places, shares = self.places[step, :active], self.shares[step, :active]
        images, labels = self._store.pixels(places)
        clients = self.clients[:active, None].expand(places.shape)
        return Batch(images, labels, shares, clients, self.keys[:active] + KEYS_A_STEP * step)
