"""The devices of a station: online or not, ready with which batch, how often they failed, quarantined until when.

Nothing here touches the network; a member's ``link`` is whatever can send messages to it and hang up.
"""

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from fedgs.deploy.wire import Ready

FORGET, AWAY = 24 * 3600.0, 10.0
"""Seconds after which a device that went away is forgotten, and after which nobody waits for it."""


class Link(Protocol):
    """A connection to a device."""

    async def send(self, messages: Sequence[bytes]) -> None:
        """Send messages, in order."""
        ...

    def hang_up(self, reason: str) -> None:
        """End the connection."""
        ...


@dataclass
class Member:
    """What a station knows of one device."""

    name: str
    link: Link | None = None
    ready: Ready | None = None
    """The announced batch; None while it is being used or collected."""
    batch_ids: int = -1
    """The last batch announced on this connection: they are numbered upwards."""
    announced: NDArray[np.int64] | None = None
    """Class counts of all batches announced so far."""
    moments: NDArray[np.float64] | None = None
    """Of all its values, as the task asked; None: it has not told them."""
    failures: float = 0.0
    """Since it was quarantined; two good updates undo one."""
    all_failures: int = 0
    last_failure: str = ""
    quarantined_until: float = 0.0
    spare: float = 10.0
    """How many more batches it may announce that replace one which nobody has used; one a second comes back."""
    spare_at: float = 0.0
    turns: int = 0
    """Updates that went into an average."""
    seen: float = 0.0
    asked: Any = None
    """The step it was asked for, until it has answered (:mod:`fedgs.deploy.station`)."""


@dataclass
class Roster:
    """All members of a station."""

    failures: int = 3
    """In a row, after which a member is quarantined."""
    quarantine: float = 60.0
    """Seconds."""
    clock: Callable[[], float] = time.monotonic
    members: dict[str, Member] = field(default_factory=dict)
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    """Set whenever a member becomes ready."""

    def join(self, name: str, link: Link) -> Member:
        """A device has connected."""
        member = self.members.setdefault(name, Member(name))
        member.link, member.ready, member.batch_ids, member.asked = link, None, -1, None
        member.seen = self.clock()
        return member

    def leave(self, name: str, link: Link) -> bool:
        """A connection has ended; False where another one of the same device has taken its place."""
        member = self.members.get(name)
        if member is None or member.link is not link:
            return False
        member.link, member.ready, member.asked = None, None, None
        member.seen = self.clock()
        self._forget()
        return True

    def announce(self, member: Member, ready: Ready) -> None:
        """A device has told the class counts of its next batch."""
        member.ready, member.batch_ids, member.seen = ready, ready.batch_id, self.clock()
        if member.announced is None or len(member.announced) != len(ready.counts):
            member.announced = np.zeros(len(ready.counts), np.int64)
        member.announced += ready.counts
        if len(ready.moments):
            member.moments = ready.moments
        self.changed.set()

    def may_replace(self, member: Member) -> bool:
        """Whether a member may announce a batch in the place of one that was not used; it has few of these."""
        now = self.clock()
        member.spare, member.spare_at = min(10.0, member.spare + now - member.spare_at) - 1, now
        return member.spare >= 0

    def withdraw(self, classes: int) -> None:
        """Drop moments, and announcements that were made for another number of classes."""
        for member in self.members.values():
            member.moments = None
            if member.announced is not None and len(member.announced) != classes:
                member.announced = None

    def candidates(self) -> list[Member]:
        """Return the members that can be selected now, by name."""
        ready = [one for one in self.online if one.ready is not None and not self.is_quarantined(one)]
        return sorted(ready, key=lambda member: member.name)

    @property
    def known(self) -> list[Member]:
        """All members by name, but for those that went away so long ago that they are forgotten."""
        old = self.clock() - FORGET
        there = [member for member in list(self.members.values()) if member.link is not None or member.seen >= old]
        return sorted(there, key=lambda member: member.name)

    @property
    def online(self) -> list[Member]:
        """The members that are connected."""
        return [member for member in list(self.members.values()) if member.link is not None]

    @property
    def unavailable(self) -> int:
        """How many members it is no use to wait for: quarantined, or away for a while."""
        away = self.clock() - AWAY
        return sum(
            self.is_quarantined(member) if member.link is not None else member.seen < away
            for member in self.members.values()
        )

    def succeeded(self, member: Member) -> None:
        """An update was good."""
        member.failures = max(0.0, member.failures - 0.5)  # a device that is late every other time is late too often
        member.turns += 1

    def failed(self, member: Member, reason: str) -> bool:
        """A selected member gave no update; True where it is now quarantined."""
        member.failures += 1
        member.all_failures += 1
        member.last_failure = reason
        if member.failures < self.failures:
            return False
        member.failures = 0
        member.quarantined_until = self.clock() + self.quarantine
        return True

    def is_quarantined(self, member: Member) -> bool:
        """Whether a member is quarantined now."""
        return member.quarantined_until > self.clock()

    def state(self, member: Member) -> str:
        """Return what a member does, in a word."""
        if member.link is None:
            return "offline"
        if self.is_quarantined(member):
            return "quarantined"
        asked = member.asked
        if asked is not None:
            return "late" if asked.answer.done() else "training"  # nobody waits for its answer any more
        return "waiting" if member.ready is None else "ready"

    def distribution(self) -> tuple[NDArray[np.float64], int]:
        """Return the mean class distribution of what online members announced, and how many they are.

        Every device counts alike, however often it was selected: the station's share of P_real (eq. p_real), estimated
        from nothing but the announcements.
        """
        known = [member.announced for member in self.online if member.announced is not None]
        if not known:
            return np.empty(0), 0
        return np.mean([counts / counts.sum() for counts in known], axis=0), len(known)

    def moments(self) -> NDArray[np.float64]:
        """Return the sum of the moments that members have told; empty: none has."""
        known = [member.moments for _, member in sorted(self.members.items()) if member.moments is not None]
        return np.sum(known, axis=0) if known else np.empty(0)

    def _forget(self) -> None:
        self.members = {member.name: member for member in self.known}
