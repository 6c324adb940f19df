"""Local training on a GPU without the processor in its way: the step of A devices is a captured graph.

A round is some sixty steps of a few milliseconds, and launching their kernels one by one takes as long as computing
them. So the step of the first A devices is captured once for A = P, P − 4, P − 8, … and replayed for the whole run.
Before each replay the step's batches are copied to where the graph reads them. With A rounded up to the next such
number, up to three devices that are done take part with nothing: no shares, a learning rate of 0.

Updates of large dense layers are deferred and written every few steps, to spare the GPU the traffic of their weights
(:mod:`fedgs.training.deferred`); not so with momentum, whose velocity is as large as the weights.

Without a GPU the same step runs as it stands: that is how it is tested.
"""

from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor

from fedgs.training.captured import capture
from fedgs.training.clients import KEYS_A_STEP, Tick, Trained
from fedgs.training.deferred import DeferredLayer
from fedgs.training.objective import Batch, Sent
from fedgs.training.precision import gpu_precision
from fedgs.training.round_plan import ClientPlan
from fedgs.training.slots import copy_memory, graph_numbers, map_memory
from fedgs.training.stacked_clients import Batches, StackedTraining

GRAPH_SPACING = 4
"""Devices between two graphs."""
MOST_DEFERRED = 8
"""Deferred steps before they are written: more need more memory, fewer write the weights more often."""
LARGE = 1 << 21
"""Weights of a dense layer from which on its updates are deferred."""


class CapturedTraining(StackedTraining):
    """Trains the participants of a round together, replaying graphs."""

    _buffers: "_GraphBuffers | None" = None
    large = LARGE

    def train(
        self, sent: Sent, plan: ClientPlan, rate: float, tick: Tick | None = None, local: Tensor | None = None
    ) -> Trained:
        """Train all participants from what was sent; the weights returned live until the next round is trained."""
        steps, count = plan.sizes.shape
        on_gpu = self.store.device.type == "cuda"
        with gpu_precision(self.precision) if on_gpu else nullcontext():
            numbers = graph_numbers(self.objective, sent)
            size = (count, plan.samples.shape[2])
            if self._buffers is None or (self._buffers.size, self._buffers.numbers) != (size, numbers):
                self._buffers = None  # its memory goes back first
                self._buffers = _GraphBuffers(self, sent, count, plan.samples.shape[2])
            buffers = self._buffers
            buffers.begin(sent, rate)
            batches = Batches(self.store, plan, self.client_ids)
            losses = torch.full((steps, count), float("nan"), device=self.store.device)
            hits = torch.zeros(steps, count, device=self.store.device)
            for step in range(steps):
                active = plan.active(step)
                if active == 0:
                    break
                buffers.load(batches, step)
                buffers.step(active)
                losses[step, :active] = buffers.losses[:active]
                hits[step, :active] = buffers.hits[:active]
            buffers.flush()
            final = torch.zeros(count, device=self.store.device)
            if self.objective.train_acc == "final":
                self._final_hits(buffers.sent, plan, batches, buffers.weights, final)
            told, hit, right = (one.double().cpu().numpy() for one in (losses, hits, final))
            trained = Trained(buffers.weights, told, self.accuracies(plan, hit, right))
        if tick is not None:
            tick(1.0)
        return trained

    def close(self) -> None:
        """Give the graphs and their memory back."""
        self._buffers = None


class _GraphBuffers:
    """Where the graphs of one shape read and write: weights, what was sent, the batches of a step."""

    def __init__(self, training: CapturedTraining, sent: Sent, count: int, batch: int) -> None:
        self.size, self.numbers = (count, batch), graph_numbers(training.objective, sent)
        device = training.store.device
        self._training = training
        self.weights = training.layout.stacked(count, device)
        self._memory = training.fresh_memory(self.weights)
        self._number = torch.zeros(1, device=device)
        """Of the step, counted from 1: for the optimisers."""
        memory = map_memory(torch.clone, sent.memory)
        self.sent = Sent({name: torch.empty_like(weight) for name, weight in sent.weights.items()}, memory)
        self._deferred = self._large_layers(batch)
        self._kept, self._first = 0, 0
        """Uses of these layers since they were written, and by how many devices at first."""
        self.losses, self.hits = torch.zeros(count, device=device), torch.zeros(count, device=device)
        self._rate = torch.zeros(1, device=device)
        self._places = torch.zeros(count, batch, dtype=torch.int64, device=device)
        self._shares = torch.zeros(count, batch, device=device)
        self._clients = torch.zeros(count, 1, dtype=torch.int64, device=device)
        self._keys = torch.zeros(count, dtype=torch.int64, device=device)
        self._graphs: dict[int, torch.cuda.CUDAGraph] = {}
        stream: Any = torch.cuda.Stream
        # One stream and one pool for all captures, or each would keep memory of its own.
        self._side = stream(device) if device.type == "cuda" else None
        self._pool: Any = None

    def _large_layers(self, batch: int) -> dict[str, DeferredLayer]:
        training = self._training
        if not training.optimizer.plain or training.objective.reads_weights:
            return {}
        return {
            name: DeferredLayer(weight, MOST_DEFERRED, batch, training.network.dtype, training.objective.pull)
            for name, weight in self.weights.items()
            if name.endswith(".weight") and weight.ndim == 3 and weight[0].numel() >= training.large
        }

    def begin(self, sent: Sent, rate: float) -> None:
        """Start all devices from what was sent."""
        for name, weight in sent.weights.items():
            self.sent.weights[name].copy_(weight)
            self.weights[name].copy_(weight.expand_as(self.weights[name]))
        copy_memory(sent.memory, self.sent.memory)  # type: ignore[arg-type]
        self._rate.fill_(rate)
        for held in self._memory.values():
            for value in held.values():
                value.zero_()
        for name, layer in self._deferred.items():
            layer.begin(sent.weights[name][0])
        self._kept = 0

    def load(self, batches: Batches, step: int) -> None:
        """Put the batches of a step where the graphs read them."""
        self._places.copy_(batches.places[step])
        self._shares.copy_(batches.shares[step])
        self._clients.copy_(batches.clients[:, None])
        torch.add(batches.keys, KEYS_A_STEP * step, out=self._keys)
        self._number.fill_(step + 1)

    def step(self, active: int) -> None:
        """Make one step of the first ``active`` devices."""
        size = self.size[0] - (self.size[0] - active) // GRAPH_SPACING * GRAPH_SPACING
        uses = max((layer.uses for layer in self._deferred.values()), default=0)
        if self._kept + uses > MOST_DEFERRED:
            self.flush()
        if self._kept == 0:
            self._first = size  # later there are never more: who is done makes no step
        for layer in self._deferred.values():
            layer.at(self._kept)
        self._replay(size)
        self._kept += max((layer.uses for layer in self._deferred.values()), default=0)

    def flush(self) -> None:
        """Write the deferred steps."""
        if self._kept:
            for layer in self._deferred.values():
                layer.flush(self._first)
        self._kept = 0

    def _replay(self, size: int) -> None:
        if self._training.store.device.type != "cuda":
            self._step(size)
            return
        if size not in self._graphs:
            self._capture(size)
        self._graphs[size].replay()

    def _capture(self, active: int) -> None:
        """Capture the step of some clients; what the steps before the capture do is undone."""
        kept = {name: weight.clone() for name, weight in self._changing().items()}
        device = self._training.store.device
        graph = capture(
            device, lambda: self._step(active), lambda: self._step(active), [], side=self._side, pool=self._pool
        )
        self._pool = graph.pool()  # type: ignore[no-untyped-call,unused-ignore]
        self._graphs[active] = graph
        for name, weight in self._changing().items():
            weight.copy_(kept[name])

    def _changing(self) -> dict[str, Tensor]:
        held = {f"{entry}/{name}": value for entry, group in self._memory.items() for name, value in group.items()}
        kept = {f"{part}/{name}": getattr(layer, part) for name, layer in self._deferred.items()
                for part in ("inputs", "scaled_grads", "decay")}  # fmt: skip
        return {**self.weights, **held, **kept}

    def _step(self, active: int) -> None:
        training, places = self._training, self._places[:active]
        images, labels = training.store.pixels(places)
        shares = self._shares[:active]
        clients = self._clients[:active].expand(places.shape)
        batch = Batch(images, labels, shares, clients, self._keys[:active])
        rates = self._rate * (shares.sum(1) > 0)
        losses, logits = training.descend(
            self.weights, self._memory, self._number[0], self.sent, batch, rates, active, self._deferred
        )
        self.losses[:active] = losses
        if training.objective.train_acc == "running":
            self.hits[:active] = training.network.hits(logits, batch)
