"""Which answers of a team go into the mean: as they are, shortened, or not at all.

    u = max(median over the devices of the last ``WINDOW`` norms at this station, median of this team)
    ‖Δ‖ / η > c · max(u, ``FLOOR`` · peak)   is long, and shortened to that
    a long one of a device of whose last ``OWN`` answers most were long, ``HABIT`` of them at least, is rejected

c is ``--largest-move``; the peak is the largest u of the run. Divided by the learning rate η, norms of different rounds
can be compared. In the first median each device has one vote, the median of its own; medians of an even number are the
lower ones. So few devices cannot move u far, however often they train. Where the weights come to a steep place all
gradients grow at once: then the team's own median lets honest devices through.

A single long answer says nothing of its device: where a model has learnt its data most gradients vanish, and the one of
a hard batch is hundreds of times u. Every device has such batches, and a device that has not trained for long has
nothing else; theirs are about as long as those of a fresh model, and that is what the peak stands for. Of a device that
attacks with long answers, most are long. What it may do before that is known is bounded by the shortening. Norms and
habits survive a restart of the station. Before there is anything to compare with, a step may move the weights by their
own norm.

A robust mean will find its place here: it begins with the same answers.
"""

import json
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from fedgs.deploy.logs import log
from fedgs.deploy.pace import lower_median
from fedgs.errors import OutputError
from fedgs.files import write_text

WINDOW, ENOUGH = 256, 10
"""Norms that are remembered, and that there must be before they say what is usual."""
OWN, HABIT = 20, 6
FLOOR = 0.3
FILE = "norms.json"


@dataclass(frozen=True)
class Verdict:
    """What becomes of a team's answers."""

    longest: float
    """Norm to which longer ones are shortened."""
    rejected: frozenset[str]
    """The devices whose answers are left out."""


class Screen:
    """The norms that devices of a station usually send, as long as the run is the same."""

    def __init__(self, folder: Path | None = None) -> None:
        """``folder``: of the station's state; None: in memory only."""
        self._file = None if folder is None else folder / FILE
        self._run = ""
        self._forget()

    def _forget(self) -> None:
        self._norms: deque[tuple[str, float]] = deque(maxlen=WINDOW)
        self._habits: dict[str, deque[bool]] = {}
        self._peak = 0.0

    def begin(self, run: str) -> None:
        """Go on with a run; another one begins with an empty window."""
        if self._file is not None and not self._run:
            self._load(self._file)
        if run != self._run:
            self._run = run
            self._forget()

    def judge(self, norms: Mapping[str, float], weights_norm: float, rate: float, times: float) -> Verdict:
        """Return what becomes of answers with these norms, by device; take them in. ``times`` is c."""
        if not rate:
            return Verdict(max(1.0, weights_norm), frozenset())
        scaled = {name: norm / rate for name, norm in norms.items()}
        usual = max(self._usual(), lower_median(list(scaled.values())) if len(scaled) > 1 else 0.0)
        self._norms.extend(scaled.items())
        self._peak = max(self._peak, usual)
        if not usual:
            return Verdict(max(1.0, weights_norm), frozenset())
        most = times * max(usual, FLOOR * self._peak)
        long = {name for name, norm in scaled.items() if norm > most}
        for name in scaled:
            self._habits.setdefault(name, deque(maxlen=OWN)).append(name in long)
        rejected = frozenset(name for name in long if self._is_habit(name))
        return Verdict(rate * most, rejected)

    def _usual(self) -> float:
        """Return the median over the devices; 0 where too little is known."""
        if len(self._norms) < ENOUGH:
            return 0.0
        own: dict[str, list[float]] = {}
        for name, norm in self._norms:
            own.setdefault(name, []).append(norm)
        return lower_median([lower_median(norms) for norms in own.values()])

    def _is_habit(self, name: str) -> bool:
        answers, times = len(self._habits[name]), sum(self._habits[name])
        return times >= HABIT and times > answers / 2

    def save(self) -> None:
        """Write the window to the disk, at the end of a round."""
        if self._file is None:
            return
        habits = {name: [int(long) for long in own] for name, own in self._habits.items()}
        stored = {"run": self._run, "peak": self._peak, "norms": list(self._norms), "habits": habits}
        try:
            write_text(self._file, json.dumps(stored))
        except OutputError as error:
            log.error("usual norms are not on disk; a restart would forget them", reason=str(error))

    def _load(self, file: Path) -> None:
        try:
            stored = json.loads(file.read_text(encoding="utf-8"))
            norms = [(str(name), float(norm)) for name, norm in stored["norms"]]
            peak, run = float(stored["peak"]), str(stored["run"])
            habits = {str(name): deque(map(bool, own), OWN) for name, own in stored["habits"].items()}
            values = np.array([peak, *(norm for _, norm in norms)])
            if not (np.isfinite(values) & (values >= 0)).all():
                raise ValueError("a norm is no length")
        except FileNotFoundError:
            return
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            log.warning("usual norms cannot be read; they are learnt anew", reason=str(error))
            return
        self._run, self._peak, self._norms, self._habits = run, peak, deque(norms, WINDOW), habits
