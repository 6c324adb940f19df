"""The fastest GPU path: the paper's CNN of all stations stepped together, forward and backward written out.

The mathematics is that of :mod:`fedgs.training.fused`; what differs is who computes what. The weights of the M
stations are stacked, so the dense layers are one batched product each, and a convolution with its pooling and rectifier
is one kernel forward and one or two back (:mod:`fedgs.training.stacked_kernels`). With steps −η∂L/∂z sent back from the
logits, everything that arrives at a weight *is* its step, and the dense layers' products add it in place: no gradient
is ever stored (without momentum and clipping). One iteration is one captured graph (:mod:`fedgs.training.captured`).

    logits z,  p = softmax(z),  δ = −η·share·(p − onehot(y))        share = 1/n^m for each sample of the super node
    dense 2    W₂ += δᵀh,  b₂ += Σδ,  δ_h = δW₂ ⊙ [h > 0]
    dense 1    W₁ += δ_hᵀf,  b₁ += Σδ_h,  δ_f = δ_hW₁
    layers 2, 1 of convolution: through pooling to the winning places, then to kernels and features

The order in which a GPU adds is not fixed, so two runs agree to rounding, not to the bit.
"""

import torch
from torch import Tensor

from fedgs.training import stacked_ops
from fedgs.training.captured import CapturedEngine, Shape, Stations
from fedgs.training.engine import Setup
from fedgs.training.objective import Objective
from fedgs.training.optimizers import Optimizer
from fedgs.training.stacked_layers import triton_kernels
from fedgs.training.step import clip_factors

MOST_PIXELS = 64


def misfit(setup: Setup) -> str:
    """Return why this engine cannot train a task; "" where it can."""
    if setup.store.task.built_in != "paper":
        return "is for the paper's CNN and cross-entropy"
    height, width, channels = setup.store.image_shape
    # A kernel holds a whole plane of the second layer.
    if channels != 1 or height % 4 or width % 4 or max(height, width) > MOST_PIXELS:
        return f"is for grey images with sides up to {MOST_PIXELS} that 4 divides"
    optimizer = Optimizer.of(setup.training)
    if optimizer.name not in ("sgd", "momentum") or optimizer.weight_decay:
        return "is for training.optimizer sgd and momentum without weight decay"
    if type(setup.objective).objective is not Objective.objective or setup.objective.pull:
        return "is for the plain loss, not for an objective of its own"
    return ""


class StackedEngine(CapturedEngine):
    """Trains all stations' CNNs at once."""

    def make_stations(self, shape: Shape, classes: int) -> Stations:
        """Return the stacked networks."""
        return _Stacked(self.setup, self.optimizer, shape, classes)


class _Stacked(Stations):
    """The weights of all stations, one tensor (stations, …) a name."""

    def __init__(self, setup: Setup, optimizer: Optimizer, shape: Shape, classes: int) -> None:
        super().__init__(setup.store, shape, classes)
        device, precision = setup.store.device, setup.training.precision
        self._layout = layout = setup.network.layout
        self._clip, self._momentum = setup.training.clip, optimizer.momentum
        self._ops = triton_kernels(device, precision != "float32") or stacked_ops
        self._dtype = torch.bfloat16 if precision == "bfloat16" and device.type == "cuda" else torch.float32
        self._tf32 = precision != "float32"
        self._weights = layout.stacked(shape[1], device)
        self._velocity = layout.stacked(shape[1], device) if optimizer.name == "momentum" else None

    def set(self, weights: Tensor, memory: dict[str, Tensor] | None) -> None:
        """Start all networks from the same weights."""
        factories = self.shape[1]
        self._layout.scatter(weights.expand(factories, -1), self._weights)
        if self._velocity is not None:
            start = memory["velocity"] if memory else torch.zeros(factories, self._layout.size)
            self._layout.scatter(start, self._velocity)

    def result(self) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the weights network by network."""
        memory = {"velocity": self._layout.gather(self._velocity)} if self._velocity else {}
        return self._layout.gather(self._weights), memory

    @torch.no_grad()
    def descend(self, samples: Tensor, shares: Tensor, rate: Tensor, shift: Tensor | None) -> Tensor:
        """Make one step in every factory."""
        if self._velocity is None and self._clip is None:
            return self._send_back(samples, shares, -rate * shares, shift, self._weights)
        gradients = {name: torch.zeros_like(weight) for name, weight in self._weights.items()}
        losses = self._send_back(samples, shares, shares, shift, gradients)
        here = (shares.sum(1) > 0).float()  # a factory without anybody keeps its velocity and does not move
        factors = here if self._clip is None else here * clip_factors(gradients.values(), self._clip)
        for name, weight in self._weights.items():
            alike = (-1, *[1] * (weight.ndim - 1))
            if self._velocity is None:
                weight.addcmul_(gradients[name], (-rate * factors).view(alike))
                continue
            self._velocity[name].mul_((1 - here * (1 - self._momentum)).view(alike))
            self._velocity[name].addcmul_(gradients[name], factors.view(alike))
            weight.addcmul_(self._velocity[name], (-rate * here).view(alike))
        return losses

    def _send_back(
        self, samples: Tensor, shares: Tensor, factors: Tensor, shift: Tensor | None, into: dict[str, Tensor]
    ) -> Tensor:
        """Send ``factors`` · ∂L/∂z back from the logits, add what arrives at each weight to ``into``; the losses.

        ``into`` may be the weights themselves: each is changed only after its last use.
        """
        stations, batch = samples.shape
        weights, dtype, ops = self._weights, self._dtype, self._ops
        pixels = self._store.inputs.index_select(0, samples.view(-1)).view(
            stations, batch, *self._store.image_shape[:2]
        )
        labels = self._store.targets.index_select(0, samples.view(-1)).view(stations, batch, 1)

        first, first_places = ops.first_layer(pixels, weights["conv1.weight"], weights["conv1.bias"], dtype, self._tf32)
        first = first.view(stations, batch, *first.shape[1:])
        second, second_places = ops.second_layer(
            first, weights["conv2.weight"], weights["conv2.bias"], dtype, self._tf32
        )
        second = second.view(stations, batch, *second.shape[1:])  # (M, B, h₂, w₂, c₂)
        shape = second.shape
        features = second.permute(0, 1, 4, 2, 3).reshape(stations, batch, -1)  # the network flattens channels first
        dense1, dense2 = weights["dense1.weight"].to(dtype), weights["dense2.weight"].to(dtype)
        hidden = torch.baddbmm(weights["dense1.bias"][:, None].to(dtype), features, dense1.transpose(1, 2)).relu_()
        logits = torch.baddbmm(weights["dense2.bias"][:, None].to(dtype), hidden, dense2.transpose(1, 2)).float()
        if shift is not None:
            logits += shift
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
        back_first = ops.second_layer_inputs(
            first, back_second, second_places, weights["conv2.weight"], self._tf32
        ).flatten(0, 1)
        ops.second_layer_back(first, back_second, second_places, into["conv2.weight"], into["conv2.bias"], self._tf32)
        ops.first_layer_back(pixels, back_first, first_places, into["conv1.weight"], into["conv1.bias"], self._tf32)
        return losses

    def _add_product(self, into: Tensor, back: Tensor, forward: Tensor) -> None:
        if back.dtype == into.dtype:
            torch.baddbmm(into, back.transpose(1, 2), forward, out=into)
        else:
            into += torch.bmm(back.transpose(1, 2), forward)
