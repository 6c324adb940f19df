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

import torch
from torch import Tensor

from fedgs.algorithms.mean import Weighting, checked_cast, sample_shares, weighted_mean
from fedgs.algorithms.options import check_choice, check_decay, check_flag, check_positive
from fedgs.algorithms.state import State, check_entries, filled, moments
from fedgs.algorithms.upload import Upload, Weights, check_uploads, check_weights


@dataclass(frozen=True)
class FedAvgM:
    """Server SGD with momentum on the average update."""

    server_lr: float = 0.316
    """η; 10^-0.5 was best for 62 characters in Reddi et al.'s grid, the original paper has 1."""
    beta: float = 0.9
    """β, the share of the old momentum that stays."""
    nesterov: bool = False
    """Whether to look ahead."""
    weighting: Weighting = "samples"
    """``samples``: average by n_k; ``uniform``: all alike."""

    def __post_init__(self) -> None:
        check_positive("server_lr", self.server_lr)
        check_decay("beta", self.beta)
        check_flag("nesterov", self.nesterov)
        check_choice("weighting", self.weighting, ("samples", "uniform"))

    def init(self, weights: Weights) -> State:
        """Return a momentum of zero."""
        check_weights(weights)
        return {"momentum": filled(weights, 0.0)}

    def update(self, state: State, weights: Weights, uploads: Sequence[Upload]) -> tuple[dict[str, Tensor], State]:
        """Return the next weights and momentum."""
        check_uploads(weights, uploads)
        check_entries("fedavgm", state, "momentum")
        momentum = moments("fedavgm", state, "momentum", weights)
        shares = sample_shares(uploads, self.weighting)
        new_weights: dict[str, Tensor] = {}
        for key, own in weights.items():
            new = weighted_mean(key, own, uploads, shares)
            if key in momentum:
                old = own.detach().to(torch.float64)
                gradient = old - new
                momentum[key] = self.beta * momentum[key] + gradient
                step = gradient + self.beta * momentum[key] if self.nesterov else momentum[key]
                new = old - self.server_lr * step
            new_weights[key] = checked_cast(key, new, own, uploads)
        return new_weights, {"momentum": momentum}
