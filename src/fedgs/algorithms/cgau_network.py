"""Conditional gated activation units: a classifier that knows which client it works for (Rieger et al., 2020).

With h the one-hot id of the client, for each of one or two layers, and then for the output:

    u ← tanh(W_f u + b_f + V_f h) ⊙ σ(W_g u + b_g + V_g h) ,        logits = W_o u + b_o + V_o h

V h is one column of V: a bias that belongs to the client. Here the columns are rows, (clients, units), picked by the
samples' clients. A client below 0 is one nobody knows: h = 0. The authors' code gives the V their own biases c too,
which adds nothing a bias b could not do; ``cond_bias`` has them. W_f and W_g lie in one matrix, W_f first, and so do
the b and the V: one product instead of two.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, Unpack

import torch
from torch import Tensor

from fedgs.rng import stream
from fedgs.tasks.cnn import xavier
from fedgs.training.layout import Layout
from fedgs.training.network import Cuts, Forward, WrappedNetwork
from fedgs.training.objective import Weights
from fedgs.training.stacked_layers import dense, dropout

CONDITION = "condition"
"""How the names of the V end."""
CLASSIFIER = ("cgau", "output.")
"""How the names of the classifier's weights begin; all others are the backbone's."""


@dataclass(frozen=True)
class CgauNetwork(WrappedNetwork):
    """A network whose last layer is replaced by gated units."""

    clients: int
    """How many there are in all."""
    dtype: torch.dtype = torch.float32
    layers: int = 1
    units: int = 256
    dropout: float = 0.0
    cond_bias: bool = False
    cond_init: Literal["xavier", "zero"] = "xavier"
    freeze_backbone: bool = False

    @cached_property
    def layout(self) -> Layout:  # type: ignore[override]
        """The backbone's weights without the last layer's, and those of the new classifier."""
        new = {name: weight for name, weight in self.first_weights(0).items() if name.startswith(CLASSIFIER)}
        return self.base.layout.changed(f"{self.head}.", new)

    def forward(
        self, weights: Weights, inputs: Any, clients: Tensor, keys: Tensor | None = None, **cuts: Unpack[Cuts]
    ) -> Forward:
        """Return the logits of the gated classifier; a frozen backbone gets no gradient."""

        def gated(seen: Tensor) -> Tensor:
            seen = seen.float()
            return self._gated(weights, seen.detach() if self.freeze_backbone else seen, clients, keys)

        cuts.setdefault("classify", gated)
        return self.base.forward(weights, inputs, clients, keys, **cuts)

    def _gated(self, weights: Weights, hidden: Tensor, clients: Tensor, keys: Tensor | None) -> Tensor:
        # V h as a product with the one-hot ids: much faster back than adding up rows by their numbers.
        one_hot = (clients[..., None] == torch.arange(self.clients, device=clients.device)).float()
        for layer in range(1, self.layers + 1):
            if keys is not None and self.dropout:
                hidden = dropout(hidden, keys.to(hidden.device) + layer, self.dropout)
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
        weights = {name: weight for name, weight in plain.items() if not name.startswith(f"{self.head}.")}
        features = plain[f"{self.head}.weight"].shape[1]
        draws = stream(seed, "model", "cgau")
        parts = [(f"cgau{layer}", 2, self.units) for layer in range(1, self.layers + 1)]
        for name, halves, outputs in [*parts, ("output", 1, self.num_classes)]:
            inputs = features if name == "cgau1" else self.units
            weights[f"{name}.weight"] = torch.cat([xavier(draws, (outputs, inputs)) for _ in range(halves)])
            weights[f"{name}.bias"] = torch.zeros(halves * outputs)
            columns = torch.cat([xavier(draws, (self.clients, outputs)) for _ in range(halves)], dim=1)
            weights[f"{name}.{CONDITION}"] = columns if self.cond_init == "xavier" else torch.zeros_like(columns)
            if self.cond_bias:
                weights[f"{name}.condition_bias"] = torch.zeros(halves * outputs)
        return weights
