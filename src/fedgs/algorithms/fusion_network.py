"""The fusion operators of FedFusion: local feature maps and global ones become one (Yao et al., 2019).

    conv     z = Conv1×1([a; b])            128 → 64 channels with bias, the local maps a first
    multi    z = λ ⊙ b + (1 − λ) ⊙ a        one λ a channel
    single   z = λ b + (1 − λ) a            one λ

λ weighs the global maps b, is not bounded, and starts at 0: the plain network.
"""

from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor

from fedgs.rng import stream
from fedgs.tasks.cnn import xavier
from fedgs.training.stacked_layers import dense
from fedgs.training.stacked_networks import Network, Weights

LAMBDA, KERNEL, BIAS = "fusion.lambda", "fusion.weight", "fusion.bias"
OPERATORS = ("conv", "multi", "single")


@dataclass(frozen=True)
class FusionNetwork(Network):
    """A network with a fusion operator between its convolutions and the rest."""

    base: Network = field(kw_only=True)
    operator: Literal["conv", "multi", "single"] = "conv"
    init: Literal["xavier", "torch_default"] = "xavier"
    """How the 1×1 kernels are drawn; torch_default is the authors' code."""

    @property
    def name(self) -> str:
        """The name of the plain network."""
        return self.base.name

    def maps(self, weights: Weights, images: Tensor) -> Tensor:
        """Return the maps of one extractor."""
        return self.base.maps(weights, images)

    def hidden(self, weights: Weights, maps: Tensor) -> Tensor:
        """Return the hidden layer of fused maps."""
        return self.base.hidden(weights, maps)

    def fuse(self, weights: Weights, local: Tensor, reference: Tensor) -> Tensor:
        """Return the fused maps of local maps a and global maps b, (D, B, channels, height, width)."""
        if self.operator != "conv":
            share = weights[LAMBDA]
            share = share.view(len(share), 1, -1, 1, 1)
            return share * reference + (1 - share) * local
        both = torch.cat([local, reference], dim=2).permute(0, 1, 3, 4, 2)
        kernels = weights[KERNEL][..., 0, 0]
        fused = dense(both.flatten(1, 3), kernels, weights[BIAS], self.dtype)
        return fused.view(*both.shape[:4], -1).permute(0, 1, 4, 2, 3)

    def fused_logits(
        self, weights: Weights, local: Tensor, reference: Tensor, owners: Tensor, keys: Tensor | None = None
    ) -> Tensor:
        """Return the logits of images whose local and global maps are known."""
        return self.logits(weights, self.hidden(weights, self.fuse(weights, local, reference)), owners, keys)

    def first_weights(self, seed: int) -> dict[str, Tensor]:
        """Return the plain network's weights and those of the operator."""
        weights = self.base.first_weights(seed)
        channels = len(weights["conv2.bias"])
        if self.operator != "conv":
            return weights | {LAMBDA: torch.zeros(channels if self.operator == "multi" else 1)}
        draws = stream(seed, "model", "fusion")
        shape = (channels, 2 * channels, 1, 1)
        if self.init == "xavier":
            return weights | {KERNEL: xavier(draws, shape), BIAS: torch.zeros(channels)}
        bound = (2 * channels) ** -0.5  # torch.nn.Conv2d: U(−1/√fan_in, 1/√fan_in) for kernels and biases
        kernel, bias = (torch.from_numpy(draws.uniform(-bound, bound, size)).float() for size in (shape, channels))
        return weights | {KERNEL: kernel, BIAS: bias}
