"""IDA: uploads far from the others count less. With INTRAC, those that fit their own data badly count more.

Yeganeh, Farshad, Navab, Albarqouni: "Inverse Distance Aggregation for Federated Learning with Non-IID Data", 2020.

    ω̄   = (1/|S|) Σ_k w_k                                  the reference
    d_k = ‖ω̄ − w_k‖₁                                       over the whole model, one number an upload
    α_k ∝ 1 / (d_k + ε)                                    inverse distance
    ι_k ∝ 1 / max(1/Q, acc_k)                              INTRAC: inverse training accuracy, Q classes, 1/Q is chance
    φ_k = n_k / Σ n                                        data size
    c_k ∝ α_k [· ι_k] [· φ_k],   Σ c_k = 1,   w_{t+1} = Σ_k c_k w_k

No code was published; norm, ε and the product of coefficients follow the common reading of the paper. The distances are
taken once: recomputing the reference with the new shares would be another method (the geometric median).

Uploads are read twice, tensor by tensor: the first pass takes the reference and all distances to it, the second the
weighted mean. All uploads must be there together, 100 × 26.4 MB for the paper's CNN; next to them a pass needs one
float64 tensor the size of the largest layer (on a GPU a few, for intermediate values).

For INTRAC devices report their training accuracy. The paper does not say which: ``train_acc="final"`` is that of the
finished local model on all its training samples; ``"running"`` over the batches of the last local epoch, as they were
trained on, for nothing. Without ``intrac`` nobody looks at it, and devices do not measure it.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import isfinite, sqrt
from numbers import Real
from typing import Annotated, Literal

from torch import Tensor

from fedgs.algorithms.baseline import Baseline
from fedgs.algorithms.mean import Norm, average, distances_to, normalised, sample_shares, weighted_mean
from fedgs.algorithms.options import Positive, at_least, check_fields
from fedgs.algorithms.rule import State, check_round
from fedgs.algorithms.upload import Upload, Weights, check_finite, check_weights
from fedgs.errors import AlgorithmError


@dataclass(frozen=True)
class Ida:
    """Mean weighted by inverse distance, and by training accuracy or data size where asked."""

    norm: Norm = "l1"
    """Of the distance."""
    reference: Literal["mean", "weighted"] = "mean"
    """ω̄: the plain mean, or the one weighted by n_k."""
    intrac: bool = False
    """Whether to multiply by ι_k; needs ``metrics["train_acc"]`` of every upload."""
    data_size: bool = False
    """Whether to multiply by φ_k."""
    eps: Positive = 1e-8
    """ε, so that an upload at the reference has a finite weight."""
    classes: Annotated[int, at_least(2)] = 62
    """Q."""

    def __post_init__(self) -> None:
        check_fields(self)

    @property
    def reports(self) -> tuple[str, ...]:
        """What participants must report: their training accuracy, for INTRAC."""
        return ("train_acc",) if self.intrac else ()

    def init(self, weights: Weights) -> State:
        """Return what is remembered before the first round: nothing."""
        check_weights(weights)
        return {}

    def update(self, state: State, weights: Weights, uploads: Sequence[Upload]) -> tuple[dict[str, Tensor], State]:
        """Return the mean of the uploads with the shares c_k."""
        check_round("ida", state, weights, uploads)
        return average(weights, uploads, self.shares(weights, uploads)), {}

    def shares(self, weights: Weights, uploads: Sequence[Upload]) -> list[float]:
        """Return c_k."""
        shares = self._inverse_distances(weights, uploads)
        if self.intrac:
            accuracies = [max(1 / self.classes, _train_accuracy(index, upload)) for index, upload in enumerate(uploads)]
            shares = normalised([share / accuracy for share, accuracy in zip(shares, accuracies, strict=True)])
        if self.data_size:
            sizes = sample_shares(uploads, "samples")
            shares = normalised([share * size for share, size in zip(shares, sizes, strict=True)])
        return shares

    def _inverse_distances(self, weights: Weights, uploads: Sequence[Upload]) -> list[float]:
        reference_shares = sample_shares(uploads, "uniform" if self.reference == "mean" else "samples")
        distances = [0.0] * len(uploads)
        for key, own in weights.items():
            if own.is_floating_point():
                reference = weighted_mean(key, own, uploads, reference_shares)
                found = distances_to(reference, key, uploads, self.norm)
                if not all(map(isfinite, found)):
                    check_finite(key, uploads)
                    raise AlgorithmError(f"uploads lie too far apart in {key!r} for float64; lower the learning rate")
                distances = [so_far + more for so_far, more in zip(distances, found, strict=True)]
        if self.norm == "l2":
            distances = [sqrt(distance) for distance in distances]
        # Relative to the nearest, the inverses are at most 1 however small ε is.
        nearest = min(distances) + self.eps
        return normalised([nearest / (distance + self.eps) for distance in distances])


def _train_accuracy(index: int, upload: Upload) -> float:
    value = upload.metrics.get("train_acc")
    if value is None:
        raise AlgorithmError(
            f"uploads[{index}].metrics has no 'train_acc', which INTRAC needs; report the training accuracy"
        )
    if isinstance(value, bool) or not isinstance(value, Real) or not 0 <= value <= 1:
        raise AlgorithmError(
            f"uploads[{index}].metrics['train_acc'] is {value!r}; an accuracy lies between 0 and 1 (0.87, not 87)"
        )
    return float(value)


@dataclass(frozen=True)
class WithAccuracy(Baseline):
    """FedAvg's local training, and a report where the server's rule wants it."""

    train_acc: Literal["final", "running"] = "final"  # type: ignore[misc]
    """Which accuracy."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if isinstance(self.rule, Ida) and not self.rule.intrac:
            object.__setattr__(self, "train_acc", None)
