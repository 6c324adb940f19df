"""Conditional gated activation units: a classifier that knows which device it works for (Rieger et al., 2020).

With h the one-hot id of the device, for each of one or two layers, and then for the output:

    u ← tanh(W_f u + b_f + V_f h) ⊙ σ(W_g u + b_g + V_g h) ,        logits = W_o u + b_o + V_o h

V h is one column of V: a bias that belongs to the device. Here the columns are rows, (devices, units), picked by the
samples' owners. An owner below 0 is a device nobody knows: h = 0. The authors' code gives the V their own biases c too,
which adds nothing a bias b could not do; ``cond_bias`` has them. W_f and W_g lie in one matrix, W_f first, and so do
the b and the V: one product instead of two.
"""

from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor

from fedgs.rng import stream
from fedgs.tasks.cnn import xavier
from fedgs.training.stacked_layers import dense, dropout
from fedgs.training.stacked_networks import Network, Weights

CONDITION = "condition"
"""How the names of the V end."""
CLASSIFIER = ("cgau", "output.")
"""How the names of the classifier's weights begin; all others are the backbone's."""


@dataclass(frozen=True)
class CgauNetwork(Network):
    """A network whose classifier is made of gated units."""

    base: Network = field(kw_only=True)
    devices: int = field(kw_only=True)
    layers: int = 1
    units: int = 256
    dropout: float = 0.0
    cond_bias: bool = False
    cond_init: Literal["xavier", "zero"] = "xavier"
    freeze_backbone: bool = False

    @property
    def name(self) -> str:
        """The name of the plain network."""
        return self.base.name

    def maps(self, weights: Weights, images: Tensor) -> Tensor:
        """Return the plain network's maps."""
        return self.base.maps(weights, images)

    def hidden(self, weights: Weights, maps: Tensor) -> Tensor:
        """Return the plain network's features; a frozen backbone gets no gradient."""
        hidden = self.base.hidden(weights, maps).float()
        return hidden.detach() if self.freeze_backbone else hidden

    def logits(self, weights: Weights, hidden: Tensor, owners: Tensor, keys: Tensor | None = None) -> Tensor:
        """Return the logits of the gated classifier."""
        # V h as a product with the one-hot ids: much faster back than adding up rows by their numbers.
        one_hot = (owners[..., None] == torch.arange(self.devices, device=owners.device)).float()
        for layer in range(1, self.layers + 1):
            if keys is not None and self.dropout:
                hidden = dropout(hidden, keys + layer, self.dropout)
            filtered, gate = self._conditioned(weights, f"cgau{layer}", hidden, one_hot).chunk(2, dim=-1)
            hidden = torch.tanh(filtered) * torch.sigmoid(gate)
        return self._conditioned(weights, "output", hidden, one_hot)

    def _conditioned(self, weights: Weights, name: str, inputs: Tensor, one_hot: Tensor) -> Tensor:
        plain = dense(inputs, weights[f"{name}.weight"], weights[f"{name}.bias"], self.dtype).float()
        own = torch.bmm(one_hot, weights[f"{name}.{CONDITION}"])
        if self.cond_bias:
            own = own + weights[f"{name}.condition_bias"][:, None]
        return plain + own

    def first_weights(self, seed: int) -> dict[str, Tensor]:
        """Return the backbone's first weights and those of a new classifier."""
        return self.on_backbone(self.base.first_weights(seed), seed)

    def on_backbone(self, plain: Weights, seed: int) -> dict[str, Tensor]:
        """Return the weights of a new classifier on the backbone of a trained plain network."""
        weights = {name: weight for name, weight in plain.items() if not name.startswith("dense2.")}
        features = plain["dense1.bias"].numel()
        draws = stream(seed, "model", "cgau")
        parts = [(f"cgau{layer}", 2, self.units) for layer in range(1, self.layers + 1)]
        for name, halves, outputs in [*parts, ("output", 1, self.num_classes)]:
            inputs = features if name == "cgau1" else self.units
            weights[f"{name}.weight"] = torch.cat([xavier(draws, (outputs, inputs)) for _ in range(halves)])
            weights[f"{name}.bias"] = torch.zeros(halves * outputs)
            columns = torch.cat([xavier(draws, (self.devices, outputs)) for _ in range(halves)], dim=1)
            weights[f"{name}.{CONDITION}"] = columns if self.cond_init == "xavier" else torch.zeros_like(columns)
            if self.cond_bias:
                weights[f"{name}.condition_bias"] = torch.zeros(halves * outputs)
        return weights
