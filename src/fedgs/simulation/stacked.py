"""The fastest GPU path: the paper's CNN of all stations stepped together, forward and backward written out.

The mathematics is that of :mod:`fedgs.simulation.fused`; what differs is who computes what. The weights of the M
stations are stacked, so the dense layers are one batched product each; convolution 1 with its pooling and rectifier is
one kernel each way; convolution 2 runs in the library, one stream a station. With steps −η∂L/∂z sent back from the
logits, everything that arrives at a weight *is* its step, and the dense layers' products add it in place: no gradient
is ever stored (without momentum). One iteration is one captured graph (:mod:`fedgs.simulation.captured`).

    logits z,  p = softmax(z),  δ = −η·share·(p − onehot(y))        share = 1/n^m for each sample of the super node
    dense 2    W₂ += δᵀh,  b₂ += Σδ,  δ_h = δW₂ ⊙ [h > 0]
    dense 1    W₁ += δ_hᵀf,  b₁ += Σδ_h,  δ_f = δ_hW₁
    layers 2, 1 of convolution: through pooling to the winning places, then the library's and our own backward

The order in which a GPU adds is not fixed, so two runs agree to rounding, not to the bit.
"""

from types import ModuleType

import torch
from torch import Tensor, nn
from torch.nn.functional import conv2d

from fedgs.models import PaperCNN
from fedgs.simulation import stacked_ops
from fedgs.simulation.captured import CapturedEngine, Shape, Stations
from fedgs.simulation.images import ImageStore
from fedgs.simulation.layout import Layout

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


class StackedEngine(CapturedEngine):
    """Trains all stations' CNNs at once."""

    def make_stations(self, shape: Shape) -> Stations:
        """Return the stacked networks."""
        return _Stacked(self.store, self.layout, shape, self.momentum, self.precision)


class _Stacked(Stations):
    """The weights of all stations, one tensor (stations, …) a name."""

    def __init__(self, store: ImageStore, layout: Layout, shape: Shape, momentum: float, precision: str) -> None:
        super().__init__(store, shape)
        device = store.device
        self._layout, self._momentum, self._ops = layout, momentum, kernels_for(device)
        self._dtype = torch.bfloat16 if precision == "bfloat16" and device.type == "cuda" else torch.float32
        self._tf32 = precision != "float32"
        self._weights = layout.stacked(shape[1], device)
        self._velocity = layout.stacked(shape[1], device) if momentum else None

    def set(self, weights: Tensor, momentum: Tensor | None) -> None:
        """Start all networks from the same weights."""
        factories = self.shape[1]
        self._layout.scatter(weights.expand(factories, -1), self._weights)
        if self._velocity is not None:
            start = torch.zeros(factories, self._layout.size) if momentum is None else momentum
            self._layout.scatter(start, self._velocity)

    def result(self) -> tuple[Tensor, Tensor | None]:
        """Return the weights network by network."""
        return self._layout.gather(self._weights), self._layout.gather(self._velocity) if self._velocity else None

    @torch.no_grad()
    def descend(self, samples: Tensor, shares: Tensor, rate: Tensor) -> Tensor:
        """Make one step in every factory."""
        if self._velocity is None:
            return self._send_back(samples, shares, -rate * shares, self._weights)
        gradients = {name: torch.zeros_like(weight) for name, weight in self._weights.items()}
        losses = self._send_back(samples, shares, shares, gradients)
        here = (shares.sum(1) > 0).float()  # a factory without anybody keeps its velocity and does not move
        for name, weight in self._weights.items():
            alike = (-1, *[1] * (weight.ndim - 1))
            self._velocity[name].mul_((1 - here * (1 - self._momentum)).view(alike)).add_(gradients[name])
            weight.add_(self._velocity[name] * (-rate * here).view(alike))
        return losses

    def _send_back(self, samples: Tensor, shares: Tensor, factors: Tensor, into: dict[str, Tensor]) -> Tensor:
        """Send ``factors`` · ∂L/∂z back from the logits, add what arrives at each weight to ``into``; the losses.

        ``into`` may be the weights themselves: each is changed only after its last use.
        """
        stations, batch = samples.shape
        weights, dtype, ops = self._weights, self._dtype, self._ops
        pixels = self._store.images.index_select(0, samples.view(-1)).view(stations, batch, *self._store.shape[:2])
        labels = self._store.labels.index_select(0, samples.view(-1)).view(stations, batch, 1)

        first, first_places = ops.first_layer(pixels, weights["conv1.weight"], weights["conv1.bias"], dtype, self._tf32)
        first = first.view(stations, batch, *first.shape[1:]).permute(0, 1, 4, 2, 3)  # channels-last for the library
        kernels = weights["conv2.weight"].to(dtype)
        pooled: list[tuple[Tensor, Tensor]] = [(first, first)] * stations

        def second_layer(station: int) -> None:
            full = conv2d(first[station], kernels[station], padding=2).permute(0, 2, 3, 1)
            pooled[station] = ops.rectified_pool(full, weights["conv2.bias"][station : station + 1], dtype)

        self.side_by_side(second_layer)
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

        self.side_by_side(backward)
        return losses

    def _add_product(self, into: Tensor, back: Tensor, forward: Tensor) -> None:
        if back.dtype == into.dtype:
            torch.baddbmm(into, back.transpose(1, 2), forward, out=into)
        else:
            into += torch.bmm(back.transpose(1, 2), forward)
