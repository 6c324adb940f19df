"""The GPU path for any network: forward and backward pass of every factory, all in one captured graph.

The mathematics is that of :mod:`fedgs.training.fused`, on a team's union batch or device by device; the machinery is
that of :mod:`fedgs.training.captured`. Device by device, short batches cannot be filled up, because their statistics
would change: a round with such batches (stragglers) is trained by the oracle.
"""

import torch
from torch import Tensor

from fedgs.data.arrays import map_tree
from fedgs.training.captured import CapturedEngine, Shape, Stations
from fedgs.training.engine import RoundInput, RoundResult, Setup, begin_memory
from fedgs.training.objective import Batch, Sent
from fedgs.training.optimizers import Optimizer
from fedgs.training.per_device import PerDeviceEngine
from fedgs.training.step import descend, gradient_of, with_unused

TINY = 1e-12
"""Below any share: what a device that is not there is divided by."""


class GraphEngine(CapturedEngine):
    """Trains all factories at once on a GPU."""

    def __init__(self, setup: Setup, union: bool = True) -> None:
        super().__init__(setup)
        self._union = union
        if setup.traits.reads_values and setup.store.device.type == "cuda":
            setup.note(f"{setup.traits.reads_values}, so steps run on streams without a captured graph, and slower")

    def make_stations(self, shape: Shape, classes: int) -> Stations:
        """Return a network for each factory."""
        return _Networks(self.setup, self.optimizer, shape, classes, self._union)

    def run(self, given: RoundInput) -> RoundResult:
        """Train a round."""
        sizes, batch = given.plan.sizes, given.plan.samples.shape[-1]
        if not self._union and ((sizes > 0) & (sizes < batch)).any():
            return PerDeviceEngine(self.setup).run(given)
        return super().run(given)


class _Networks(Stations):
    """A network a factory, their weights the rows of one array."""

    def __init__(self, setup: Setup, optimizer: Optimizer, shape: Shape, classes: int, union: bool) -> None:
        super().__init__(setup.store, shape, classes)
        self._setup, self._optimizer, self._union = setup, optimizer, union
        self._layout = setup.network.layout
        device = setup.store.device
        self._weights = torch.zeros(shape[1], self._layout.size, device=device)
        self._start = torch.zeros(self._layout.size, device=device)
        self._memory = begin_memory(optimizer, None, shape[1], self._layout.trained_size, device)
        self._key = torch.zeros(1, dtype=torch.int64, device=device)
        augments = setup.store.task.task.augment is not None
        self._generator = torch.Generator(device) if augments else None
        if self._generator is not None:
            self._generator.manual_seed(setup.seed)

    def generators(self) -> list[torch.Generator]:
        """Return the generator of augmentation."""
        return [] if self._generator is None else [self._generator]

    def set(self, weights: Tensor, memory: dict[str, Tensor] | None) -> None:
        """Start all networks from the same weights."""
        self._start.copy_(weights)
        self._weights.copy_(weights.expand_as(self._weights))
        for entry, value in self._memory.items():
            value.copy_(memory[entry]) if memory else value.zero_()

    def result(self) -> tuple[Tensor, dict[str, Tensor]]:
        """Return copies, since the next round writes over them."""
        return self._weights.clone(), {entry: value.clone() for entry, value in self._memory.items()}

    def descend(self, samples: Tensor, shares: Tensor, rate: Tensor, shift: Tensor | None) -> Tensor:
        """Make one step in every factory."""
        losses = torch.zeros(len(self._weights), device=samples.device)

        def step(factory: int) -> None:
            own = None if shift is None else shift[factory][None]
            self._step_factory(factory, samples[factory], shares[factory], rate, own, losses)

        self.side_by_side(step)
        return losses

    def _step_factory(
        self, factory: int, samples: Tensor, shares: Tensor, rate: Tensor, shift: Tensor | None, losses: Tensor
    ) -> None:
        layout, setup, optimizer = self._layout, self._setup, self._optimizer
        flat = self._weights[factory]
        sent = Sent(layout.one_client(self._start), {})
        here = (shares.sum() > 0).float()  # a factory without anybody keeps what it remembers and does not move
        places = 1 if self._union else self.shape[2]
        buffers = torch.zeros_like(flat[layout.trained_size :])
        highest = torch.full_like(flat[layout.float_size :], -torch.inf)
        gradients: list[Tensor | None] = [None] * layout.trained
        loss = torch.zeros((), device=flat.device)
        for own, own_shares in zip(samples.chunk(places), shares.chunk(places), strict=True):
            counts = own_shares.sum()  # n^{m,k} / n^m
            if not self._union:  # 1 / n^{m,k} for each sample: an objective sees a device by itself
                own_shares = own_shares / counts.clamp(min=TINY)
            current = flat if self._union else flat.clone()  # a device's buffers are its own
            views = layout.one_client(current)
            inputs, targets = setup.store.gather(own)
            if self._generator is not None:
                inputs = setup.store.augment(inputs, self._generator)
            batch = Batch(
                map_tree(lambda value: value[None], inputs), map_tree(lambda value: value[None], targets),
                own_shares[None], torch.zeros_like(own)[None], self._key, shift=shift,
            )  # fmt: skip
            found = gradient_of(setup.network, setup.objective, views, layout.trained, sent, batch)
            with torch.no_grad():
                loss += found.losses[0] if self._union else counts * found.losses[0]
                used = {number: value for number, value in enumerate(found.values) if value is not None}
                values = list(used.values()) if self._union else torch._foreach_mul(list(used.values()), counts)
                for number, value in zip(used, values, strict=True):
                    before = gradients[number]
                    gradients[number] = value[0] if before is None else before + value[0]
                if not self._union:
                    buffers += counts * current[layout.trained_size :]
                    higher = torch.maximum(highest, current[layout.float_size :])
                    highest = torch.where(counts > 0, higher, highest)
        with torch.no_grad():
            losses[factory] = loss
            if not self._union and layout.has_buffers:
                buffers[len(buffers) - len(highest) :] = highest
                kept = flat[layout.trained_size :]
                kept.copy_(torch.where(here > 0, buffers, kept))
            if optimizer.counts_steps:
                self._memory["steps"][factory] += here
            trained, start = (list(layout.trained_views(one).values()) for one in (flat, self._start))
            gradients = with_unused(gradients, trained, optimizer, setup.objective.pull)
            memory = {entry: value[factory] for entry, value in self._memory.items()}
            held = {entry: list(layout.trained_views(memory[entry]).values()) for entry in optimizer.entries}
            steps = memory["steps"].clamp(min=1) if optimizer.counts_steps else 0
            descend(
                trained, gradients, rate, optimizer, held, steps, setup.training.clip, setup.objective.pull, start, here
            )
