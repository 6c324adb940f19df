"""Calibration at a station (:mod:`fedgs.training.calibration`): the team trains from a last bias that is moved.

With s_t the shift and b the bias of the last layer,

    z(ω with b + s_t) = z(ω) + s_t ,   so   Δ^{m,k} = −η ∇L(z + s_t)

A device sends back what its step moved the weights by, never weights, and the station adds that to the weights without
the shift. So devices train the calibrated loss without knowing of it. As in the simulator the mix counts everybody who
was selected, whether or not an answer came.

The mix is kept in memory only, as are the queues of coverage: a station that was restarted begins with its next team.
"""

from copy import deepcopy

import numpy as np
from numpy.typing import NDArray

from fedgs.deploy.contract import RoundOrder
from fedgs.deploy.tensors import Flat
from fedgs.deploy.wire import Task
from fedgs.training.calibration import ClassMix


class StationMix:
    """The class mix of a station, from round to round of a task."""

    def __init__(self) -> None:
        self._task: Task | None = None
        self._round = 0
        self._before = self._now = ClassMix(1, np.zeros(0), 1, 0.0)
        """Before the newest round, and after as much of it as there was."""

    def begin(self, order: RoundOrder) -> None:
        """Go on from the round before; a round that is asked for again begins where it began, so no team counts twice.

        Another task, or an earlier round of this one, begins anew.
        """
        if not order.calibration or not len(order.rates):
            return
        if order.task != self._task or order.round < self._round:
            self._before = ClassMix(1, np.zeros(order.task.classes), 1, 0.0)
        elif order.round > self._round:
            self._before = self._now
        self._task, self._round = order.task, order.round
        self._now = deepcopy(self._before)
        self._now.memory, self._now.strength = len(order.rates), order.calibration

    def moved(self, weights: Flat, counts: NDArray[np.int64], target: NDArray[np.float64], bias: slice) -> Flat:
        """Take in the class counts (devices, classes) of a team; return the weights it is to train from.

        ``target`` is P_real as it is known now, ``bias`` where that of the last layer lies.
        """
        self._now.target = target
        shift = self._now.step(counts.sum(axis=0, keepdims=True))[0]
        result = weights.copy()
        result[bias] += shift.astype(np.float32)
        return result
