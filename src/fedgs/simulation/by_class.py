"""The classifier averaged class by class: who saw a class has a say in its row, who did not has hardly any.

The external synchronisation takes the mean of all stations (eq. external-aggr). A station that has not seen class c in
the round leaves row c of the last layer as it was, so the plain mean waters down what the others have learned of it.
With n_mc the samples of class c that the teams of station m had in the round, and q_mc = n_mc / Σ_c n_mc,

    W_c ← Σ_m π_mc W_c^m ,   b_c ← Σ_m π_mc b_c^m ,   π_mc = (q_mc + ε·q̄_c) / Σ_m (q_mc + ε·q̄_c) ,   ε = 0.001

with q̄_c the mean over stations; all else is the plain mean. Where all stations see a class alike π_mc = 1/M, as in the
paper. ``server.by_class`` switches it on.
"""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedgs.errors import ConfigError
from fedgs.simulation.layout import Layout
from fedgs.simulation.world import World

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

    def __init__(self, layout: Layout) -> None:
        *_, rows, biases = layout.shapes
        if len(rows) != 2 or tuple(biases) != (rows[0],):
            raise ConfigError("server.by_class needs a model whose last layer is dense with a bias; set it to false")
        self.classes, self._features = int(rows[0]), int(rows[1])
        self._size = self.classes * (self._features + 1)

    def average(self, mean: Tensor, stations: Tensor, weights: NDArray[np.float64], world: World) -> Tensor:
        """Return the plain mean with its classifier averaged by ``weights`` (stations, classes).

        ``stations`` are this process's alone.
        """
        total = torch.zeros(self._size, dtype=torch.float64, device=stations.device)
        for row, station in enumerate(world.shard(len(weights)).tolist()):
            own = torch.from_numpy(weights[station]).to(stations.device)
            each = torch.cat([own.repeat_interleave(self._features), own])  # rows first, then biases, as they lie
            # Not 0 · NaN: who did not train may hold anything.
            total += torch.where(each > 0, each * stations[row, -self._size :], 0.0)
        world.add_up(total)
        result = mean.clone()
        result[-self._size :] = total.to(result)
        return result
