"""The GPU path for any network: the library's forward and backward pass of every factory, all in one captured graph.

The mathematics is that of :mod:`fedgs.training.fused`, the machinery that of :mod:`fedgs.training.captured`.
"""

import copy

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from fedgs.settings import TrainingSettings
from fedgs.training.captured import CapturedEngine, Shape, Stations
from fedgs.training.clipping import factor_of
from fedgs.training.layout import Layout
from fedgs.training.store import ImageStore, mixed_precision


class GraphEngine(CapturedEngine):
    """Trains all factories at once on a GPU."""

    def make_stations(self, shape: Shape, classes: int) -> Stations:
        """Return a copy of the network for each factory."""
        return _Networks(self.model, self.store, self.layout, shape, self.training, classes)


class _Networks(Stations):
    """A network a factory, their weights the rows of one array."""

    def __init__(
        self,
        template: nn.Module,
        store: ImageStore,
        layout: Layout,
        shape: Shape,
        training: TrainingSettings,
        classes: int,
    ) -> None:
        super().__init__(store, shape, classes)
        self._training = training
        self._weights = torch.zeros(shape[1], layout.size, device=store.device)
        self._velocity = torch.zeros_like(self._weights) if training.momentum else None
        self._models = [copy.deepcopy(template).to(store.device) for _ in range(shape[1])]
        self._velocities: list[list[Tensor]] = []
        for factory, model in enumerate(self._models):
            layout.bind(model, self._weights[factory])
            if self._velocity is not None:
                self._velocities.append(list(layout.views(self._velocity[factory]).values()))

    def set(self, weights: Tensor, momentum: Tensor | None) -> None:
        """Start all networks from the same weights."""
        self._weights.copy_(weights.expand_as(self._weights))
        if self._velocity is not None:
            self._velocity.zero_() if momentum is None else self._velocity.copy_(momentum)

    def result(self) -> tuple[Tensor, Tensor | None]:
        """Return copies, since the next round writes over them."""
        return self._weights.clone(), None if self._velocity is None else self._velocity.clone()

    def descend(self, samples: Tensor, shares: Tensor, rate: Tensor, shift: Tensor | None) -> Tensor:
        """Make one step in every factory."""
        losses = torch.zeros(len(self._models), device=samples.device)

        def step(factory: int) -> None:
            own = None if shift is None else shift[factory]
            self._step_factory(factory, samples[factory], shares[factory], rate, own, losses)

        self.side_by_side(step)
        return losses

    def _step_factory(
        self, factory: int, samples: Tensor, shares: Tensor, rate: Tensor, shift: Tensor | None, losses: Tensor
    ) -> None:
        model = self._models[factory]
        parameters: list[Tensor] = list(model.parameters())
        images = self._store.normalised(self._store.images.index_select(0, samples))
        labels = self._store.labels.index_select(0, samples)
        with mixed_precision(self._store.device, self._training.precision):
            logits = model(images).float()
        if shift is not None:
            logits = logits + shift
        loss = (cross_entropy(logits, labels, reduction="none") * shares).sum()
        gradients = list(torch.autograd.grad(loss, parameters))
        with torch.no_grad():
            losses[factory] = loss.detach()
            if self._training.clip is not None:
                torch._foreach_mul_(gradients, factor_of(gradients, self._training.clip))
            if self._velocities:
                # A factory without anybody keeps its velocity and does not move.
                here = (shares.sum() > 0).float()
                velocities = self._velocities[factory]
                torch._foreach_mul_(velocities, 1 - here * (1 - self._training.momentum))
                torch._foreach_add_(velocities, gradients)
                torch._foreach_add_(parameters, torch._foreach_mul(velocities, -rate * here))
            else:
                torch._foreach_mul_(gradients, -rate)
                torch._foreach_add_(parameters, gradients)
