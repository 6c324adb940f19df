"""No device takes more than its part of a station's time and turns, whether it is slow on purpose or lies about counts.

**Time.** The usual answer time u is the median of the last ``ANSWERS``. A selected device has 3 u, at least
``LEAST_DEADLINE`` seconds and never more than ``--deadline``. It also has three times as long as half of its team has
taken now: where a station or its network stalls, nobody is late. Answers just in time could still slow every iteration
down, so the station keeps a credit of seconds: an iteration that takes t changes it by 2 u − t, up to ``GRACE``. While
there is none left, devices that take more than 2 u on average are not selected. So in the long run an iteration takes
2 u at most, whatever a few devices do, and an honest device that is slow still trains now and then.

**Turns.** Of ``TEAMS`` iterations no device trains in more than ``--most-turns`` times its fair share, which is that of
a team drawn at random.
"""

from collections import Counter, deque
from collections.abc import Iterable, Sequence

import numpy as np

from fedgs.deploy.membership import Member

ANSWERS, FEWEST = 50, 10
"""Answers that are remembered, and that there must be before they say what is usual."""
LEAST_DEADLINE = 5.0
GRACE = 30.0
TEAMS = 100
OWN = 5
"""Answers by which one device is judged."""


class Pace:
    """The answer times and the teams of a station."""

    def __init__(self) -> None:
        self._times: deque[float] = deque(maxlen=ANSWERS)
        self._own: dict[str, deque[float]] = {}
        self._teams: deque[Sequence[str]] = deque(maxlen=TEAMS)
        self._team, self._here = 0, list[float]()
        self.credit = GRACE

    def begin_team(self, size: int) -> None:
        """So many devices are asked now."""
        self._team, self._here = size, []

    def begin_task(self) -> None:
        """Forget answer times: another task takes another time."""
        self._times.clear()
        self._own.clear()

    @property
    def usual(self) -> float | None:
        """Seconds an answer usually takes; None: not known yet."""
        return float(np.median(self._times)) if len(self._times) >= FEWEST else None

    def is_late(self, seconds: float, most: float) -> bool:
        """Whether a device has had its time for an answer after so many seconds; ``most``: is the longest there is."""
        if self.usual is None or len(self._here) < max(1, self._team // 2):
            return seconds >= most
        return seconds >= min(most, max(LEAST_DEADLINE, 3 * self.usual, 3 * float(np.median(self._here))))

    def answered(self, name: str, seconds: float, late: bool = False) -> None:
        """An answer has come, or its time is up."""
        self._times.append(seconds)
        self._here += [] if late else [seconds]
        self._own.setdefault(name, deque(maxlen=OWN)).append(seconds)

    def iterated(self, team: Iterable[str], seconds: float) -> None:
        """A team's answers have come after so many seconds."""
        self._teams.append(list(team))
        if self.usual is not None:
            self.credit = min(GRACE, self.credit + 2 * self.usual - seconds)

    def eligible(self, members: Sequence[Member], pick: int, most_turns: float) -> list[Member]:
        """Return those who may be selected now, given all who are ready; never nobody."""
        quick = [member for member in members if self.credit > 0 or not self._is_slow(member.name)] or list(members)
        turns = Counter(name for team in self._teams for name in team)
        most = most_turns * TEAMS * pick / len(members)
        rested = [member for member in quick if turns[member.name] < most]
        return rested if len(rested) >= pick else quick

    def _is_slow(self, name: str) -> bool:
        own = self._own.get(name)
        return own is not None and self.usual is not None and float(np.mean(own)) > 2 * self.usual
