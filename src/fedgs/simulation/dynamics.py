"""What happens to devices while a run goes on: offline and back, to another factory, lost or late in mid-iteration.

Off by default; the paper's devices are always there. Events are drawn for all devices from one stream an iteration, or
read from a trace, before anybody is selected: selection sees the devices that are online in the factory where they are.
A device lost in mid-iteration has used its mini-batch, but the station averages without it. A slow one gets through
``straggle_share`` of its mini-batch and is weighted by that (n^{m,k} of eq. internal-aggr). What happens
depends on (seed, iteration, device) alone, never on who was selected.

A trace is a CSV file with the columns iteration (from 1), device, event (offline, online or move) and factory (for
move), by name or number; what it says for an iteration happens just before it.
"""

import csv
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedgs.data import Federation
from fedgs.errors import InputFileError
from fedgs.rng import stream
from fedgs.settings import DynamicsSettings

COLUMNS = ("iteration", "device", "event", "factory")
EVENTS = ("offline", "online", "move")


class Event(NamedTuple):
    """One line of a trace."""

    device: int
    event: str
    factory: int


class Dynamics:
    """Who is online and where, from iteration to iteration."""

    def __init__(self, federation: Federation, settings: DynamicsSettings, seed: int) -> None:
        self.settings, self.seed = settings, seed
        self.factories = federation.factories
        self.online = np.ones(len(federation), bool)
        self.factory_of = federation.factory_of.astype(np.int64)
        self.events: Counter[str] = Counter()
        """What happened since :meth:`take_events`."""
        self._trace = read_trace(Path(settings.trace), federation) if settings.trace is not None else {}

    def begin(self, iteration: int) -> None:
        """Let happen what happens before an iteration (0 is the first)."""
        for event in self._trace.get(iteration, ()):
            self._apply(event)
        if not (self.settings.leave or self.settings.move or not self.online.all()):
            return
        devices = len(self.online)
        leaving, moving, places = stream(self.seed, "dynamics", "devices", iteration).random((3, devices))
        flips = leaving < np.where(self.online, self.settings.leave, self._come_back)
        self.events["offline"] += int((flips & self.online).sum())
        self.events["returned"] += int((flips & ~self.online).sum())
        self.online ^= flips
        if self.factories > 1:
            moved = np.flatnonzero(moving < self.settings.move)
            # Uniform among the other factories.
            step = 1 + (places[moved] * (self.factories - 1)).astype(np.int64)
            self.factory_of[moved] = (self.factory_of[moved] + step) % self.factories
            self.events["moved"] += len(moved)

    @property
    def _come_back(self) -> float:
        # A trace alone says when its devices return.
        return self.settings.come_back if self.settings.leave else 0.0

    def shares(self, iteration: int, selected: NDArray[np.int64]) -> NDArray[np.float64]:
        """Return which share of its mini-batch each selected device gets done: 1, a part, or 0 when it is lost."""
        shares = np.ones(len(selected))
        if not (self.settings.drop_out or self.settings.straggle):
            return shares
        drawn = stream(self.seed, "dynamics", "steps", iteration).random((2, len(self.online)))
        lost, slow = drawn[:, selected] < np.array([[self.settings.drop_out], [self.settings.straggle]])
        shares[slow] = self.settings.straggle_share
        shares[lost] = 0.0
        self.events["straggled"] += int((slow & ~lost).sum())
        self.events["dropped_out"] += int(lost.sum())
        return shares

    def take_events(self) -> dict[str, int]:
        """Return how often each event happened since the last call."""
        events = {name: count for name, count in sorted(self.events.items()) if count}
        self.events.clear()
        return events

    def state_dict(self) -> dict[str, Any]:
        """Return what is needed to go on later, in plain lists."""
        return {"online": self.online.astype(int).tolist(), "factory_of": self.factory_of.tolist()}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Go on from a saved state."""
        self.online = np.asarray(state["online"], dtype=bool)
        self.factory_of = np.asarray(state["factory_of"], dtype=np.int64)

    def _apply(self, event: Event) -> None:
        if event.event == "move":
            if self.factory_of[event.device] != event.factory:
                self.events["moved"] += 1
            self.factory_of[event.device] = event.factory
            return
        online = event.event == "online"
        if self.online[event.device] != online:
            self.events["returned" if online else "offline"] += 1
        self.online[event.device] = online


def read_trace(path: Path, federation: Federation) -> dict[int, list[Event]]:
    """Read a trace; the result maps iterations, counted from 0, to their events in the order of the file."""
    try:
        with path.open(newline="", encoding="utf-8") as file:
            reader = csv.DictReader(file)
            rows = list(reader)
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise InputFileError(f"{path}: the trace cannot be read ({error})") from None
    if not set(COLUMNS[:3]) <= set(reader.fieldnames or ()):
        raise InputFileError(f"{path}: a trace has the columns {','.join(COLUMNS)} in its first line")
    devices = {name: number for number, name in enumerate(federation.device_names)}
    factories = {name: number for number, name in enumerate(federation.factory_names)}
    trace: dict[int, list[Event]] = {}
    for line, row in enumerate(rows, start=2):
        if any(row.get(column) is None for column in COLUMNS[:3]):
            raise InputFileError(f"{path}:{line}: a trace has the columns {','.join(COLUMNS)}")
        iteration = _number(row["iteration"])
        if iteration is None or iteration < 1:
            raise InputFileError(f"{path}:{line}: iteration {row['iteration']!r} is not a whole number from 1 on")
        device = _look_up(row["device"], devices)
        if device is None:
            raise InputFileError(f"{path}:{line}: there is no device {row['device']!r} in {federation.name}")
        if row["event"] not in EVENTS:
            raise InputFileError(f"{path}:{line}: event {row['event']!r} is not one of {', '.join(EVENTS)}")
        factory = _look_up(row.get("factory") or "", factories)
        if row["event"] == "move" and factory is None:
            raise InputFileError(f"{path}:{line}: there is no factory {row.get('factory')!r} in {federation.name}")
        trace.setdefault(iteration - 1, []).append(Event(device, row["event"], factory or 0))
    return trace


def _number(text: str) -> int | None:
    return int(text) if text.strip().isdecimal() else None


def _look_up(text: str, names: Mapping[str, int]) -> int | None:
    if text in names:
        return names[text]
    number = _number(text)
    return number if number is not None and number < len(names) else None
