"""FedNova: devices that make more steps do not count for more than their data.

Wang, Liu, Liang, Joshi, Poor: "Tackling the Objective Inconsistency Problem in Heterogeneous Federated Optimization",
NeurIPS 2020. A device with twice the data makes twice the steps in an epoch and comes about twice as far; weighted by
its data as well, it counts four times. FedNova averages what the devices change *in a step*, and makes as many of these
average steps as they made on average:

    w_{t+1} = w_t − τ_eff Σ_k p_k (w_t − w_k) / τ_k ,      τ_eff = Σ_k p_k τ_k ,      p_k = n_k / Σ n

with τ_k the steps of device k, which it reports as ``metrics["steps"]``. Equal τ_k give FedAvg. This is the paper's
rule for plain SGD; for devices with momentum it has another τ_k, which is left out here.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import fsum
from numbers import Real
from typing import ClassVar

from torch import Tensor

from fedgs.algorithms.fedavg import FedAvg
from fedgs.algorithms.mean import average, normalised, sample_shares
from fedgs.algorithms.rule import State, check_round
from fedgs.algorithms.upload import Upload, Weights
from fedgs.errors import AlgorithmError


@dataclass(frozen=True)
class FedNova(FedAvg):
    """Normalised averaging; ``weighting`` is that of p_k."""

    reports: ClassVar = ("steps",)

    def update(self, state: State, weights: Weights, uploads: Sequence[Upload]) -> tuple[dict[str, Tensor], State]:
        """Return the old weights, τ_eff average steps further."""
        check_round("fednova", state, weights, uploads)
        shares = sample_shares(uploads, self.weighting)
        steps = [_steps(index, upload) for index, upload in enumerate(uploads)]
        effective = fsum(share * own for share, own in zip(shares, steps, strict=True))
        coefficients = [effective * share / own for share, own in zip(shares, steps, strict=True)]
        # Means are taken with shares that sum to 1: Σ c_k (w_k − w_t) is Σ c_k times the way to such a mean.
        stride = fsum(coefficients)
        return average(weights, uploads, normalised(coefficients), lambda _, old, mean: old + stride * (mean - old)), {}


def _steps(index: int, upload: Upload) -> float:
    steps = upload.metrics.get("steps")
    if isinstance(steps, bool) or not isinstance(steps, Real) or not 0 < steps < float("inf"):
        raise AlgorithmError(
            f"uploads[{index}].metrics['steps'] is {steps!r}; fednova needs the number of steps behind every upload"
        )
    return float(steps)
