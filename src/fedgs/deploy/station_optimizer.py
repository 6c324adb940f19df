"""The optimiser of a station, from round to round, kept on disk: a restart goes on with what it remembers.

A file holds what was remembered before and after the newest round. A round that is asked for again begins where it
began, so no step counts twice; another run, or an earlier round, begins at rest.
"""

import zipfile
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedgs.deploy.contract import RoundOrder
from fedgs.deploy.logs import log
from fedgs.deploy.tensors import Flat
from fedgs.errors import OutputError
from fedgs.files import write_bytes
from fedgs.training.optimizers import Optimizer

FILE = "optimizer.npz"
Memory = dict[str, NDArray[Any]]


class StationOptimizer:
    """What a station's optimiser remembers."""

    def __init__(self, folder: Path | None = None) -> None:
        """``folder``: of the station's state; None: in memory only."""
        self._file = None if folder is None else folder / FILE
        self._run, self._round, self._size = "", 0, 0
        self._optimizer = Optimizer()
        self._before: Memory = {}
        self._now: Memory = {}

    def begin(self, order: RoundOrder) -> None:
        """Go on from the round before."""
        if not len(order.rates):
            return
        self._optimizer = order.optimizer
        if order.optimizer.plain:
            return
        size = self._size = order.shapes.trained_size
        if not self._run:
            self._load()
        fits = all(self._now.get(entry, np.empty(0)).shape == (size,) for entry in order.optimizer.entries)
        if order.run != self._run or order.round < self._round or not fits:
            self._before = {entry: np.zeros(size, np.float32) for entry in order.optimizer.entries}
            self._before["steps"] = np.zeros((), np.float32)
        elif order.round > self._round:
            self._before = self._now
        self._run, self._round = order.run, order.round
        self._now = {entry: value.copy() for entry, value in self._before.items()}

    def step(self, weights: Flat, average: Flat, change: Flat, rate: float) -> Flat:
        """Return where the optimiser goes instead of to the average of a team, whose mean ``change`` is known."""
        optimizer = self._optimizer
        if optimizer.plain or not rate:
            return average
        trained = slice(0, self._size)
        gradient = change[trained] / np.float32(-rate)
        self._now["steps"] = self._now["steps"] + 1
        direction, new = optimizer.direction(gradient, weights[trained], self._now, float(self._now["steps"]))
        self._now.update({entry: np.asarray(value, np.float32) for entry, value in new.items()})
        result = average.copy()
        result[trained] = weights[trained] - np.float32(rate) * np.asarray(direction, np.float32)
        return result

    def keep(self) -> None:
        """Write what is remembered to the disk, at the end of a round."""
        if self._file is None or self._optimizer.plain or not self._run:
            return
        import io

        content = io.BytesIO()
        arrays: dict[str, Any] = {f"before_{entry}": value for entry, value in self._before.items()}
        arrays |= {f"now_{entry}": value for entry, value in self._now.items()}
        np.savez(content, run=np.array(self._run), round=np.array(self._round), **arrays)
        try:
            write_bytes(self._file, content.getvalue(), durable=True)
        except OutputError as error:
            log.error("optimiser not on disk; a restart would begin it at rest", extra={"reason": str(error)})

    def _load(self) -> None:
        if self._file is None or not self._file.exists():
            return
        try:
            with np.load(self._file, allow_pickle=False) as stored:
                self._run, self._round = str(stored["run"]), int(stored["round"])
                self._before = {key[7:]: stored[key] for key in stored.files if key.startswith("before_")}
                self._now = {key[4:]: stored[key] for key in stored.files if key.startswith("now_")}
        except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile) as error:
            log.warning("optimiser cannot be read, it begins at rest", extra={"reason": str(error)})
            self._run, self._round, self._before, self._now = "", 0, {}, {}
