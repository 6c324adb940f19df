"""What a station keeps from round to round, and of a round that is not finished.

A round that is asked for again begins where it began (:class:`RoundState`), so that no step counts twice: for the class
mix of calibration, in memory only; for the optimizer's state, on disk too; and for the queues of coverage, which the
top server keeps. A station that is told to stop keeps as much of its round as is done (:class:`PartialRound`); the same
order goes on from there.
"""

import io
import json
import zipfile
from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass, field
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
_BROKEN = (OSError, ValueError, KeyError, EOFError, TypeError, zipfile.BadZipFile)
"""What reading a damaged .npz file may raise."""
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


class StationQueues(RoundState[dict[str, float]]):
    """How many turns each device is behind its fair share, with coverage; below 0: ahead.

    The top server knows what all stations have reported, and hands it out with each order: so a device that comes from
    another factory keeps its place, and a restarted station goes on.
    """

    def __init__(self) -> None:
        super().__init__({})

    def begin(self, order: RoundOrder) -> None:
        """Go on from what the top server knows, and for other devices from the round before."""
        self.begin_round(order.run, order.round, dict)
        self.now.update(order.queues)


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
            log.error("optimizer state is not on disk; a restart would reset it", reason=str(error))

    def _load(self) -> None:
        if self._file is None or not self._file.exists():
            return
        try:
            with np.load(self._file, allow_pickle=False) as stored:
                arrays = {name: stored[name] for name in stored.files}
            self.key, self.round = str(arrays["run"]), int(arrays["round"])
        except _BROKEN as error:
            log.warning("optimizer state cannot be read; it is reset", reason=str(error))
            return
        self.before = {key[7:]: value for key, value in arrays.items() if key.startswith("before_")}
        self.now = {key[4:]: value for key, value in arrays.items() if key.startswith("now_")}


@dataclass
class PartialRound:
    """As much of a round as is done."""

    weights: Flat
    seen: NDArray[np.int64]
    """(classes,) samples of each class so far."""
    iteration: int = 0
    """Of this round: the next one."""
    losses: list[float] = field(default_factory=list)
    divergences: list[float] = field(default_factory=list)
    turns: dict[str, int] = field(default_factory=dict)
    """How often each device's update went into the weights."""
    team: list[str] = field(default_factory=list)
    """The devices whose updates went into the weights last."""
    mix: list[int] = field(default_factory=list)
    """Samples of each class that they trained on."""
    sent: int = 0
    received: int = 0
    """Bytes to devices and from them."""
    events: dict[str, int] = field(default_factory=dict)
    optimizer: dict[str, NDArray[Any]] = field(default_factory=dict)
    """Its state after these iterations."""
    queues: dict[str, float] = field(default_factory=dict)
    """Of the devices that could be selected in these iterations."""

    @classmethod
    def of(cls, order: RoundOrder) -> "PartialRound":
        """Return the beginning of a round."""
        return cls(order.weights, np.zeros(order.task.classes, np.int64))

    def save(self, path: Path, digest: bytes) -> None:
        """Write it as the part of the order with this digest."""
        facts = {
            "digest": digest.hex(), "iteration": self.iteration, "losses": self.losses, "events": self.events,
            "divergences": self.divergences, "turns": self.turns, "queues": self.queues, "team": self.team,
            "mix": self.mix, "sent": self.sent, "received": self.received,
        }  # fmt: skip
        content = io.BytesIO()
        memory: dict[str, Any] = {f"optimizer_{entry}": value for entry, value in self.optimizer.items()}
        np.savez(content, facts=np.array(json.dumps(facts)), weights=self.weights, seen=self.seen, **memory)
        write_bytes(path, content.getvalue(), durable=True)

    @classmethod
    def load(cls, path: Path, digest: bytes) -> "PartialRound | None":
        """Read the part of the order with this digest; None where there is none, or none that is whole."""
        if not path.exists():
            return None
        try:
            with np.load(path, allow_pickle=False) as stored:
                arrays = {name: stored[name] for name in stored.files}
            facts = json.loads(str(arrays["facts"]))
            memory = {key[10:]: value for key, value in arrays.items() if key.startswith("optimizer_")}
            if facts.pop("digest") != digest.hex():
                return None
            facts.setdefault("turns", dict.fromkeys(facts.pop("took_part", []), 1))  # as earlier versions wrote
            return cls(weights=arrays["weights"], seen=arrays["seen"], optimizer=memory, **facts)
        except _BROKEN as error:
            log.warning("the part of a round cannot be read; it is trained again", reason=str(error))
            return None
