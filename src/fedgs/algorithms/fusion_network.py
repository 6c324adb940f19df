"""The fusion operators of FedFusion: local feature maps and global ones become one (Yao et al., 2019).

    conv     z = Conv1×1([a; b])            twice the channels → the channels, with bias, the local maps a first
    multi    z = λ ⊙ b + (1 − λ) ⊙ a        one λ a channel
    single   z = λ b + (1 − λ) a            one λ

λ weighs the global maps b, is not bounded, and starts at 0: the plain network. Maps are (D, B, channels, …): images,
signals or plain features.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import torch
from torch import Tensor

from fedgs.rng import stream
from fedgs.tasks.cnn import xavier
from fedgs.training.layout import Layout
from fedgs.training.network import WrappedNetwork
from fedgs.training.objective import Weights
from fedgs.training.stacked_layers import dense

LAMBDA, KERNEL, BIAS = "fusion.lambda", "fusion.weight", "fusion.bias"
OPERATORS = ("conv", "multi", "single")


@dataclass(frozen=True)
class FusionNetwork(WrappedNetwork):
    """A network with a fusion operator behind its features."""

    dtype: torch.dtype = torch.float32
    operator: Literal["conv", "multi", "single"] = "conv"
    init: Literal["xavier", "torch_default"] = "xavier"
    """How the 1×1 kernels are drawn; torch_default is the authors' code."""

    @cached_property
    def layout(self) -> Layout:  # type: ignore[override]
        """The plain network's weights and those of the operator."""
        new = {name: weight for name, weight in self.first_weights(0).items() if name.startswith("fusion.")}
        return self.base.layout.changed("", new)

    def fused(
        self, weights: Weights, inputs: Any, reference: Tensor | None, clients: Tensor, keys: Tensor | None = None
    ) -> Any:
        """Return the outputs of inputs whose global maps are known; None: they are the local ones."""

        def fuse(local: Tensor) -> Tensor:
            return self.fuse(weights, local, local if reference is None else reference)

        return self.base.forward(weights, inputs, clients, keys, fuse=fuse).outputs

    def fuse(self, weights: Weights, local: Tensor, reference: Tensor) -> Tensor:
        """Return the fused maps of local maps a and global maps b, (D, B, channels, …)."""
        if self.operator != "conv":
            share = weights[LAMBDA]
            share = share.view(len(share), 1, -1, *[1] * (local.ndim - 3))
            return share * reference + (1 - share) * local
        both = torch.cat([local, reference], dim=2).movedim(2, -1)
        kernels = weights[KERNEL][..., 0, 0]
        fused = dense(both.flatten(1, -2), kernels, weights[BIAS], self.dtype)
        return fused.view(*both.shape[:-1], -1).movedim(-1, 2)

    def first_weights(self, seed: int) -> dict[str, Tensor]:
        """Return the plain network's weights and those of the operator."""
        weights, channels = self.base.first_weights(seed), self.feature_channels
        if self.operator != "conv":
            return weights | {LAMBDA: torch.zeros(channels if self.operator == "multi" else 1)}
        draws = stream(seed, "model", "fusion")
        shape = (channels, 2 * channels, 1, 1)
        if self.init == "xavier":
            return weights | {KERNEL: xavier(draws, shape), BIAS: torch.zeros(channels)}
        bound = (2 * channels) ** -0.5  # torch.nn.Conv2d: U(−1/√fan_in, 1/√fan_in) for kernels and biases
        kernel, bias = (torch.from_numpy(draws.uniform(-bound, bound, size)).float() for size in (shape, channels))
        return weights | {KERNEL: kernel, BIAS: bias}
