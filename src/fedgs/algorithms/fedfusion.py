"""FedFusion: a device sees through two extractors, its own and the frozen global one, and learns how to mix them.

Yao, Huang, Wu, Zhang, Sun: "Towards Faster and Better Federated Learning: A Feature Fusion Baseline", ICIP 2019. With
the feature maps a = E_local(x), b = E_global(x) the device trains E_local, an operator z = fuse(a, b) and the head on
the cross-entropy of head(z), and uploads these; never the frozen extractor. The operators are

    conv     z = Conv1×1([a; b])            twice the channels → the channels, with bias, the local maps a first
    multi    z = λ ⊙ b + (1 − λ) ⊙ a        one λ a channel
    single   z = λ b + (1 − λ) a            one λ

λ weighs the global maps b, is not bounded, and starts at 0: the plain network. Maps are (D, B, channels, …): images,
signals or plain features.

The server averages (by n_k; ``weighting="uniform"`` is the authors' code), and for the operators multi and single
smooths

    λ_{t+1} = (1 − m) mean_k λ_k + m λ_t ,        m = 0.9

Tested are E_{t+1} as the local and E_t as the global extractor, as the authors' code does:
``eval_reference="previous"``. ``"current"`` takes E_{t+1} for both: what a device starts the next round with, and with
multi and single the plain network. Both are logged.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal

import torch
from torch import Tensor

from fedgs.algorithms.baseline import Baseline, Batch, Sent
from fedgs.algorithms.options import Decay
from fedgs.algorithms.rule import State
from fedgs.algorithms.upload import Upload, Weights
from fedgs.data.arrays import map_tree
from fedgs.rng import stream
from fedgs.tasks.cnn import xavier
from fedgs.training.layout import Layout
from fedgs.training.network import Network, WrappedNetwork
from fedgs.training.stacked_layers import dense

OPERATOR = "fusion."
"""How the names of the operator's weights begin."""
LAMBDA, KERNEL, BIAS = "fusion.lambda", "fusion.weight", "fusion.bias"


@dataclass(frozen=True)
class FusionNetwork(WrappedNetwork):
    """A network with a fusion operator behind its features."""

    operator: Literal["conv", "multi", "single"] = "conv"
    init: Literal["xavier", "torch_default"] = "xavier"
    """How the 1×1 kernels are drawn; torch_default is the authors' code."""

    @cached_property
    def layout(self) -> Layout:  # type: ignore[override]
        """The plain network's weights and those of the operator."""
        new = {name: weight for name, weight in self.first_weights(0).items() if name.startswith(OPERATOR)}
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


@dataclass(frozen=True)
class FedFusion(Baseline):
    """Trains with two extractors."""

    operator: Literal["conv", "multi", "single"] = "conv"
    """How maps are fused."""
    ema: Decay = 0.9
    """m, what stays of λ."""
    eval_reference: Literal["previous", "current"] = "previous"
    """The global extractor of the test."""
    conv_init: Literal["xavier", "torch_default"] = "xavier"
    """First weights of the operator conv."""

    runs_global_model = True

    def network(self, base: Network, clients: int) -> FusionNetwork:
        """Put the operator into the network."""
        return FusionNetwork(base, self.operator, self.conv_init)

    def init(self, weights: Weights) -> State:
        """Remember the first extractor."""
        return {**self.rule.init(weights), "reference": _extractor(weights)}

    def objective(self, network: Network, weights: Weights, sent: Sent, batch: Batch) -> tuple[Tensor, Any]:
        """Return the loss of the fused maps; no gradient goes into the global extractor."""
        assert isinstance(network, FusionNetwork)
        # The same extractor for all clients: one big batch.
        together = map_tree(lambda value: value.flatten(0, 1)[None], batch.inputs)
        reference = network.features(sent.weights, together)[0]
        reference = reference.view(*batch.shares.shape, *reference.shape[1:])
        outputs = network.fused(weights, batch.inputs, reference, batch.clients, batch.keys)
        return network.loss(outputs, batch), outputs

    def update(self, state: State, weights: Weights, uploads: Sequence[Upload]) -> tuple[dict[str, Tensor], State]:
        """Average, smooth λ, and remember the extractor the uploads started from."""
        memory = {entry: value for entry, value in state.items() if entry != "reference"}
        new, memory = self.rule.update(memory, weights, uploads)
        if self.operator != "conv":
            new[LAMBDA] = (1 - self.ema) * new[LAMBDA] + self.ema * weights[LAMBDA]
        return new, {**memory, "reference": _extractor(weights)}

    def outputs(
        self, network: Network, weights: Weights, memory: Mapping[str, Any], inputs: Any, clients: Tensor
    ) -> Any:
        """Test with both extractors."""
        assert isinstance(network, FusionNetwork)
        if self.eval_reference == "current":
            return network.fused(weights, inputs, None, clients)
        # Running statistics are those of now: they are not part of what is remembered.
        previous = {name: weight.to(clients.device)[None] for name, weight in memory["reference"].items()}
        return network.fused(weights, inputs, network.features({**weights, **previous}, inputs), clients)

    def tests(self) -> Mapping[str, Baseline]:
        """Log the other reference too."""
        other: Literal["previous", "current"] = "current" if self.eval_reference == "previous" else "previous"
        return {f"{other}_reference": replace(self, eval_reference=other)}


def _extractor(weights: Weights) -> dict[str, Tensor]:
    return {name: weight.detach().clone() for name, weight in weights.items() if not name.startswith(OPERATOR)}
