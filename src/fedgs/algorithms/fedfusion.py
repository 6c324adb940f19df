"""FedFusion: a device sees through two extractors, its own and the frozen global one, and learns how to mix them.

Yao, Huang, Wu, Zhang, Sun: "Towards Faster and Better Federated Learning: A Feature Fusion Baseline", ICIP 2019. With
a = E_local(x), b = E_global(x) (:mod:`fedgs.algorithms.fusion_network` has the operators) the device trains E_local,
the operator and the head on the cross-entropy of head(fuse(a, b)), and uploads these; never the frozen extractor. The
server averages (by n_k; ``weighting="uniform"`` is the authors' code), and for the operators multi and single smooths

    λ_{t+1} = (1 − m) mean_k λ_k + m λ_t ,        m = 0.9

Tested are E_{t+1} as the local and E_t as the global extractor, as the authors' code does:
``eval_reference="previous"``. ``"current"`` takes E_{t+1} for both: what a device starts the next round with, and with
multi and single the plain network. Both are logged.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from torch import Tensor

from fedgs.algorithms.baseline import Baseline, Batch, Sent
from fedgs.algorithms.fusion_network import LAMBDA, OPERATORS, FusionNetwork
from fedgs.algorithms.options import check_choice, check_decay
from fedgs.algorithms.state import State
from fedgs.algorithms.upload import Upload, Weights
from fedgs.data.arrays import map_tree
from fedgs.training.network import Network

OPERATOR = "fusion."
"""How the names of the operator's weights begin."""


@dataclass(frozen=True)
class FedFusion(Baseline):
    """Trains with two extractors."""

    operator: Literal["conv", "multi", "single"] = "conv"
    """How maps are fused."""
    ema: float = 0.9
    """m, what stays of λ."""
    eval_reference: Literal["previous", "current"] = "previous"
    """The global extractor of the test."""
    conv_init: Literal["xavier", "torch_default"] = "xavier"
    """First weights of the operator conv."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choice("operator", self.operator, OPERATORS)
        check_choice("eval_reference", self.eval_reference, ("previous", "current"))
        check_choice("conv_init", self.conv_init, ("xavier", "torch_default"))
        check_decay("ema", self.ema)

    def network(self, base: Network, clients: int) -> FusionNetwork:
        """Put the operator into the network."""
        return FusionNetwork(base, base.dtype, self.operator, self.conv_init)

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
