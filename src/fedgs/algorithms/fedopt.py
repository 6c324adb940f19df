"""FedAdagrad, FedAdam, FedYogi: an adaptive optimiser at the server.

Reddi, Charles, Zaheer, Garrett, Rush, Konečný, Kumar, McMahan: "Adaptive Federated Optimization", ICLR 2021,
Algorithm 2.

    Δ_t = Σ_k p_k (w_k − w_t)                              the average update
    m_t = β₁ m_{t−1} + (1 − β₁) Δ_t
    v_t = v_{t−1} + Δ_t²                                   FedAdagrad
          β₂ v_{t−1} + (1 − β₂) Δ_t²                       FedAdam
          v_{t−1} − (1 − β₂) Δ_t² sign(v_{t−1} − Δ_t²)     FedYogi
    w_{t+1} = w_t + η m_t / (√v_t + τ)                     element by element, τ outside the root

with m_{−1} = 0 and v_{−1} = τ². The paper corrects no bias and squares the raw Δ_t, not m_t. Code in the wild deviates;
the options cover it:

- ``v_init="zero"``: Flower and the Keras optimisers start v at 0 (the paper asks for at least τ²).
- ``bias_correction="flower"``: Flower's FedAdam multiplies η by √(1 − β₂^{t+1}) / (1 − β₁^{t+1}) in its round
  t = 1, 2, …, so its first round has exponent 2. ``"adam"`` has those of Kingma and Ba (2015) and of Keras: 1 in
  the first round.
- ``weighting="uniform"``: Algorithm 2 as printed has p_k = 1/|S|; the experiments of its authors weigh by n_k.

When every |Δ| is far below τ this is momentum with server rate η/τ (η/2τ while the initial τ² lasts).
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from math import sqrt
from typing import ClassVar, Literal

import torch
from torch import Tensor

from fedgs.algorithms.mean import Weighting, average, explain_non_finite, sample_shares
from fedgs.algorithms.options import Decay, Positive, check_fields
from fedgs.algorithms.rule import State, check_round, filled
from fedgs.algorithms.upload import Upload, Weights, check_weights, first_non_finite
from fedgs.errors import AlgorithmError


@dataclass(frozen=True)
class FedOpt(ABC):
    """What the three have in common; each adds its second moment."""

    name: ClassVar[str]

    server_lr: Positive = 0.00316
    """η; the defaults are the best cells of the authors' grid for 62 characters."""
    beta1: Decay = 0.9
    """β₁, the share of the old first moment that stays."""
    tau: Positive = 1e-3
    """τ, how little adaptive it is."""
    v_init: Literal["tau2", "zero"] = "tau2"
    """v_{−1}: τ² or 0."""
    weighting: Weighting = "samples"
    """``samples``: average by n_k; ``uniform``: all alike."""

    def __post_init__(self) -> None:
        check_fields(self)
        if not 0 < self.tau * self.tau < float("inf"):
            raise AlgorithmError(f"tau={self.tau!r} is not possible; its square is not a number above 0 in float64")

    def init(self, weights: Weights) -> State:
        """Return moments before the first round."""
        check_weights(weights)
        start = self.tau * self.tau if self.v_init == "tau2" else 0.0
        return {"round": 0, "first_moment": filled(weights, 0.0), "second_moment": filled(weights, start)}

    def update(self, state: State, weights: Weights, uploads: Sequence[Upload]) -> tuple[dict[str, Tensor], State]:
        """Return the next weights and moments."""
        moments = ("first_moment", "second_moment")
        first, second = check_round(self.name, state, weights, uploads, *moments, counts=("round",))
        rounds = int(state["round"]) + 1  # type: ignore[arg-type]  # checked: it is a number
        rate = self.server_lr * self.correction(rounds)

        def step(key: str, old: Tensor, mean: Tensor) -> Tensor:
            change = mean - old
            first[key] = self.beta1 * first[key] + (1 - self.beta1) * change
            second[key] = self.second_moment(second[key], change * change)
            return old + rate * first[key] / (second[key].sqrt() + self.tau)

        new = average(weights, uploads, sample_shares(uploads, self.weighting), step)
        for key, moment in second.items():
            # A square too large for float64 would divide every later step to zero without a word.
            bad = first_non_finite(moment)
            if bad is not None:
                explain_non_finite(key, bad, weights[key])
        return new, {"round": rounds, "first_moment": first, "second_moment": second}

    @abstractmethod
    def second_moment(self, old: Tensor, square: Tensor) -> Tensor:
        """Return v_t from v_{t−1} and Δ_t²."""

    def correction(self, rounds: int) -> float:
        """Return the factor on η in this round, counted from 1."""
        return 1.0


@dataclass(frozen=True)
class FedAdagrad(FedOpt):
    """Second moment: the sum of all squares so far."""

    name: ClassVar[str] = "fedadagrad"

    server_lr: Positive = 0.01
    """Not the 10^-1 that was best for Reddi et al. with τ = 10^-2: with 10^-3 FEMNIST is not learnt at that rate."""
    beta1: Decay = 0.0
    beta2: float = 0.0
    """The paper writes β₁ = β₂ = 0; nothing decays, so no other β₂ has a meaning."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if isinstance(self.beta2, bool) or self.beta2 != 0:
            raise AlgorithmError(
                f"beta2={self.beta2!r} is not possible; the second moment of fedadagrad never decays, leave it out"
            )

    def second_moment(self, old: Tensor, square: Tensor) -> Tensor:
        """Return v + Δ²."""
        return old + square


@dataclass(frozen=True)
class FedAdam(FedOpt):
    """Second moment: an exponential average of the squares."""

    name: ClassVar[str] = "fedadam"

    beta2: Decay = 0.99
    """β₂, the share of the old second moment that stays."""
    bias_correction: Literal["none", "adam", "flower"] = "none"
    """``none``: the paper; ``adam``: exponent 1 in the first round; ``flower``: exponent 2."""

    def second_moment(self, old: Tensor, square: Tensor) -> Tensor:
        """Return β₂ v + (1 − β₂) Δ²."""
        return self.beta2 * old + (1 - self.beta2) * square

    def correction(self, rounds: int) -> float:
        """Return √(1 − β₂^t) / (1 − β₁^t), t from 1 (``adam``) or 2 (``flower``)."""
        if self.bias_correction == "none":
            return 1.0
        exponent = rounds + 1 if self.bias_correction == "flower" else rounds
        return sqrt(1 - self.beta2**exponent) / (1 - self.beta1**exponent)


@dataclass(frozen=True)
class FedYogi(FedAdam):
    """Second moment: moves towards Δ² by at most (1 − β₂) Δ², however large it is."""

    name: ClassVar[str] = "fedyogi"

    def second_moment(self, old: Tensor, square: Tensor) -> Tensor:
        """Return v − (1 − β₂) Δ² sign(v − Δ²)."""
        return old - (1 - self.beta2) * square * torch.sign(old - square)
