"""What a station keeps from round to round: the class mix of its teams for calibration, and its optimizer's state.

A round that is asked for again begins where it began, so that no step counts twice.

**Calibration** (:mod:`fedgs.training.calibration`): the team trains from a shifted bias of the last layer. With s_t the
shift and b that bias,

    z(ω with b + s_t) = z(ω) + s_t ,   so   Δ^{m,k} = −η ∇L(z + s_t)

A device sends back what its step moved the weights by, never weights, and the station adds that to the weights without
the shift. So devices train the calibrated loss without knowing of it. As in the simulator the mix counts every device
that was selected, whether or not its update arrived. The mix is kept in memory only, as are the queues of coverage: a
restarted station begins them anew.

**The optimizer's state** is on disk too, before and after the newest round: a restarted station goes on with it.
"""

import io
import zipfile
from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from typing import Any, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from fedgs.deploy.logs import log
from fedgs.deploy.round_messages import RoundOrder
from fedgs.deploy.tensors import Flat
from fedgs.errors import OutputError
from fedgs.files import write_bytes
from fedgs.training.calibration import ClassMix
from fedgs.training.optimizers import Optimizer

FILE = "optimizer.npz"
State = TypeVar("State")


class RoundState(Generic[State]):
    """The state before the newest round, and after as much of it as there was."""

    def __init__(self, state: State) -> None:
        self.key: Any = None
        self.round = 0
        self.before = self.now = state

    def begin_round(self, key: Any, number: int, fresh: Callable[[], State]) -> None:
        """Go on from the round before; another key, or an earlier round, begins with a fresh state."""
        if key != self.key or number < self.round:
            self.before = fresh()
        elif number > self.round:
            self.before = self.now
        self.key, self.round = key, number
        self.now = deepcopy(self.before)


class StationCalibration(RoundState[ClassMix]):
    """The class mix of a station's teams, as long as the task is the same."""

    def __init__(self) -> None:
        super().__init__(ClassMix(1, np.zeros(0), 1, 0.0))

    def begin(self, order: RoundOrder) -> None:
        """Go on from the round before."""
        if order.calibration and len(order.rates):
            self.begin_round(order.task, order.round, lambda: ClassMix(1, np.zeros(order.task.classes), 1, 0.0))
            self.now.memory, self.now.strength = len(order.rates), order.calibration

    def shifted(self, weights: Flat, counts: NDArray[np.int64], target: NDArray[np.float64], bias: slice) -> Flat:
        """Take in the class counts (devices, classes) of a team; return the weights it trains from.

        ``target`` is P_real as it is known now, ``bias`` the place of the last layer's bias.
        """
        self.now.target = target
        shift = self.now.step(counts.sum(axis=0, keepdims=True))[0]
        result = weights.copy()
        result[bias] += shift.astype(np.float32)
        return result


class StationOptimizer(RoundState[dict[str, NDArray[Any]]]):
    """The state of a station's optimizer, as long as the run is the same."""

    def __init__(self, folder: Path | None = None) -> None:
        """``folder``: of the station's state; None: in memory only."""
        super().__init__({})
        self._file = None if folder is None else folder / FILE
        self._size = 0
        self._optimizer = Optimizer()

    def begin(self, order: RoundOrder) -> None:
        """Go on from the round before."""
        if not len(order.rates):
            return
        self._optimizer = order.optimizer
        if order.optimizer.plain:
            return
        size = self._size = order.shapes.trained_size
        if self.key is None:
            self._load()
        zeros = {entry: np.zeros(size, np.float32) for entry in order.optimizer.entries}
        fits = all(self.now.get(entry, np.empty(0)).shape == (size,) for entry in zeros)
        fresh = zeros | {"steps": np.zeros((), np.float32)}
        self.begin_round(order.run, order.round if fits else -1, lambda: fresh)
        self.round = order.round

    def step(self, weights: Flat, average: Flat, change: Flat, rate: float) -> Flat:
        """Return the weights after the optimizer's step, instead of the average of a team with this mean ``change``."""
        optimizer = self._optimizer
        if optimizer.plain or not rate:
            return average
        trained = slice(0, self._size)
        gradient = change[trained] / np.float32(-rate)
        self.now["steps"] = self.now["steps"] + 1
        direction, new = optimizer.direction(gradient, weights[trained], self.now, float(self.now["steps"]))
        self.now.update({entry: np.asarray(value, np.float32) for entry, value in new.items()})
        result = average.copy()
        result[trained] = weights[trained] - np.float32(rate) * np.asarray(direction, np.float32)
        return result

    def save(self) -> None:
        """Write the state to the disk, at the end of a round."""
        if self._file is None or self._optimizer.plain or self.key is None:
            return
        content = io.BytesIO()
        arrays: dict[str, Any] = {f"before_{entry}": value for entry, value in self.before.items()}
        arrays |= {f"now_{entry}": value for entry, value in self.now.items()}
        np.savez(content, run=np.array(self.key), round=np.array(self.round), **arrays)
        try:
            write_bytes(self._file, content.getvalue(), durable=True)
        except OutputError as error:
            log.error("optimizer state is not on disk; a restart would reset it", extra={"reason": str(error)})

    def _load(self) -> None:
        if self._file is None or not self._file.exists():
            return
        try:
            with np.load(self._file, allow_pickle=False) as stored:
                arrays = {name: stored[name] for name in stored.files}
            self.key, self.round = str(arrays["run"]), int(arrays["round"])
        except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile) as error:
            log.warning("optimizer state cannot be read; it is reset", extra={"reason": str(error)})
            return
        self.before = {key[7:]: value for key, value in arrays.items() if key.startswith("before_")}
        self.now = {key[4:]: value for key, value in arrays.items() if key.startswith("now_")}
