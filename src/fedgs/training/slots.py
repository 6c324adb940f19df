"""Local training of any network on a GPU: one client's step is a captured graph, in sixteen slots side by side.

A slot has room for one client: its weights, what its optimiser remembers, and a CUDA graph of its step on a stream of
its own. Clients are dealt out to free slots, those with most steps first; a step is one replay, which finds the
client's next batch by a counter on the GPU, so nothing is copied meanwhile. Kernels of one small network fill a
fraction of a GPU; those of sixteen fill it.

Where samples of a batch are independent of each other, a short last batch is filled up with samples of no share, and
one graph a slot does for all. Where they are not (batch normalisation), a short batch has a graph of its size, captured
when it is first met. A step that reads values of tensors in Python cannot be captured: it runs on the slots' streams as
it stands. Without a GPU the same steps run one after the other: that is how they are tested.
"""

import warnings
from contextlib import nullcontext
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedgs.data.arrays import map_tree
from fedgs.training.captured import capture
from fedgs.training.clients import ClientSetup, ClientTraining, Tick, Trained, local_places, pulled_to
from fedgs.training.objective import Batch, Objective, Sent
from fedgs.training.precision import gpu_precision
from fedgs.training.round_plan import ClientPlan
from fedgs.training.step import descend, gradient_of

SLOTS = 16
"""More of them do not make a GPU of today faster."""
WARM_UP_AGAIN = 1
"""Steps before the capture of a further batch size: the libraries are ready by then."""


class SlotTraining(ClientTraining):
    """Trains clients side by side, each in a slot."""

    def __init__(self, setup: ClientSetup, slots: int = SLOTS) -> None:
        super().__init__(setup)
        self._most, self._table, self._slots = slots, None, []
        self._numbers: dict[str, Any] = {}
        self.filled_up = not setup.traits.mixes_samples and setup.objective.per_sample
        """Whether short batches are filled up."""
        if setup.traits.reads_values and self.store.device.type == "cuda":
            setup.note(f"{setup.traits.reads_values}, so steps run on streams without a captured graph, and slower")

    _table: "_Table | None"
    _slots: "list[_Slot]"

    def train(
        self, sent: Sent, plan: ClientPlan, rate: float, tick: Tick | None = None, local: Tensor | None = None
    ) -> Trained:
        """Train all participants from what was sent."""
        device, count = self.store.device, len(plan.devices)
        on_gpu = device.type == "cuda"
        own_places = local_places(self.network, device)
        stacked = self.layout.stacked(count, device)
        with gpu_precision(self.precision) if on_gpu else nullcontext(), warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="RNN module weights are not part of single contiguous")
            if self._numbers != (numbers := graph_numbers(self.objective, sent)):
                self._numbers, self._slots = numbers, []
            table = self._prepare(plan)
            table.load(self, sent, plan, rate)
            slots = self._slots[: min(self._most, count)]
            steps, sizes = plan.steps.tolist(), plan.sizes
            waiting = list(range(count))[::-1]
            busy: dict[_Slot, tuple[int, int]] = {}
            if on_gpu:
                here = torch.cuda.current_stream(device)
                for slot in slots:
                    slot.stream.wait_stream(here)
            free = list(slots)
            while waiting or busy:
                while free and waiting:
                    slot, place = free.pop(), waiting.pop()
                    own = None if local is None or own_places is None else local[int(plan.devices[place])]
                    slot.begin(place, int(self.client_ids[plan.devices[place]]), own)
                    busy[slot] = (place, 0)
                for slot, (place, step) in list(busy.items()):
                    if step < steps[place]:
                        slot.step(int(sizes[step, place]))
                        busy[slot] = (place, step + 1)
                        continue
                    slot.end({name: weight[place] for name, weight in stacked.items()})
                    if local is not None and own_places is not None:
                        slot.keep(local[int(plan.devices[place])])
                    del busy[slot]
                    free.append(slot)
                    if tick is not None:
                        tick(1 / count)
            if on_gpu:
                for slot in slots:
                    here.wait_stream(slot.stream)
            losses = table.losses[: len(sizes), :count].double().cpu().numpy()
            losses[sizes == 0] = np.nan
            hits = table.hits[: len(sizes), :count].double().cpu().numpy()
            return Trained(stacked, losses, self.accuracies(plan, hits, self._final_hits(stacked, sent, plan, table)))

    def _prepare(self, plan: ClientPlan) -> "_Table":
        """Return the table of a round's plan, and have the slots that read from it."""
        largest = int(self.store.task.federation.train.sizes.max())
        batch, count = plan.samples.shape[2], len(plan.devices)
        epochs = max(1, int(np.ceil(plan.steps.max() / max(1, plan.epoch_steps.max()))))
        steps = max(len(plan.sizes), epochs * -(-largest // batch))
        if self._table is None or not self._table.fits(steps, count, batch):
            self._slots = []
            self._table = _Table(self, steps, count, batch)
        while len(self._slots) < min(self._most, count):
            self._slots.append(_Slot(self, self._table, len(self._slots)))
        return self._table

    def room(self) -> dict[str, Tensor]:
        """Return room for the weights of one client.

        Their order in memory is that of the user's module: group normalisation, for one, is slow in any other.
        """
        own, device = dict(self.store.task.module.named_parameters()), self.store.device
        return {
            name: torch.zeros_like(own[name], device=device) if name in own else torch.zeros(shape, device=device)
            for name, shape in self.layout.tensors
        }

    @torch.no_grad()
    def _final_hits(
        self, stacked: dict[str, Tensor], sent: Sent, plan: ClientPlan, table: "_Table"
    ) -> NDArray[np.float64]:
        """Return how many training samples each finished model has right, where somebody asks."""
        final = np.zeros(len(plan.devices))
        if self.objective.train_acc == "final":
            for place in range(len(plan.devices)):
                own = {name: weight[place][None] for name, weight in stacked.items()}
                client = torch.tensor([self.client_ids[plan.devices[place]]], device=table.rate.device)
                for step in range(int(plan.epoch_steps[place])):
                    row = torch.tensor([step * table.size[1] + place], device=client.device)
                    batch = table.batch(self, row, client, int(plan.sizes[step, place]))
                    found = self.objective.outputs(self.network, own, sent.memory, batch.inputs, batch.clients)
                    final[place] += float(self.network.hits(found, batch)[0])
        return final

    def close(self) -> None:
        """Give the graphs and their memory back."""
        self._slots, self._table = [], None


class _Table:
    """The plan of a round where the slots read it, and what they write beside weights."""

    def __init__(self, training: SlotTraining, steps: int, count: int, batch: int) -> None:
        device = training.store.device
        self.size = (steps, count, batch)
        self.places = torch.zeros(steps, count, batch, dtype=torch.int64, device=device)
        self.shares = torch.zeros(steps, count, batch, device=device)
        self.rate = torch.zeros(1, device=device)
        self.no_key = torch.zeros(1, dtype=torch.int64, device=device)
        self.start = training.room()
        self.losses = torch.zeros(steps, count, device=device)
        self.hits = torch.zeros(steps, count, device=device)
        self.memory: Any = None

    def fits(self, steps: int, count: int, batch: int) -> bool:
        """Whether a round of this size has room here."""
        return steps <= self.size[0] and count <= self.size[1] and batch == self.size[2]

    def load(self, training: SlotTraining, sent: Sent, plan: ClientPlan, rate: float) -> None:
        """Put a round's plan and weights into place."""
        steps, count = plan.sizes.shape
        counting = plan.samples >= 0
        shares = counting / np.maximum(plan.sizes, 1)[..., None]
        # Filled up with a sample of its own: what no share counts may still be no finite number.
        places = training.store.places(np.where(counting, plan.samples, np.maximum(plan.samples[..., :1], 0)))
        self.places[:steps, :count].copy_(torch.from_numpy(places))
        self.shares[:steps, :count].copy_(torch.from_numpy(shares.astype(np.float32)))
        self.rate.fill_(rate)
        for name, weight in self.start.items():
            weight.copy_(sent.weights[name][0])
        self.losses.zero_()
        if self.memory is None:
            self.memory = map_memory(torch.clone, sent.memory)
        else:
            copy_memory(sent.memory, self.memory)

    def batch(self, training: SlotTraining, row: Tensor, client: Tensor, size: int) -> Batch:
        """Return the batch of a row, which is a step of a client: the first ``size`` samples of it."""
        places = self.places.view(-1, self.size[2]).index_select(0, row)[0, :size]
        shares = self.shares.view(-1, self.size[2]).index_select(0, row)[0, :size]
        inputs, targets = training.store.gather(places)
        return Batch(
            map_tree(lambda value: value[None], inputs), map_tree(lambda value: value[None], targets),
            shares[None], client.expand(1, size), self.no_key,
        )  # fmt: skip


class _Slot:
    """Room for one client at a time, and the graphs of its step."""

    def __init__(self, training: SlotTraining, table: _Table, number: int) -> None:
        self._training, self._table = training, table
        device = training.store.device
        self._weights = training.room()
        self._trained = list(self._weights.values())[: training.layout.trained]
        entries = training.optimizer.entries
        self._memory = {entry: [torch.zeros_like(weight) for weight in self._trained] for entry in entries}
        self._row = torch.zeros(1, dtype=torch.int64, device=device)
        """Of the table: the client's next step."""
        self._client = torch.zeros(1, dtype=torch.int64, device=device)
        self._steps = torch.ones(1, device=device)
        """Counted from 1, for the optimisers that ask."""
        self._local = local_places(training.network, device)
        self._graphs: dict[int, torch.cuda.CUDAGraph] = {}
        stream: Any = torch.cuda.Stream
        self.stream: Any = stream(device) if device.type == "cuda" else None
        self._pool: Any = None
        augments = training.store.task.task.augment is not None
        self._generator = torch.Generator(device) if augments else None
        if self._generator is not None:
            self._generator.manual_seed(number)

    def begin(self, place: int, client: int, local: Tensor | None) -> None:
        """Take in a client: its place in the table and its number."""
        with self._on_stream():
            start = self._table.start
            if local is not None and self._local is not None:
                layout = self._training.layout
                flat = layout.flatten(start, torch.empty(layout.size, device=local.device))
                flat[self._local] = local
                start = layout.views(flat)
            torch._foreach_copy_(list(self._weights.values()), list(start.values()))
            for values in self._memory.values():
                torch._foreach_zero_(values)
            self._row.fill_(place)
            self._client.fill_(client)
            self._steps.fill_(1)

    def end(self, into: dict[str, Tensor]) -> None:
        """Give its weights back."""
        with self._on_stream():
            for name, weight in self._weights.items():
                into[name].copy_(weight)

    def keep(self, local: Tensor) -> None:
        """Note what the client keeps to itself."""
        with self._on_stream():
            layout = self._training.layout
            local.copy_(layout.flatten(self._weights, torch.empty(layout.size, device=local.device))[self._local])

    def step(self, size: int) -> None:
        """Make the client's next step, on a batch of ``size`` samples."""
        size = self._table.size[2] if self._training.filled_up else size
        with self._on_stream():
            if self.stream is None or self._training.setup.traits.reads_values:
                self._body(size)
                return
            if size not in self._graphs:
                self._capture(size)
            self._graphs[size].replay()

    def _on_stream(self) -> Any:
        return nullcontext() if self.stream is None else torch.cuda.stream(self.stream)

    def _capture(self, size: int) -> None:
        """Capture the step; what the steps before the capture do is undone."""
        held = [value for values in self._memory.values() for value in values]
        state = [self._row, self._steps, *self._weights.values(), *held]
        kept = [tensor.clone() for tensor in state]
        generators = [] if self._generator is None else [self._generator]

        def warm_up() -> None:
            self._body(size)
            self._row.copy_(kept[0])  # the table may have no further row

        graph = capture(
            self._training.store.device, lambda: self._body(size), warm_up, generators,
            side=self.stream, pool=self._pool, warm_up_steps=WARM_UP_AGAIN if self._graphs else None,
        )  # fmt: skip
        self._pool = graph.pool()  # type: ignore[no-untyped-call,unused-ignore]
        self._graphs[size] = graph
        for tensor, value in zip(state, kept, strict=True):
            tensor.copy_(value)

    def _body(self, size: int) -> None:
        """Make one step; all a graph reads and writes is in the slot and in the table."""
        training, table, layout = self._training, self._table, self._training.layout
        objective = training.objective
        batch = table.batch(training, self._row, self._client, size)
        if self._generator is not None:
            changed = training.store.augment(map_tree(lambda value: value[0], batch.inputs), self._generator)
            batch = Batch(
                map_tree(lambda value: value[None], changed), batch.targets, batch.shares, batch.clients, batch.keys
            )
        own, start = ({name: weight[None] for name, weight in each.items()} for each in (self._weights, table.start))
        found = gradient_of(training.network, objective, own, layout.trained, Sent(start, table.memory), batch)
        with torch.no_grad():
            table.losses.view(-1).index_copy_(0, self._row, found.losses)
            if objective.train_acc == "running":
                table.hits.view(-1).index_copy_(0, self._row, training.network.hits(found.outputs, batch))
            gradients = [None if value is None else value[0] for value in found.values]
            descend(
                self._trained, gradients, table.rate[0], training.optimizer, self._memory, self._steps[0],
                training.clip, objective.pull, pulled_to(training.network, start, own),
            )  # fmt: skip
            self._row.add_(table.size[1])
            if training.optimizer.counts_steps:
                self._steps.add_(1)


def graph_numbers(objective: Objective, sent: Sent) -> dict[str, Any]:
    """Return the numbers in what was sent that an objective may read: a captured graph has them as they were."""
    if type(objective).objective is Objective.objective:
        return {}
    return {entry: value for entry, value in sent.memory.items() if not isinstance(value, dict)}


def map_memory(function: Any, memory: Any) -> dict[str, Any]:
    """Return what an algorithm remembers with a function applied to its tensors."""
    return {
        entry: {name: function(tensor) for name, tensor in value.items()} if isinstance(value, dict) else value
        for entry, value in memory.items()
    }


def copy_memory(memory: Any, into: dict[str, Any]) -> None:
    """Copy what an algorithm remembers to where a graph reads it."""
    for entry, value in memory.items():
        there = into.get(entry)
        if isinstance(value, dict) and isinstance(there, dict):
            for name, tensor in value.items():
                there[name].copy_(tensor)
        else:
            into[entry] = value
