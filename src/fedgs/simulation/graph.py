"""The GPU path: one iteration of all factories is one captured CUDA graph, replayed T times a round.

The plan of a whole round is on the GPU before it begins: sample places, their weights (1/n^m, or 0 for a place nobody
fills) and learning rates. A counter on the GPU says which iteration it is, so that replaying the graph needs nothing
from the host. Inside the graph the factories run on parallel streams: their kernels are small and fill the GPU only
together. The mathematics is that of :mod:`fedgs.simulation.fused`.
"""

import copy
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from fedgs.simulation.engine import RoundResult, Tick
from fedgs.simulation.images import ImageStore, gpu_precision, mixed_precision
from fedgs.simulation.layout import Layout
from fedgs.simulation.round_plan import RoundPlan

WARM_UP = 3
"""Steps before the capture, in which libraries choose their kernels and take their memory."""


class GraphEngine:
    """Trains all factories at once on a GPU."""

    def __init__(self, model: nn.Module, store: ImageStore, momentum: float = 0.0, *, precision: str = "tf32") -> None:
        self.store, self.momentum, self.precision = store, momentum, precision
        self.layout = Layout.of(model)
        self._template = model
        self._captured: _Captured | None = None

    def train_round(
        self,
        weights: Tensor,
        plan: RoundPlan,
        rates: NDArray[np.float64],
        momentum: Tensor | None = None,
        tick: Tick | None = None,
    ) -> RoundResult:
        """Train a round; the first one, and one of another shape, captures the graph before."""
        iterations, factories, places = plan.devices.shape
        shape = (iterations, factories, places * plan.samples.shape[-1])
        with gpu_precision(self.precision):
            if self._captured is None or self._captured.shape != shape:
                self._captured = None  # its memory goes back first
                self._captured = _Captured(
                    self._template, self.store, self.layout, shape, self.momentum, self.precision
                )
            captured = self._captured
            captured.load(weights, plan, rates, momentum)
            for _ in range(iterations):
                captured.graph.replay()
        losses = captured.losses.double().cpu().numpy()  # waits for the GPU
        losses[plan.totals == 0] = np.nan
        if tick is not None:
            tick(float(iterations))
        velocity = None if captured.velocity is None else captured.velocity.clone()
        return RoundResult(captured.stations.clone(), losses, velocity)

    def close(self) -> None:
        """Give the graph's memory back."""
        self._captured = None


class _Captured:
    """The graph and the memory it reads and writes."""

    def __init__(
        self,
        template: nn.Module,
        store: ImageStore,
        layout: Layout,
        shape: tuple[int, int, int],
        momentum: float,
        precision: str,
    ) -> None:
        iterations, factories, batch = self.shape = shape
        device = store.device
        self._store, self._momentum, self._precision = store, momentum, precision
        self.stations = torch.zeros(factories, layout.size, device=device)
        self.velocity = torch.zeros_like(self.stations) if momentum else None
        self.losses = torch.zeros(iterations, factories, device=device)
        self._samples = torch.zeros(iterations, factories, batch, dtype=torch.int64, device=device)
        self._weights = torch.zeros(iterations, factories, batch, device=device)
        self._rates = torch.zeros(iterations, device=device)
        self._iteration = torch.zeros(1, dtype=torch.int64, device=device)
        self._models = [copy.deepcopy(template).to(device) for _ in range(factories)]
        self._velocities: list[list[Tensor]] = []
        for factory, model in enumerate(self._models):
            layout.bind(model, self.stations[factory])
            if self.velocity is not None:
                self._velocities.append(list(layout.views(self.velocity[factory]).values()))
        stream: Any = torch.cuda.Stream
        self._streams = [stream(device) for _ in range(factories)]
        self.graph = self._capture(device)

    def _capture(self, device: torch.device) -> torch.cuda.CUDAGraph:
        stream: Any = torch.cuda.Stream
        side = stream(device)
        side.wait_stream(torch.cuda.current_stream(device))
        with torch.cuda.stream(side):
            for _ in range(WARM_UP):
                self._step(side)
                self._iteration.zero_()
        torch.cuda.current_stream(device).wait_stream(side)
        torch.cuda.synchronize(device)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=side):
            self._step(side)
        return graph

    def load(self, weights: Tensor, plan: RoundPlan, rates: NDArray[np.float64], momentum: Tensor | None) -> None:
        """Put a round's plan and first weights where the graph reads them."""
        self.stations.copy_(weights.to(self.stations.device).expand_as(self.stations))
        if self.velocity is not None:
            self.velocity.zero_() if momentum is None else self.velocity.copy_(momentum)
        counting = np.arange(plan.samples.shape[-1]) < plan.sizes[..., None]
        shares = counting / np.maximum(plan.totals, 1)[:, :, None, None]
        places = self._store.places(np.where(counting, plan.samples, 0))
        # Freshly made arrays: the copies below may run on while the next round's plan is made.
        self._samples.copy_(torch.from_numpy(places.reshape(self.shape)))
        self._weights.copy_(torch.from_numpy(shares.reshape(self.shape).astype(np.float32)))
        self._rates.copy_(torch.from_numpy(rates.astype(np.float32)))
        self._iteration.zero_()

    def _step(self, stream: torch.cuda.Stream) -> None:
        """One iteration of all factories, each on its stream."""
        samples = self._samples.index_select(0, self._iteration)[0]
        weights = self._weights.index_select(0, self._iteration)[0]
        rate = self._rates.index_select(0, self._iteration)[0]
        found = torch.zeros(len(self._models), device=samples.device)
        for factory, own in enumerate(self._streams):
            own.wait_stream(stream)
            with torch.cuda.stream(own):
                self._step_factory(factory, samples[factory], weights[factory], rate, found)
        for own in self._streams:
            stream.wait_stream(own)
        self.losses.index_copy_(0, self._iteration, found[None])
        self._iteration.add_(1)

    def _step_factory(self, factory: int, samples: Tensor, weights: Tensor, rate: Tensor, found: Tensor) -> None:
        model = self._models[factory]
        parameters: list[Tensor] = list(model.parameters())
        images = self._store.normalised(self._store.images.index_select(0, samples))
        labels = self._store.labels.index_select(0, samples)
        with mixed_precision(self._store.device, self._precision):
            logits = model(images)
        loss = (cross_entropy(logits.float(), labels, reduction="none") * weights).sum()
        gradients = list(torch.autograd.grad(loss, parameters))
        with torch.no_grad():
            found[factory] = loss.detach()
            if self._velocities:
                # A factory without anybody keeps its velocity and does not move.
                here = (weights.sum() > 0).float()
                velocities = self._velocities[factory]
                torch._foreach_mul_(velocities, 1 - here * (1 - self._momentum))
                torch._foreach_add_(velocities, gradients)
                torch._foreach_add_(parameters, torch._foreach_mul(velocities, -rate * here))
            else:
                torch._foreach_mul_(gradients, -rate)
                torch._foreach_add_(parameters, gradients)
