"""The classifier averaged class by class: who saw a class has a say in its row, who did not has hardly any.

The external synchronisation takes the mean of all stations (eq. external-aggr). A station that has not seen class c in
the round leaves row c of the last layer as it was, so the plain mean waters down what the others have learned of it.
With n_mc the samples of class c that the teams of station m had in the round, and q_mc = n_mc / Σ_c n_mc,

    W_c ← Σ_m π_mc W_c^m ,   b_c ← Σ_m π_mc b_c^m ,   π_mc = (q_mc + ε·q̄_c) / Σ_m (q_mc + ε·q̄_c) ,   ε = 0.001

with q̄_c the mean over stations; all else is the plain mean. Where all stations see a class alike π_mc = 1/M, as in the
paper. ``server.class_wise`` switches it on, in the simulator and in a deployed park.
"""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedgs.errors import ConfigError
from fedgs.weights import WeightShapes

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

    def __init__(self, shapes: WeightShapes, head: str | None, classes: int) -> None:
        """``head``: the name of the last layer."""
        known = dict(shapes.tensors)
        weight, bias = (known.get(f"{head}.{part}", ()) for part in ("weight", "bias"))
        if len(weight) != 2 or weight[0] != classes or bias != (classes,):
            raise ConfigError(
                "server.class_wise needs a last layer that is dense with a bias a class; name it with task.head, or "
                "set server.class_wise=false"
            )
        self.weight, self.bias = (shapes.places[f"{head}.{part}"] for part in ("weight", "bias"))
        self.classes, self._features = weight

    def average(self, stations: Tensor, weights: NDArray[np.float64]) -> Tensor:
        """Return Σ_m π_mc (W_c^m, b_c^m) of these stations, rows first, then biases; in float64.

        ``stations`` (stations, size of a model), ``weights`` their π.
        """
        total = torch.zeros(self.classes * (self._features + 1), dtype=torch.float64, device=stations.device)
        for station, say in zip(stations, weights, strict=True):
            own = torch.from_numpy(say).to(stations.device)
            each = torch.cat([own.repeat_interleave(self._features), own])
            mine = torch.cat([station[self.weight], station[self.bias]])
            # Not 0 · NaN: who did not train may hold anything.
            total += torch.where(each > 0, each * mine, 0.0)
        return total

    def put(self, total: Tensor, into: Tensor) -> None:
        """Write an average into the flat weights of a model."""
        rows, biases = torch.split(total, [self.classes * self._features, self.classes])
        into[self.weight], into[self.bias] = rows.to(into), biases.to(into)
