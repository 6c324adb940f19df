"""Calibration: the class mix a station happens to see is taken out of what its model learns.

Between two external synchronisations a station trains on the classes its own devices have. Selection brings their mix
near P_real where it can; what it cannot mend pulls the station's model towards its own mix, and classes it does not see
are unlearned. The loss can know that (logit adjustment: Menon et al., 2021, "Long-tail learning via logit adjustment";
for federated learning FedLC: Zhang et al., 2022, "Federated learning with label distribution skew via logits
calibration"). With a_t the class counts of a station's super node t, n_t their sum and z the logits,

    mix     p_t = p_{t−1} + w_t·(a_t/n_t − p_{t−1})        w_t = max(1/t, 1/T): the mean of about a round
    shift   s_t = τ·log((p_t + ε·P_real) / P_real)         where P_real has the class, else 0
    train   cross-entropy of z + s_t;  test z as it is

By Bayes' rule a softmax z + log(p/P) that fits data of mix p means a z that fits the same data in mix P. So, with τ = 1
and as far as images of a class look alike at all stations, all of them learn the same z, whatever their mixes. The loss
that a run reports for training is that of the shifted logits. The mix is known to the station already, for selection
sees these counts. A shift is the same as moving the last layer's bias by s_t for this one gradient: so a deployed
station does it (:mod:`fedgs.deploy.rounds`).
"""

import numpy as np
from numpy.typing import NDArray

FLOOR = 1e-3
"""ε: a class that is not seen at all counts as a thousandth of its share; log 0 would take it out for good."""


class ClassMix:
    """The class mix that each station has seen lately."""

    def __init__(self, stations: int, target: NDArray[np.float64], memory: int, strength: float) -> None:
        """``memory``: T, the iterations of a round. ``strength``: τ; 0 is off."""
        self.target, self.memory, self.strength = target, memory, strength
        self.shares = np.zeros((stations, len(target)))
        """(stations, classes) p_t."""
        self.steps = np.zeros(stations, np.int64)
        """(stations,) t, the super nodes seen so far."""

    def follow(self, counts: NDArray[np.integer]) -> NDArray[np.float32]:
        """Take in the class counts (iterations, stations, classes) of a round; return the shift of each iteration.

        Where a station had nobody nothing changes.
        """
        shifts = np.zeros(counts.shape, np.float32)
        for row, seen in enumerate(counts):
            shifts[row] = self.step(seen)
        return shifts

    def step(self, counts: NDArray[np.integer]) -> NDArray[np.float64]:
        """Take in the class counts (stations, classes) of one iteration; return its shifts."""
        sizes = counts.sum(axis=1)
        there = sizes > 0
        self.steps += there
        weight = np.where(there, np.maximum(1.0 / np.maximum(self.steps, 1), 1.0 / self.memory), 0.0)
        self.shares += weight[:, None] * (counts / np.maximum(sizes, 1)[:, None] - self.shares)
        known = self.target > 0
        ratio = np.ones_like(self.shares)
        ratio[:, known] = self.shares[:, known] / self.target[known] + FLOOR
        ratio[self.steps == 0] = 1.0
        shifts: NDArray[np.float64] = self.strength * np.log(ratio)
        return shifts
