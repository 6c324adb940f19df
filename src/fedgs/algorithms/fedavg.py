"""FedAvg: the mean of the uploads, weighted by their numbers of training samples.

McMahan, Moore, Ramage, Hampson, Agüera y Arcas: "Communication-Efficient Learning of Deep Networks from Decentralized
Data", AISTATS 2017.

    w_{t+1} = Σ_{k∈S_t} (n_k / Σ_{j∈S_t} n_j) w_k

The denominator is the total over the participants of the round, not over all devices. ``weighting="uniform"`` takes
1/|S_t| instead: what the top server of FedGS does with its factories.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from fedgs.algorithms.mean import Weighting, average, sample_shares
from fedgs.algorithms.options import check_fields
from fedgs.algorithms.rule import State, check_round
from fedgs.algorithms.upload import Upload, Weights, check_weights


@dataclass(frozen=True)
class FedAvg:
    """Weighted mean."""

    weighting: Weighting = "samples"
    """``samples``: by n_k; ``uniform``: all alike."""

    def __post_init__(self) -> None:
        check_fields(self)

    def init(self, weights: Weights) -> State:
        """Return what is remembered before the first round: nothing."""
        check_weights(weights)
        return {}

    def update(self, state: State, weights: Weights, uploads: Sequence[Upload]) -> tuple[dict[str, Tensor], State]:
        """Return the mean of the uploads."""
        check_round("fedavg", state, weights, uploads)
        return average(weights, uploads, sample_shares(uploads, self.weighting)), {}
