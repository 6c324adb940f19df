"""The classifier averaged class by class: who saw a class has a say in its row, who did not has hardly any.

The external synchronisation takes the mean of all stations (eq. external-aggr). A station that has not seen class c in
the round leaves row c of the last layer as it was, so the plain mean waters down what the others have learned of it.
With n_mc the samples of class c that the teams of station m had in the round, and q_mc = n_mc / Σ_c n_mc,

    W_c ← Σ_m π_mc W_c^m ,   b_c ← Σ_m π_mc b_c^m ,   π_mc = (q_mc + ε·q̄_c) / Σ_m (q_mc + ε·q̄_c) ,   ε = 0.001

with q̄_c the mean over stations; all else is the plain mean. Where all stations see a class alike π_mc = 1/M, as in the
paper. ``server.by_class`` switches it on, in the simulator and in a deployed park.
"""

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedgs.errors import ConfigError

FLOOR = 1e-3
"""ε: whoever has not seen a class keeps a thousandth of a say."""


def row_weights(seen: NDArray[np.int64], trained: NDArray[np.bool_]) -> NDArray[np.float64]:
    """Return π (stations, classes) from the samples (stations, classes) of a round; who did not train has no say."""
    shares = seen / np.maximum(seen.sum(axis=1, keepdims=True), 1)
    floor = FLOOR * shares[trained].mean(axis=0)
    floor[floor == 0.0] = 1.0  # nobody saw the class: all alike
    weights = (shares + floor) * trained[:, None]
    found: NDArray[np.float64] = weights / weights.sum(axis=0)
    return found


class ClassRows:
    """The part of the flat weights that is the classifier: its last layer, a row and a bias a class."""

    def __init__(self, shapes: Sequence[Sequence[int]]) -> None:
        """``shapes``: of the model's weights, in the order of the flat vector."""
        last = [tuple(shape) for shape in shapes[-2:]]
        if len(last) != 2 or len(last[0]) != 2 or last[1] != last[0][:1]:
            raise ConfigError("server.by_class needs a model whose last layer is dense with a bias; set it to false")
        self.classes, self._features = last[0]
        self.size = self.classes * (self._features + 1)
        """How many weights that is, the last ones."""

    def total(self, stations: Tensor, weights: NDArray[np.float64]) -> Tensor:
        """Return Σ_m π_mc (W_c^m, b_c^m) of these stations, (size,) in float64.

        ``stations`` (stations, weights of a model, or the last of them), ``weights`` their π.
        """
        total = torch.zeros(self.size, dtype=torch.float64, device=stations.device)
        for station, say in zip(stations, weights, strict=True):
            own = torch.from_numpy(say).to(stations.device)
            each = torch.cat([own.repeat_interleave(self._features), own])  # rows first, then biases, as they lie
            # Not 0 · NaN: who did not train may hold anything.
            total += torch.where(each > 0, each * station[-self.size :], 0.0)
        return total

    def split(self, total: Tensor) -> tuple[Tensor, Tensor]:
        """Return the rows (classes, features) and the biases (classes,) of a total, as float32 of their own."""
        rows, biases = torch.split(total.float(), [self.classes * self._features, self.classes])
        return rows.view(self.classes, self._features).clone(), biases.clone()
