from concurrent.futures import Future
from types import SimpleNamespace

import numpy as np
import pytest

from fedgs.deploy.membership import FORGET, Roster
from fedgs.deploy.wire import Ready


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


class NoLink:
    async def send(self, messages: object) -> None: ...

    def hang_up(self, reason: str) -> None: ...


def ready(number: int, *counts: int) -> Ready:
    return Ready(number, np.array(counts))


def test_the_state_of_a_member() -> None:
    roster = Roster(failures=1)
    link = NoLink()
    member = roster.join("a", link)
    states = [roster.state(member)]
    roster.announce(member, ready(1, 1, 1))
    states.append(roster.state(member))
    member.asked = SimpleNamespace(answer=Future())
    states.append(roster.state(member))
    member.asked.answer.cancel()  # the station waits for it no longer, and it has not answered
    states.append(roster.state(member))
    roster.failed(member, "late")
    states.append(roster.state(member))
    roster.leave("a", link)
    assert [*states, roster.state(member)] == ["waiting", "ready", "training", "late", "quarantined", "offline"]


def test_only_ready_members_that_are_not_quarantined_can_be_selected_by_name() -> None:
    clock = Clock()
    roster = Roster(failures=2, quarantine=60, clock=clock)
    members = {name: roster.join(name, NoLink()) for name in ("c", "a", "b")}
    assert roster.candidates() == []
    for member in members.values():
        roster.announce(member, ready(1, 1, 1))
    assert [member.name for member in roster.candidates()] == ["a", "b", "c"]
    assert not roster.failed(members["a"], "late")
    assert roster.failed(members["a"], "late")
    assert [member.name for member in roster.candidates()] == ["b", "c"]
    clock.now += 59.9
    assert roster.is_quarantined(members["a"])
    clock.now += 0.2
    assert [member.name for member in roster.candidates()] == ["a", "b", "c"]


def test_two_successes_undo_a_failure_and_coming_anew_does_not() -> None:
    """Late every other time: 1, ½, 1½, 1, 2, 1½, 2½, 2, 3."""
    roster = Roster(failures=3)
    member = roster.join("a", NoLink())
    for _ in range(4):
        assert not roster.failed(roster.join("a", NoLink()), "late")
        roster.succeeded(member)
    assert roster.failed(member, "late")
    assert (member.all_failures, member.turns) == (5, 4)
    for _ in range(9):  # late every third time is not too often
        assert not roster.failed(member, "late")
        roster.succeeded(member)
        roster.succeeded(member)


def test_an_old_connection_that_ends_does_not_take_the_new_one_with_it() -> None:
    roster = Roster()
    old, new = NoLink(), NoLink()
    roster.join("a", old)
    roster.join("a", new)
    assert not roster.leave("a", old)
    assert len(roster.online) == 1
    assert roster.leave("a", new)
    assert roster.online == []
    assert "a" in roster.members  # its failures are remembered, for a day


def test_those_who_stay_away_are_forgotten() -> None:
    clock = Clock()
    roster = Roster(clock=clock)
    for name in ("a", "b"):
        link = NoLink()
        roster.join(name, link)
        roster.leave(name, link)
        clock.now += FORGET + 1
    assert set(roster.members) == {"b"}


def test_every_device_counts_alike_in_the_estimate_of_the_distribution() -> None:
    """a announced (4, 0) three times, b (1, 3) once: the mean of (1, 0) and (1/4, 3/4)."""
    roster = Roster()
    a, b, gone = (roster.join(name, NoLink()) for name in "abc")
    for number in range(3):
        roster.announce(a, ready(number, 4, 0))
    roster.announce(b, ready(1, 1, 3))
    roster.announce(gone, ready(1, 0, 4))
    assert gone.link is not None
    roster.leave("c", gone.link)
    distribution, devices = roster.distribution()
    assert distribution.tolist() == pytest.approx([0.625, 0.375])
    assert devices == 2
    roster.withdraw(3)
    assert roster.distribution()[1] == 0
