"""Local training of many devices at once: weights stacked, one step for all that are still busy.

Every participant has its own copy of the model, (P, …) a weight. Step s of the round is step s of every device: one
forward and one backward pass over the mini-batches of all who have that many, each device with its own weights
(:mod:`fedgs.training.stacked_layers`). They lie sorted by their number of steps, so the busy ones are the first A of the stack,
and a step costs nothing for those who are done. Short batches are filled up with samples of no share, which is exact:
such a sample's gradient is multiplied by 0.

On a GPU all participants are one stack (:mod:`fedgs.training.captured_clients`). On processors they are cut into
buckets of ``BUCKET`` devices alike in size, and threads share out the buckets; the cut does not depend on the number of
cores, so neither does any bit.

Memory: P copies of the model (they are the uploads: IDA needs no other room), as many of gradients on a GPU, and one
bucket of gradients a thread on processors. 100 devices and the paper's CNN: 2.64 GB of uploads.
"""

import os
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from types import MappingProxyType, ModuleType
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedgs.algorithms.baseline import Approach, Batch, Sent, cross_entropy
from fedgs.simulation.participants import FlatPlan
from fedgs.training import stacked_ops
from fedgs.training.clipping import factors_of
from fedgs.training.deferred import PutOff
from fedgs.training.layout import Layout
from fedgs.training.stacked_layers import triton_kernels
from fedgs.training.stacked_networks import Network
from fedgs.training.store import ImageStore, one_thread_each

BUCKET = 12
"""Devices trained together by one thread of a processor; beyond it a step leaves the caches."""
NOTHING: Mapping[str, PutOff] = MappingProxyType({})
KEYS_A_STEP = 16
"""Random numbers a step may use."""


@dataclass(frozen=True)
class Trained:
    """What the participants of a round have come to, in the order of the plan."""

    weights: dict[str, Tensor]
    """(P, …) each: their models."""
    losses: NDArray[np.float64]
    """(S, P) cross-entropy of each step, before it; NaN where there was none."""
    accuracies: NDArray[np.float64] | None
    """(P,) training accuracies, where the approach asks for them."""


class LocalTraining:
    """Trains the participants of a round together."""

    def __init__(
        self,
        network: Network,
        approach: Approach,
        layout: Layout,
        store: ImageStore,
        owners: NDArray[np.int64],
        momentum: float = 0.0,
        precision: str = "tf32",
        threads: int | None = None,
        *,
        clip: float | None = None,
    ) -> None:
        """``owners`` are the devices' numbers as the network knows them.

        ``momentum`` and ``clip`` (:mod:`fedgs.training.clipping`) are of each device's own steps.
        """
        self.network, self.approach, self.layout, self.store = network, approach, layout, store
        self.owners, self.momentum, self.clip, self.precision = owners, momentum, clip, precision
        self._threads = threads or os.cpu_count() or 1
        self._ops: ModuleType = triton_kernels(store.device) or stacked_ops

    def train(self, sent: Sent, plan: FlatPlan, rate: float, tick: Callable[[float], None] | None = None) -> Trained:
        """Train all participants from what was sent, with one learning rate; ``tick`` is told shares of the whole."""
        device, (steps, count) = self.store.device, plan.sizes.shape
        stacked = self.layout.stacked(count, device)
        for name, weight in stacked.items():
            weight.copy_(sent.weights[name].expand_as(weight))
        losses = torch.full((steps, count), float("nan"), device=device)
        hits = torch.zeros(steps, count, device=device)
        final = torch.zeros(count, device=device)
        all_steps = max(int(plan.steps.sum()), 1)

        def work(first: int) -> None:
            part = slice(first, min(first + BUCKET, count))
            self._train_bucket(
                sent, plan.only(np.arange(count)[part]), rate,
                {name: weight[part] for name, weight in stacked.items()},
                losses[:, part], hits[:, part], final[part],
                (lambda busy: tick(busy / all_steps)) if tick is not None else None,
            )  # fmt: skip

        with (
            one_thread_each(),
            ThreadPoolExecutor(self._threads, initializer=torch.set_num_threads, initargs=(1,)) as pool,
        ):
            list(pool.map(work, range(0, count, BUCKET)))
        return Trained(stacked, losses.double().numpy(), self._accuracies(plan, hits, final))

    def _train_bucket(
        self, sent: Sent, plan: FlatPlan, rate: float, weights: dict[str, Tensor],
        losses: Tensor, hits: Tensor, final: Tensor, tick: Callable[[float], None] | None,
    ) -> None:  # fmt: skip
        batches = Batches(self.store, plan, self.owners)
        velocity = {name: torch.zeros_like(weight) for name, weight in weights.items()} if self.momentum else None
        rates = torch.full((len(plan.devices),), rate)
        for step in range(len(plan.sizes)):
            active = plan.active(step)
            if active == 0:
                break
            batch = batches.step(step, active)
            found, logits = self.descend(weights, velocity, sent, batch, rates[:active], active)
            losses[step, :active] = found
            if self.approach.train_acc == "running":
                hits[step, :active] = count_hits(logits, batch)
            if tick is not None:
                tick(float(active))
        if self.approach.train_acc == "final":
            self._final_hits(sent, plan, batches, weights, final)

    def descend(
        self, weights: dict[str, Tensor], velocity: dict[str, Tensor] | None,
        sent: Sent, batch: Batch, rates: Tensor, active: int, put_off: Mapping[str, PutOff] = NOTHING,
    ) -> tuple[Tensor, Tensor]:  # fmt: skip
        """Make one step of the first ``active`` devices, each with its own rate; their losses and logits before it.

        A loss that is told is the cross-entropy alone, whatever penalty the approach adds to it. Layers in ``put_off``
        keep their steps to themselves for now.
        """
        # .data, because autograd would otherwise see other threads step down in their parts of the same tensor.
        own = {name: weight.data[:active].requires_grad_() for name, weight in weights.items() if name not in put_off}
        everything: dict[str, Any] = {**own, **put_off}
        losses, logits = self.approach.objective(self.network, everything, sent, batch)
        gradients = torch.autograd.grad(losses.sum(), list(own.values()), allow_unused=True)
        with torch.no_grad():
            factors = None
            if self.clip is not None:
                written = (gradient for gradient in gradients if gradient is not None)
                factors = factors_of(written, self.clip, (layer.norms(active) for layer in put_off.values()))
            for name, gradient in zip(own, gradients, strict=True):
                if gradient is None:  # of a frozen weight
                    continue
                weight = own[name].detach()
                if factors is not None:
                    gradient = gradient * factors.view(-1, *[1] * (gradient.ndim - 1))
                if velocity is not None:
                    gradient = velocity[name][:active].mul_(self.momentum).add_(gradient)
                elif gradient.stride() != weight.stride():
                    gradient = torch.empty_like(weight).copy_(gradient)
                self._ops.step_down(weight, gradient, sent.weights[name], rates, self.approach.pull)
            for layer in put_off.values():
                layer.step(rates, factors)
            return cross_entropy(logits, batch), logits.detach()

    @torch.no_grad()
    def _final_hits(
        self, sent: Sent, plan: FlatPlan, batches: "Batches", weights: dict[str, Tensor], final: Tensor
    ) -> None:
        """Add up how many training samples each finished model has right."""
        for step in range(int(plan.epoch_steps.max())):  # the batches of the first epoch are all the samples
            active = int((plan.epoch_steps > step).sum())
            batch = batches.step(step, active)
            own = {name: weight[:active] for name, weight in weights.items()}
            logits = self.approach.logits(self.network, own, sent.memory, batch.images, batch.owners)
            final[:active] += count_hits(logits, batch)

    def close(self) -> None:
        """Nothing to give back."""

    def _accuracies(self, plan: FlatPlan, hits: Tensor, final: Tensor) -> NDArray[np.float64] | None:
        if self.approach.train_acc is None:
            return None
        if self.approach.train_acc == "final":
            return final.double().cpu().numpy() / plan.num_samples
        every = hits.double().cpu().numpy()
        last = [every[n - e : n, k].sum() for k, (n, e) in enumerate(zip(plan.steps, plan.epoch_steps, strict=True))]
        return np.array(last) / plan.num_samples


class Batches:
    """The mini-batches of a round, where the training wants them."""

    def __init__(self, store: ImageStore, plan: FlatPlan, owners: NDArray[np.int64]) -> None:
        counting = plan.samples >= 0
        shares = counting / np.maximum(plan.sizes, 1)[..., None]
        device = store.device
        self._store = store
        self.places = torch.from_numpy(store.places(np.where(counting, plan.samples, 0))).to(device)
        """(S, P, B) where the samples lie; that of sample 0 beyond a batch's size."""
        self.shares = torch.from_numpy(shares.astype(np.float32)).to(device)
        """(S, P, B) 1/n for each sample of a batch, 0 beyond."""
        self.owners = torch.from_numpy(owners[plan.devices]).to(device)
        self.keys = torch.from_numpy(plan.keys).to(device)

    def step(self, step: int, active: int) -> Batch:
        """Return the batches of the first ``active`` devices."""
        places, shares = self.places[step, :active], self.shares[step, :active]
        images, labels = self._store.pixels(places)
        owners = self.owners[:active, None].expand(places.shape)
        return Batch(images, labels, shares, owners, self.keys[:active] + KEYS_A_STEP * step)


def count_hits(logits: Tensor, batch: Batch) -> Tensor:
    """Return how many samples of each device were right."""
    right = (logits.argmax(-1) == batch.labels) & (batch.shares > 0)
    return right.sum(1).to(torch.float32)
