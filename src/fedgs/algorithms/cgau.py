"""CGAU: a pre-trained network whose new classifier has a bias of its own for every device.

Rieger, Høegh, Hansen: "Client Adaptation improves Federated Learning with Simulated Non-IID Clients", 2020. The
classifier is made of conditional gated activation units. With h the one-hot id of the client, for each of one or two
layers, and then for the output:

    u ← tanh(W_f u + b_f + V_f h) ⊙ σ(W_g u + b_g + V_g h) ,        logits = W_o u + b_o + V_o h

V h is one column of V: a bias that belongs to the client. Here the columns are rows, (clients, units), picked by the
samples' clients. A client below 0 is one nobody knows: h = 0. The authors' code gives the V their own biases c too,
which adds nothing a bias b could not do; ``cond_bias`` has them. W_f and W_g lie in one matrix, W_f first, and so do
the b and the V: one product instead of two.

FedGS names "FineTuning+1×CGAU" and "+2×CGAU" with 256 units and without dropout, and does not say how the network was
pre-trained. Here: ``pretrain_rounds`` rounds of FedAvg on the same federation, or the model of an earlier run
(``pretrain_model``, its model.safetensors; trained on other writers it is what the authors did). Then the last layer
goes, the gated classifier comes, and FedAvg trains all of it (``freeze_backbone=true``: the classifier alone, as the
authors do).

``cond_aggregation="average"`` is the authors' code: column k moves on device k alone, so averaging shrinks its step to
n_k/Σn. ``"owner"`` is what their text says: the column of a device that took part is taken from it as it is, the others
stay. Every device is tested with its own id.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, Any, Literal, Unpack

import torch
from torch import Tensor

from fedgs.algorithms.baseline import Baseline
from fedgs.algorithms.options import Decay, at_least
from fedgs.algorithms.rule import State
from fedgs.algorithms.upload import Upload, Weights
from fedgs.errors import AlgorithmError
from fedgs.rng import stream
from fedgs.tasks.cnn import xavier
from fedgs.training.layout import Layout
from fedgs.training.network import Cuts, Forward, Network, WrappedNetwork
from fedgs.training.stacked_layers import dense, dropout

CONDITION = "condition"
"""How the names of the V end."""
CLASSIFIER = ("cgau", "output.")
"""How the names of the classifier's weights begin; all others are the backbone's."""


@dataclass(frozen=True)
class Cgau(Baseline):
    """Trains a classifier of conditional gated units."""

    layers: Annotated[int, at_least(1)] = 1
    """Gated layers: 1 or 2 in FedGS."""
    units: Annotated[int, at_least(1)] = 256
    """Units of a layer."""
    dropout: Decay = 0.0
    """Before each gated layer; the authors: 0.5. FedGS saw 3.3 points less with it."""
    cond_bias: bool = False
    """Biases of the V themselves, as in the authors' code."""
    cond_init: Literal["xavier", "zero"] = "xavier"
    """First columns: Xavier (the authors, as Keras does), or zero: all devices alike."""
    cond_aggregation: Literal["average", "owner"] = "average"
    """Who decides a device's column."""
    freeze_backbone: bool = False
    """Train the classifier alone."""
    pretrain_rounds: Annotated[int, at_least(0)] = 50  # type: ignore[misc]
    """Rounds of FedAvg before; they do not count as rounds of the run, the summary names them."""
    pretrain_model: str | None = None  # type: ignore[misc]
    """A model.safetensors, or the folder of a finished run, to start from instead."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.pretrain_model is not None and not isinstance(self.pretrain_model, str):
            raise AlgorithmError(f"pretrain_model={self.pretrain_model!r} is not possible; it is the path of a model")

    def network(self, base: Network, clients: int) -> "CgauNetwork":
        """Give the network the gated classifier."""
        return CgauNetwork(base, clients, self)

    def traffic(self, weights: Weights) -> tuple[int, int]:
        """A frozen backbone is sent to devices, which may be new, and never back."""
        down, up = super().traffic(weights)
        if self.freeze_backbone:
            up -= sum(weight.nbytes for name, weight in weights.items() if not name.startswith(CLASSIFIER))
        return down, up

    def update(self, state: State, weights: Weights, uploads: Sequence[Upload]) -> tuple[dict[str, Tensor], State]:
        """Average; columns by their owners where that is wanted."""
        new, memory = self.rule.update(state, weights, uploads)
        if self.cond_aggregation == "owner":
            for name in (name for name in new if name.endswith(CONDITION)):
                columns = weights[name].clone()
                for index, upload in enumerate(uploads):
                    owner = upload.metrics.get("device")
                    if owner is None:
                        raise AlgorithmError(f"uploads[{index}].metrics has no 'device', whose columns are its own")
                    columns[int(owner)] = upload.weights[name][int(owner)]
                new[name] = columns
        return new, memory


@dataclass(frozen=True)
class CgauNetwork(WrappedNetwork):
    """A network whose last layer is replaced by gated units."""

    clients: int
    """How many there are in all."""
    options: Cgau

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
            return self._gated(weights, seen.detach() if self.options.freeze_backbone else seen, clients, keys)

        cuts.setdefault("classify", gated)
        return self.base.forward(weights, inputs, clients, keys, **cuts)

    def _gated(self, weights: Weights, hidden: Tensor, clients: Tensor, keys: Tensor | None) -> Tensor:
        # V h as a product with the one-hot ids: much faster back than adding up rows by their numbers.
        one_hot = (clients[..., None] == torch.arange(self.clients, device=clients.device)).float()
        for layer in range(1, self.options.layers + 1):
            if keys is not None and self.options.dropout:
                hidden = dropout(hidden, keys.to(hidden.device) + layer, self.options.dropout)
            filtered, gate = self._conditioned(weights, f"cgau{layer}", hidden, one_hot).chunk(2, dim=-1)
            hidden = torch.tanh(filtered) * torch.sigmoid(gate)
        return self._conditioned(weights, "output", hidden, one_hot)

    def _conditioned(self, weights: Weights, name: str, inputs: Tensor, one_hot: Tensor) -> Tensor:
        plain = dense(inputs, weights[f"{name}.weight"], weights[f"{name}.bias"], self.dtype).float()
        own = torch.bmm(one_hot, weights[f"{name}.{CONDITION}"])
        if self.options.cond_bias:
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
        parts = [(f"cgau{layer}", 2, self.options.units) for layer in range(1, self.options.layers + 1)]
        for name, halves, outputs in [*parts, ("output", 1, self.num_classes)]:
            inputs = features if name == "cgau1" else self.options.units
            weights[f"{name}.weight"] = torch.cat([xavier(draws, (outputs, inputs)) for _ in range(halves)])
            weights[f"{name}.bias"] = torch.zeros(halves * outputs)
            columns = torch.cat([xavier(draws, (self.clients, outputs)) for _ in range(halves)], dim=1)
            weights[f"{name}.{CONDITION}"] = (
                columns if self.options.cond_init == "xavier" else torch.zeros_like(columns)
            )
            if self.options.cond_bias:
                weights[f"{name}.condition_bias"] = torch.zeros(halves * outputs)
        return weights
