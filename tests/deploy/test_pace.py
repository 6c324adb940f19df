"""Slow devices, on purpose or not: the time of a station that they can take, by hand and in real parks."""

import math
import time
from collections.abc import Iterator

import pytest

from fedgs.deploy.membership import Member
from fedgs.deploy.pace import GRACE, Pace, lower_median
from fedgs.deploy.sources import Batch
from fedgs.deploy.tensors import Flat
from fedgs.deploy.trainers import LinearTrainer
from tests.deploy.devices import Noise, agent, run_round, running
from tests.deploy.processes import CLASSES, SHAPE, Park, StationHandle


class Timed(LinearTrainer):
    """Takes its time for a step."""

    def __init__(self, seconds: float) -> None:
        super().__init__(CLASSES, SHAPE)
        self.seconds = seconds

    def step(self, weights: Flat, batch: Batch, learning_rate: float) -> tuple[Flat, float]:
        time.sleep(self.seconds)
        return super().step(weights, batch, learning_rate)


class Trickle(Noise):
    """Takes its time for a batch."""

    def __init__(self, seconds: float) -> None:
        super().__init__(9)
        self.seconds = seconds

    def batches(self, size: int, classes: int) -> Iterator[Batch | None]:
        for batch in super().batches(size, classes):
            yield batch
            time.sleep(self.seconds)


def turns_of(station: StationHandle) -> dict[str, int]:
    return {device.name: device.turns for device in station.status().devices}


async def hurried(park: Park, monkeypatch: pytest.MonkeyPatch, **settings: float) -> StationHandle:
    """Serve a station that has a second of grace, not half a minute."""
    monkeypatch.setattr("fedgs.deploy.pace.GRACE", 1.0)
    station = await park.serve("s1", gather=30, **settings)
    station.control.station.pace.credit = 1.0
    return station


@pytest.mark.parametrize("pick", [4, 2])
async def test_a_device_that_answers_just_in_time_slows_a_station_to_half_its_pace_at_most(
    park: Park, monkeypatch: pytest.MonkeyPatch, pick: int
) -> None:
    """The usual answer takes 0.05 s, and one of the late device 1 s: it is paid for by nineteen iterations without it.

    In small teams, too, where the late device gives half of all answers. On a busy machine usual answers take longer.
    """
    station = await hurried(park, monkeypatch, min_devices=4)
    usual = [agent(park, station, name, Noise(1), make=lambda _: Timed(0.05)).run() for name in "abc"]
    async with running(agent(park, station, "late", Noise(2), make=lambda _: Timed(1.0)).run(), *usual):
        await run_round(station, 1, 6, pick=pick)
        before = turns_of(station)
        result = await run_round(station, 2, 30, pick=pick)
    turns = turns_of(station)
    assert turns["late"] >= 1  # it still trains now and then
    assert turns["late"] - before["late"] <= 8
    assert result.events["slow"] > 15
    (line,) = park.log("s1", "device is slow; it is not waited for each time")
    assert line["device"] == "late"


async def test_a_device_that_announces_late_is_not_waited_for_in_every_iteration(
    park: Park, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All four are wanted. A batch of one takes 0.5 s, the answers of the others some milliseconds."""
    station = await hurried(park, monkeypatch, min_devices=4)
    usual = [agent(park, station, name, Noise(1)).run() for name in "abc"]
    async with running(agent(park, station, "late", Trickle(0.5)).run(), *usual):
        first = await run_round(station, 1, 12, pick=4)
        before, began = turns_of(station), time.monotonic()
        await run_round(station, 2, 100, pick=4)  # may be over before the late one has another batch
        seconds = time.monotonic() - began
    turns = turns_of(station)
    assert turns["late"] - before["late"] <= seconds / 0.5 + 1  # it trains whenever it has a batch
    assert turns["late"] - before["late"] < 50
    assert turns["a"] > 60  # at full speed a batch may come too late now and then
    assert first.events["slow"] > 0


async def test_devices_that_all_take_long_for_their_batches_are_waited_for(
    park: Park, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That is usual here, whatever it costs."""
    station = await hurried(park, monkeypatch, min_devices=3)
    async with running(*(agent(park, station, name, Trickle(0.2)).run() for name in "abc")):
        await run_round(station, 1, 10, pick=3)
        result = await run_round(station, 2, 10, pick=3)
    assert result.samples == 10 * 3 * 5
    assert "short" not in result.events


def members(*names: str) -> list[Member]:
    return [Member(name) for name in names]


def test_each_device_has_one_vote_for_what_is_usual() -> None:
    """Three take 0.1 s; the slow one has given half of all answers, each of 4.5 s."""
    pace = Pace()
    for number in range(5):
        pace.answered("slow", 4.5)
        pace.answered("abcab"[number], 0.1)
    assert pace.usual == 0.1
    assert lower_median([4.0, 1.0]) == 1.0  # one of two
    assert lower_median([5.0, 1.0, 4.0]) == 4.0  # two of three
    assert lower_median([]) == 0.0


def test_the_credit_by_hand() -> None:
    """u = 0.1, w = 0: an iteration earns 0.2 − t. A device that takes 4.5 s is affordable down to a credit of 4.3 s."""
    pace, everyone = Pace(), members("a", "b", "c", "slow")
    for name in ("a", "b", "c", "slow") * 3:
        pace.answered(name, 4.5 if name == "slow" else 0.1)
    assert pace.eligible(everyone, 2, 3) == everyone
    for _ in range(6):
        assert pace.eligible(everyone, 2, 3) == everyone
        pace.waited(0.0)
        pace.iterated(["slow"], 4.5)
    assert pace.credit == pytest.approx(4.2)
    assert pace.slow(everyone) == {"slow"}
    assert pace.eligible(everyone, 2, 3) == everyone[:3]
    assert pace.eligible(members("slow"), 1, 3) == members("slow")  # never nobody
    for number in range(2):
        pace.iterated(["a"], 0.1)
        assert pace.slow(everyone) == ({"slow"} if number == 0 else set()), pace.credit
    for _ in range(1000):
        pace.iterated(["a"], 0.1)
    assert pace.credit == GRACE


def test_the_patience_by_hand() -> None:
    """u = 0.1. Two devices announce at once and two after 4 s: of four votes the lower median is 0."""
    now = 100.0
    pace = Pace(clock=lambda: now)
    pace.waited(50.0)
    assert (pace.patience, pace.credit) == (math.inf, GRACE)  # nothing is usual yet
    pace.begin_task()
    for name in ("a", "b", "c", "d") * 3:
        pace.answered(name, 0.1)
        pace.free(name)
        if name in "ab":
            pace.announced(name)
    now = 104.0
    pace.free("c")  # it has left and come back meanwhile: that counts from the beginning
    pace.announced("c")
    pace.announced("d")
    assert pace.usual_wait == 0.0
    assert pace.patience == pytest.approx(GRACE + 0.1)
    for _ in range(8):
        pace.waited(4.0)
        pace.iterated(["c"], 0.1)
    assert pace.credit == pytest.approx(GRACE - 8 * 3.9)
    assert pace.patience == pytest.approx(0.1)
    for name in "abcd" * 20:  # all of them are slow now: 4 s, and that is what the station waits
        pace.free(name)
        now += 4.0
        pace.announced(name)
    assert pace.usual_wait == 4.0
    assert pace.patience == pytest.approx(0.1 + 2 * 4.0)
    for _ in range(50):
        pace.waited(0.0)  # of many devices enough are ready
    assert pace.usual_wait == 0.0


def test_a_device_is_late_by_what_is_usual_but_not_where_its_whole_team_is() -> None:
    """Ten answers of 2 s: 6 s are usual. Half of a team of four must have answered, and three times what that took."""
    pace = Pace()
    assert (pace.is_late(29.9, 30.0), pace.is_late(30.0, 30.0)) == (False, True)  # nothing is usual yet
    for _ in range(10):
        pace.answered("a", 2.0)
    pace.begin_team(4)
    assert not pace.is_late(29.0, 30.0)
    pace.answered("a", 2.0)
    assert not pace.is_late(29.0, 30.0)
    pace.answered("b", 2.0)
    assert (pace.is_late(5.9, 30.0), pace.is_late(6.0, 30.0), pace.is_late(3.0, 3.0)) == (False, True, True)
    pace.begin_team(2)
    pace.answered("a", 4.0)  # a stall
    assert (pace.is_late(11.9, 30.0), pace.is_late(12.0, 30.0)) == (False, True)
