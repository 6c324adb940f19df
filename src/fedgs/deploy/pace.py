"""No device takes more than its part of a station's time and turns, whether it is slow on purpose or lies about counts.

**Time.** What is usual is the median over the devices, of which each has one vote: how long its last ``OWN`` answers
took on average. Votes for every answer would count a slow device most often in small teams. u is the usual answer time.
A selected device has 3 u, at least ``LEAST_DEADLINE`` seconds and never more than ``--deadline``. It also has three
times as long as half of its team has taken now: where a station or its network stalls, nobody is late.

Before an iteration the station waits for the batches of its devices, usually w seconds: the smaller one of what the
devices' votes are and of what it has waited lately (of many devices, enough are ready). Answers and announcements just
in time could slow every iteration down, so the station keeps a credit of seconds: an iteration that takes t, the wait
before it included, changes it by 2 (u + w) − t, up to ``GRACE``. A device whose answers take d on average is selected
where d − 2 u − w is not more than the credit, and the station waits for announcements for u + 2 w and the credit. So in
the long run an iteration takes 2 (u + w) at most, whatever a few devices do, and an honest device that is slow still
trains now and then.

**Turns.** Of ``TEAMS`` iterations no device trains in more than ``--most-turns`` times its fair share, which is that of
a team drawn at random.
"""

import math
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Sequence

import numpy as np

from fedgs.deploy.membership import Member

FEWEST = 10
"""Answers that there must be before they say what is usual."""
WAITS = 50
"""Waits before an iteration that are remembered."""
LEAST_DEADLINE = 5.0
GRACE = 30.0
TEAMS = 100
OWN = 20
"""Answers, and announcements, by which one device is judged; a short delay of an honest one is none."""


class Votes:
    """How long devices take for something; each has one vote."""

    def __init__(self) -> None:
        self._own: dict[str, deque[float]] = {}
        self._means: dict[str, float] = {}

    def add(self, name: str, seconds: float) -> None:
        """A device has taken so long."""
        own = self._own.setdefault(name, deque(maxlen=OWN))
        own.append(seconds)
        self._means[name] = float(np.mean(own))

    @property
    def usual(self) -> float:
        """The median of the devices, of an even number the lower one; 0 where there are none."""
        return lower_median(list(self._means.values()))

    def mean(self, name: str) -> float:
        """How long a device takes on average; 0: not known."""
        return self._means.get(name, 0.0)


class Pace:
    """The answer times, the announcements and the teams of a station."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._teams: deque[Sequence[str]] = deque(maxlen=TEAMS)
        self._team, self._here = 0, list[float]()
        self.credit = GRACE
        self.begin_task()

    def begin_task(self) -> None:
        """Forget times: another task takes another time."""
        self._answers, self._announcements, self._count = Votes(), Votes(), 0
        self._free: dict[str, float] = {}
        """Since when a device could have announced a batch."""
        self._waits: deque[float] = deque(maxlen=WAITS)

    @property
    def usual(self) -> float | None:
        """Seconds an answer usually takes (u); None: not known yet."""
        return self._answers.usual if self._count >= FEWEST else None

    @property
    def usual_wait(self) -> float:
        """Seconds before an iteration in which batches are usually announced (w)."""
        return min(self._announcements.usual, lower_median(list(self._waits)))

    # --- announcements

    def free(self, name: str) -> None:
        """A device has no batch at the station: it has used it, or has gone with it."""
        self._free.setdefault(name, self._clock())

    def announced(self, name: str) -> None:
        """A device has announced a batch."""
        since = self._free.pop(name, None)
        if since is not None:
            self._announcements.add(name, self._clock() - since)

    @property
    def patience(self) -> float:
        """Seconds that the station can afford to wait for announcements."""
        if self.usual is None:
            return math.inf
        return max(0.0, self.credit) + self.usual + 2 * self.usual_wait

    def waited(self, seconds: float) -> None:
        """The station has waited so long before an iteration."""
        self._waits.append(seconds)
        if self.usual is not None:
            self.credit -= seconds

    # --- answers

    def begin_team(self, size: int) -> None:
        """So many devices are asked now."""
        self._team, self._here = size, []

    def is_late(self, seconds: float, most: float) -> bool:
        """Whether a device has had its time for an answer after so many seconds; ``most``: is the longest there is."""
        if self.usual is None or len(self._here) < max(1, self._team // 2):
            return seconds >= most
        return seconds >= min(most, max(LEAST_DEADLINE, 3 * self.usual, 3 * float(np.median(self._here))))

    def answered(self, name: str, seconds: float, late: bool = False) -> None:
        """An answer has come, or its time is up."""
        self._answers.add(name, seconds)
        self._count += 1
        self._here += [] if late else [seconds]

    def iterated(self, team: Iterable[str], seconds: float) -> None:
        """A team's answers have come after so many seconds."""
        self._teams.append(list(team))
        if self.usual is not None:
            self.credit = min(GRACE, self.credit + 2 * (self.usual + self.usual_wait) - seconds)

    # --- who is selected

    def eligible(self, members: Sequence[Member], pick: int, most_turns: float) -> list[Member]:
        """Return those who may be selected now, given all who are ready; never nobody."""
        slow = self.slow(members)
        quick = [member for member in members if member.name not in slow] or list(members)
        turns = Counter(name for team in self._teams for name in team)
        most = most_turns * TEAMS * pick / len(members)
        rested = [member for member in quick if turns[member.name] < most]
        return rested if len(rested) >= pick else quick

    def slow(self, members: Sequence[Member]) -> set[str]:
        """Return the devices whose answers take so long that the station cannot afford them now."""
        if self.usual is None:
            return set()
        most = 2 * self.usual + self.usual_wait + max(0.0, self.credit)
        return {member.name for member in members if self._answers.mean(member.name) > most}


def lower_median(values: Sequence[float]) -> float:
    """Return the median, of an even number the lower one: half of the values must be large for a large one."""
    return sorted(values)[(len(values) - 1) // 2] if values else 0.0
