"""FedAvgM: momentum at the server.

Hsu, Qi, Brown: "Measuring the Effects of Non-Identical Data Distribution for Federated Visual Classification", 2019.

    d = w_t − Σ_k p_k w_k                     the pseudo-gradient: old minus average
    v ← β v + d                               no dampening by 1 − β
    w_{t+1} = w_t − η v                       or, with Nesterov's look-ahead, w_t − η (d + β v)

The effective server step is η/(1 − β), ten times η at β = 0.9. The original experiments use Nesterov's form; Reddi et
al. (2021), and this rule unless told otherwise, the plain one. β = 0 with η = 1 is FedAvg.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from fedgs.algorithms.mean import Weighting, average, sample_shares
from fedgs.algorithms.options import Decay, Positive, check_fields
from fedgs.algorithms.rule import State, check_round, filled
from fedgs.algorithms.upload import Upload, Weights, check_weights


@dataclass(frozen=True)
class FedAvgM:
    """Server SGD with momentum on the average update."""

    server_lr: Positive = 0.316
    """η; 10^-0.5 was best for 62 characters in Reddi et al.'s grid, the original paper has 1."""
    beta: Decay = 0.9
    """β, the share of the old momentum that stays."""
    nesterov: bool = False
    """Whether to look ahead."""
    weighting: Weighting = "samples"
    """``samples``: average by n_k; ``uniform``: all alike."""

    def __post_init__(self) -> None:
        check_fields(self)

    def init(self, weights: Weights) -> State:
        """Return a momentum of zero."""
        check_weights(weights)
        return {"momentum": filled(weights, 0.0)}

    def update(self, state: State, weights: Weights, uploads: Sequence[Upload]) -> tuple[dict[str, Tensor], State]:
        """Return the next weights and momentum."""
        (momentum,) = check_round("fedavgm", state, weights, uploads, "momentum")

        def step(key: str, old: Tensor, mean: Tensor) -> Tensor:
            gradient = old - mean
            momentum[key] = self.beta * momentum[key] + gradient
            return old - self.server_lr * (gradient + self.beta * momentum[key] if self.nesterov else momentum[key])

        return average(weights, uploads, sample_shares(uploads, self.weighting), step), {"momentum": momentum}
