"""The fastest GPU path: the paper's CNN of all stations stepped together, forward and backward written out.

The mathematics is that of :mod:`fedgs.simulation.fused`; what differs is who computes what. The weights of the M
stations are stacked, so the dense layers are one batched product each; convolution 1 with its pooling and rectifier is
one kernel each way; convolution 2 runs in the library, one stream a station. With steps −η∂L/∂z sent back from the
logits, everything that arrives at a weight *is* its step, and the dense layers' products add it in place: no gradient
is ever stored (without momentum). One iteration is one captured graph, as in :mod:`fedgs.simulation.graph`.

    logits z,  p = softmax(z),  δ = −η·share·(p − onehot(y))        share = 1/n^m for each sample of the super node
    dense 2    W₂ += δᵀh,  b₂ += Σδ,  δ_h = δW₂ ⊙ [h > 0]
    dense 1    W₁ += δ_hᵀf,  b₁ += Σδ_h,  δ_f = δ_hW₁
    layers 2, 1 of convolution: through pooling to the winning places, then the library's and our own backward

The order in which a GPU adds is not fixed, so two runs agree to rounding, not to the bit.
"""

from collections.abc import Callable
from contextlib import nullcontext
from types import ModuleType
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.functional import conv2d

from fedgs.models import PaperCNN
from fedgs.simulation import stacked_ops
from fedgs.simulation.engine import RoundResult, Tick
from fedgs.simulation.images import ImageStore, gpu_precision
from fedgs.simulation.layout import Layout
from fedgs.simulation.round_plan import RoundPlan

WARM_UP = 3
MOST_PIXELS = 64


def fits(model: nn.Module, store: ImageStore) -> bool:
    """Tell whether this engine can train that network on those images."""
    height, width, channels = store.shape
    small = max(height, width) <= MOST_PIXELS  # a kernel holds a whole plane of the second layer
    return isinstance(model, PaperCNN) and channels == 1 and height % 4 == 0 and width % 4 == 0 and small


def kernels_for(device: torch.device) -> ModuleType:
    """Return the Triton kernels on a GPU that has them, the plain pieces elsewhere."""
    if device.type == "cuda":
        try:
            from fedgs.simulation import stacked_kernels
        except ImportError:
            return stacked_ops
        return stacked_kernels
    return stacked_ops


class StackedEngine:
    """Trains all stations' CNNs at once."""

    def __init__(self, model: nn.Module, store: ImageStore, momentum: float = 0.0, *, precision: str = "tf32") -> None:
        self.store, self.momentum, self.precision = store, momentum, precision
        self.layout = Layout.of(model)
        self._stations: _Stations | None = None

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
        on_gpu = self.store.device.type == "cuda"
        with gpu_precision(self.precision) if on_gpu else nullcontext():
            if self._stations is None or self._stations.shape != shape:
                self._stations = None  # its memory goes back first
                self._stations = _Stations(self.store, self.layout, shape, self.momentum, self.precision)
            stations = self._stations
            stations.load(weights, plan, rates, momentum)
            for _ in range(iterations):
                stations.step()
        losses = stations.losses.double().cpu().numpy()  # waits for the GPU
        losses[plan.totals == 0] = np.nan
        if tick is not None:
            tick(float(iterations))
        velocity = self.layout.gather(stations.velocity) if stations.velocity else None
        return RoundResult(self.layout.gather(stations.weights), losses, velocity)

    def close(self) -> None:
        """Give the memory back."""
        self._stations = None


class _Stations:
    """Weights, plan and scratch memory of all stations, and the step that the graph captures."""

    def __init__(
        self, store: ImageStore, layout: Layout, shape: tuple[int, int, int], momentum: float, precision: str
    ) -> None:
        self.shape, self._store, self._layout, self._momentum = shape, store, layout, momentum
        iterations, factories, batch = shape
        device = store.device
        self._ops = kernels_for(device)
        on_gpu = device.type == "cuda"
        self._dtype = torch.bfloat16 if precision == "bfloat16" and on_gpu else torch.float32
        self._tf32 = precision != "float32"
        self.weights = layout.stacked(factories, device)
        self.velocity = layout.stacked(factories, device) if momentum else None
        self.losses = torch.zeros(iterations, factories, device=device)
        self._samples = torch.zeros(iterations, factories, batch, dtype=torch.int64, device=device)
        self._shares = torch.zeros(iterations, factories, batch, device=device)
        self._rates = torch.zeros(iterations, device=device)
        self._iteration = torch.zeros(1, dtype=torch.int64, device=device)
        self._streams: list[Any] = []
        self._graph: torch.cuda.CUDAGraph | None = None
        if device.type == "cuda":
            stream: Any = torch.cuda.Stream
            self._streams = [stream(device) for _ in range(factories)]
            self._graph = self._capture(device)

    def _capture(self, device: torch.device) -> torch.cuda.CUDAGraph:
        stream: Any = torch.cuda.Stream
        side = stream(device)
        side.wait_stream(torch.cuda.current_stream(device))
        with torch.cuda.stream(side):
            for _ in range(WARM_UP):
                self._one_step()
                self._iteration.zero_()
        torch.cuda.current_stream(device).wait_stream(side)
        torch.cuda.synchronize(device)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=side):
            self._one_step()
        return graph

    def load(self, weights: Tensor, plan: RoundPlan, rates: NDArray[np.float64], momentum: Tensor | None) -> None:
        """Put a round's plan and first weights where the step reads them."""
        factories = self.shape[1]
        self._layout.scatter(weights.expand(factories, -1), self.weights)
        if self.velocity is not None:
            start = torch.zeros(factories, self._layout.size) if momentum is None else momentum
            self._layout.scatter(start, self.velocity)
        counting = np.arange(plan.samples.shape[-1]) < plan.sizes[..., None]
        shares = counting / np.maximum(plan.totals, 1)[:, :, None, None]
        places = self._store.places(np.where(counting, plan.samples, 0))
        self._samples.copy_(torch.from_numpy(places.reshape(self.shape)))
        self._shares.copy_(torch.from_numpy(shares.reshape(self.shape).astype(np.float32)))
        self._rates.copy_(torch.from_numpy(rates.astype(np.float32)))
        self._iteration.zero_()

    @torch.no_grad()
    def step(self) -> None:
        """Make one iteration in all factories."""
        if self._graph is not None:
            self._graph.replay()
        else:
            self._one_step()

    @torch.no_grad()
    def _one_step(self) -> None:
        samples = self._samples.index_select(0, self._iteration)[0]
        shares = self._shares.index_select(0, self._iteration)[0]
        rate = self._rates.index_select(0, self._iteration)[0]
        if self.velocity is None:
            losses = self._descend(samples, shares, -rate * shares, self.weights)
        else:
            gradients = {name: torch.zeros_like(weight) for name, weight in self.weights.items()}
            losses = self._descend(samples, shares, shares, gradients)
            here = (shares.sum(1) > 0).float()  # a factory without anybody keeps its velocity and does not move
            for name, weight in self.weights.items():
                alike = (-1, *[1] * (weight.ndim - 1))
                self.velocity[name].mul_((1 - here * (1 - self._momentum)).view(alike)).add_(gradients[name])
                weight.add_(self.velocity[name] * (-rate * here).view(alike))
        self.losses.index_copy_(0, self._iteration, losses[None])
        self._iteration.add_(1)

    def _descend(self, samples: Tensor, shares: Tensor, factors: Tensor, into: dict[str, Tensor]) -> Tensor:
        """Send ``factors`` · ∂L/∂z back from the logits, add what arrives at each weight to ``into``; the losses.

        ``into`` may be the weights themselves: each is changed only after its last use.
        """
        stations, batch = samples.shape
        weights, dtype, ops = self.weights, self._dtype, self._ops
        pixels = self._store.images.index_select(0, samples.view(-1)).view(stations, batch, *self._store.shape[:2])
        labels = self._store.labels.index_select(0, samples.view(-1)).view(stations, batch, 1)

        first, first_places = ops.first_layer(pixels, weights["conv1.weight"], weights["conv1.bias"], dtype, self._tf32)
        first = first.view(stations, batch, *first.shape[1:]).permute(0, 1, 4, 2, 3)  # channels-last for the library
        kernels = weights["conv2.weight"].to(dtype)
        pooled: list[tuple[Tensor, Tensor]] = [(first, first)] * stations

        def second_layer(station: int) -> None:
            full = conv2d(first[station], kernels[station], padding=2).permute(0, 2, 3, 1)
            pooled[station] = ops.rectified_pool(full, weights["conv2.bias"][station : station + 1], dtype)

        self._side_by_side(second_layer)
        second_places = torch.cat([places for _, places in pooled])
        second = torch.stack([features for features, _ in pooled])  # (M, B, h₂, w₂, c₂)
        shape = second.shape
        features = second.permute(0, 1, 4, 2, 3).reshape(stations, batch, -1)  # the network flattens channels first
        dense1, dense2 = weights["dense1.weight"].to(dtype), weights["dense2.weight"].to(dtype)
        hidden = torch.baddbmm(weights["dense1.bias"][:, None].to(dtype), features, dense1.transpose(1, 2)).relu_()
        logits = torch.baddbmm(weights["dense2.bias"][:, None].to(dtype), hidden, dense2.transpose(1, 2)).float()

        log_chances = logits.log_softmax(-1)
        losses = -(log_chances.gather(2, labels)[..., 0] * shares).sum(1)
        back = log_chances.exp_()
        back.scatter_add_(2, labels, torch.full_like(labels, -1, dtype=back.dtype))
        back *= factors[..., None]
        rounded = back.to(dtype)
        back_hidden = torch.bmm(rounded, dense2) * (hidden > 0)
        back_features = torch.bmm(back_hidden, dense1)
        self._add_product(into["dense2.weight"], rounded, hidden)
        self._add_product(into["dense1.weight"], back_hidden, features)
        into["dense2.bias"] += back.sum(1)
        into["dense1.bias"] += back_hidden.sum(1, dtype=torch.float32)

        back_second = (
            back_features.view(*shape[:2], shape[4], *shape[2:4]).permute(0, 1, 3, 4, 2).reshape(-1, *shape[2:])
        )
        full = ops.spread(back_second, second_places, into["conv2.bias"])
        full = full.view(stations, batch, *full.shape[1:]).permute(0, 1, 4, 2, 3)
        first_places = first_places.view(stations, batch, *first_places.shape[1:])

        def backward(station: int) -> None:
            back_first, back_kernels, _ = torch.ops.aten.convolution_backward(
                full[station], first[station], kernels[station], None, [1, 1], [2, 2], [1, 1], False, [0, 0], 1,
                [True, True, False],
            )  # fmt: skip
            into["conv2.weight"][station] += back_kernels
            ops.first_layer_back(
                pixels[station],
                back_first.permute(0, 2, 3, 1),
                first_places[station],
                into["conv1.weight"][station],
                into["conv1.bias"][station],
                self._tf32,
            )

        self._side_by_side(backward)
        return losses

    def _add_product(self, into: Tensor, back: Tensor, forward: Tensor) -> None:
        if back.dtype == into.dtype:
            torch.baddbmm(into, back.transpose(1, 2), forward, out=into)
        else:
            into += torch.bmm(back.transpose(1, 2), forward)

    def _side_by_side(self, work: Callable[[int], None]) -> None:
        """Do ``work`` for every station, on a GPU each on a stream of its own."""
        if not self._streams:
            for station in range(self.shape[1]):
                work(station)
            return
        here = torch.cuda.current_stream(self._store.device)
        for station, stream in enumerate(self._streams):
            stream.wait_stream(here)
            with torch.cuda.stream(stream):
                work(station)
        for stream in self._streams:
            here.wait_stream(stream)
