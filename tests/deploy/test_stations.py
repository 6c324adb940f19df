"""Stations that come and go during a run, devices that move between them, and the queues that move with them."""

import asyncio
import json
import logging
import signal
import socket
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from fedgs.deploy.factory_numbers import FactoryNumbers
from fedgs.deploy.park_stations import leads_home, with_station, without_station
from fedgs.deploy.round_messages import RoundOrder, RoundResult
from fedgs.deploy.station_list import NamedStations
from fedgs.deploy.top import Top, merged_queues
from fedgs.deploy.top_state import Checkpoints, TopState
from fedgs.errors import CheckpointError
from fedgs.selection.team import TeamRule
from tests.deploy.devices import Noise, agent, good_devices, run_round, running
from tests.deploy.processes import UNIFORM, Park, StationHandle, wait_for
from tests.deploy.test_top import Fake, gone, hangs, top


def test_a_number_is_given_once_to_a_certificate_and_survives_a_restart(tmp_path: Path) -> None:
    """The first list decides, whoever answers first; a known station at a new address has its old number."""
    numbers = FactoryNumbers(tmp_path)
    numbers.reserve(["a:1", "b:1"])
    assert numbers.of("b:1", "s2") == 1
    numbers = FactoryNumbers(tmp_path)
    numbers.reserve(["b:1", "a:1"])
    assert [numbers.of("a:1", "s1"), numbers.of("b:1", "s2")] == [0, 1]
    stored = json.loads((tmp_path / "stations.json").read_text())
    assert stored["epoch"] == numbers.epoch
    (tmp_path / "stations.json").write_text(json.dumps({**stored, "epoch": 1 << 50}))  # the clock was ahead
    assert FactoryNumbers(tmp_path).epoch == (1 << 50) + 1
    numbers.reserve(["c:1", "b:1", "d:1"])
    assert numbers.of("c:1", "s1") == 0  # another machine, the same certificate
    assert numbers.of("b:1", "s9") == 4  # another station in its place
    assert numbers.of("d:1", "s4") == 3
    numbers = FactoryNumbers(tmp_path)
    numbers.reserve(["b:1"])
    assert [numbers.of("b:1", name) for name in ("s2", "s9", "s1", "new")] == [1, 4, 0, 5]
    (tmp_path / "stations.json").write_text('["s1"]')
    with pytest.raises(CheckpointError, match=r"stations\.json"):
        FactoryNumbers(tmp_path)


def test_a_file_of_stations_is_read_again_and_a_bad_one_changes_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "stations.txt"
    file.write_text("# the plant\na:1\n\n  b:2  # the old hall\n")
    made: list[str] = []

    def connect(address: str) -> Fake:
        made.append(address)
        return Fake(address, 1.0)

    stations = NamedStations([str(file)], connect, FactoryNumbers(), 2)
    first = stations.transports
    assert [one.name for one in first] == ["a:1", "b:2"]
    for bad in ("a:1\nb", "", "a:1\na:1\n", "a:1\n", b"\xff", None):
        file.unlink()
        if bad is not None:
            file.write_bytes(bad if isinstance(bad, bytes) else bad.encode())
        else:
            file.mkdir()
        caplog.clear()
        with caplog.at_level(logging.ERROR, logger="fedgs"):
            stations.reload()
        (record,) = caplog.records
        assert "\n" not in vars(record)["reason"]
        assert stations.transports == first
        assert not stations.changed.is_set()
    file.rmdir()
    file.write_text("b:2\nc:3\na:1")
    stations.reload()
    assert stations.changed.is_set()
    assert [one.name for one in stations.transports] == ["b:2", "c:3", "a:1"]
    assert (stations.transports[0], stations.transports[2]) == first[::-1]  # their connections stay
    assert made == ["a:1", "b:2", "c:3"]


def play(server: Top, rounds: int, before: Callable[[int], None] = lambda number: None) -> TopState:
    async def run() -> TopState:
        state = await server.begin("run", {"w": torch.tensor([0.0])})
        for number in range(rounds):
            before(number + 1)
            state = await server.advance(state)
        return state

    return asyncio.run(asyncio.wait_for(run(), 20))


def change(server: Top, *stations: Fake) -> None:
    """Make these the list, as a reload does."""
    listed = server.stations
    listed.transports = stations
    listed.changed.set()


def numbers_of(station: Fake) -> list[tuple[int, bool]]:
    return [(order.round, order.released) for order in station.orders]


def test_stations_join_with_the_next_round_and_one_that_is_taken_out_holds_none() -> None:
    a, b, late = Fake("a", 1.0), Fake("b", 3.0), Fake("c", 9.0)
    server = top(a, b, late)

    async def joins() -> None:
        change(server, a, b)

    async def leaves() -> None:
        change(server, a, late)
        await hangs()

    a.deeds = [joins]  # in round 1 the third is taken out before it has answered
    late.deeds = [hangs]
    state = play(server, 1)
    assert state.weights["w"].tolist() == [2.0]
    b.deeds = [leaves]  # in round 2 the second never answers, and is replaced
    late.deeds = []
    state = asyncio.run(asyncio.wait_for(server.advance(state), 20))
    assert state.weights["w"].tolist() == [3.0]  # the first alone: it is enough
    state = asyncio.run(asyncio.wait_for(server.advance(state), 20))
    assert state.weights["w"].tolist() == [8.0]  # (1 + 9) / 2 more
    assert [line.get("stations") for line in state.metrics] == [None, 2, 1, 2]
    assert numbers_of(late) == [(1, False), (0, True), (3, False)]
    assert [order.wanted.factory for order in late.orders] == [2, 2, 2]
    assert numbers_of(b) == [(1, False), (2, False), (0, True)]


@pytest.mark.parametrize("least", [None, 2])
def test_a_new_station_is_asked_at_once_where_too_few_are_left_without_it(least: int | None) -> None:
    dead, new, other = Fake("dead", 1.0), Fake("new", 3.0), Fake("other", 5.0)
    stations = (dead,) if least is None else (other, dead)
    server = top(*stations, **({} if least is None else {"min_stations": least}))
    new.factory = 2

    async def replaced() -> None:
        change(server, *stations[:-1], new)
        await hangs()

    dead.deeds = [gone, replaced]
    state = play(server, 1)
    assert state.weights["w"].tolist() == [3.0 if least is None else 4.0]


def test_a_station_that_is_listed_twice_is_asked_once() -> None:
    one, again = Fake("a", 1.0), Fake("a, by another address", 1.0)
    server = top(one, again)
    again.factory = 0
    assert play(server, 1).metrics[-1]["stations"] == 1
    assert sorted(len(station.orders) for station in (one, again)) == [0, 1]


class Reporting(Fake):
    """A station that says who is there, and how far behind."""

    def __init__(self, name: str, *online: Sequence[str], queues: Mapping[str, float] | None = None) -> None:
        super().__init__(name, 1.0)
        self.online, self.queues = list(online), queues or {}

    async def run_round(self, order: RoundOrder) -> RoundResult:
        result = await super().run_round(order)
        online = self.online.pop(0) if len(self.online) > 1 else self.online[0]
        return replace(result, online=online, queues=self.queues)


def test_a_device_that_moves_is_not_shut_out_and_one_at_two_stations_is() -> None:
    """Both report it once; only in the second round in a row is it a copy, which the first station keeps."""
    old, new = Reporting("a", ["d"], ["d"], []), Reporting("b", [], ["d"], ["d"])
    play(top(old, new), 4)
    assert [list(order.elsewhere) for order in old.orders + new.orders] == [[]] * 8
    first, copy = Reporting("a", ["d"]), Reporting("b", ["d"])
    play(top(first, copy), 4)
    assert [list(order.elsewhere) for order in first.orders] == [[]] * 4
    assert [list(order.elsewhere) for order in copy.orders] == [[], [], ["d"], ["d"]]
    silent, other = Reporting("a", ["d"]), Reporting("b", [], ["d"])
    silent.deeds = [lambda: None, hangs, hangs, hangs]  # it has died, and its device is at the other one
    play(top(silent, other, min_stations=1, linger=0.05), 4)
    assert [list(order.elsewhere) for order in other.orders] == [[]] * 4


def test_queues_are_handed_out_with_every_order_and_are_in_the_checkpoint(tmp_path: Path) -> None:
    """A device that was at both stations in a round has changed by the sum: 0.5 and −1 from 2 on."""
    before = {"a": 2.0, "b": 1.0, "away": -1.0}
    answers = {
        factory: replace(
            RoundResult("run", 1, None, np.zeros(0), 1, 1, 0.0, 0.0, 1, np.empty(0)),  # type: ignore[arg-type]
            queues=queues,
        )
        for factory, queues in ((1, {"a": 1.0}), (0, {"a": 2.5, "b": 0.1 + 0.2}), (2, {"new": 0.5}))
    }
    assert merged_queues(before, answers) == {"a": 1.5, "b": 0.1 + 0.2, "away": -1.0, "new": 0.5}
    station = Reporting("a", [], queues={"x": 0.1 + 0.2})
    state = play(top(station), 2)
    assert [dict(order.queues) for order in station.orders] == [{}, {"x": 0.1 + 0.2}]
    Checkpoints(tmp_path, "digest").save(state)
    back = Checkpoints(tmp_path, "digest").load()
    assert back is not None
    assert back.queues == {"x": 0.1 + 0.2}


async def test_a_station_goes_on_from_the_queues_of_the_order(park: Park) -> None:
    """Teams of one of two, V = 1: the one that is 6 turns behind trains four times, and both earn ½ a time."""
    station = await park.serve("s1", min_devices=2)
    wanted = TeamRule(1, 0, "gbp-cs", {}, UNIFORM, 0, 0, coverage=1.0)
    async with good_devices(park, station, "a", "b"):
        first = await run_round(station, 1, 4, wanted=wanted, queues={"a": 3.0, "b": -3.0, "elsewhere": 9.0})
        assert first.queues == {"a": 1.0, "b": -1.0}
        assert first.took_part == ["a"]
        again = await run_round(
            station, 2, 4, wanted=wanted, queues={"a": -3.0, "b": 3.0}
        )  # it was elsewhere meanwhile
        assert again.queues == {"a": -1.0, "b": 1.0}
        assert again.took_part == ["b"]
        own = await run_round(station, 3, 1, wanted=wanted)  # a top server that hands out none
        assert own.queues == {"a": -0.5, "b": 0.5}
        plain = await run_round(station, 4, 1, pick=1)
        assert plain.queues == {}


OPTIONS = [
    "task.model=linear", "training.rounds=100000", "training.iterations=3", "training.batch_size=5", "selection.pick=1",
    "training.learning_rate=0.001", "selection.coverage.weight=1", "selection.coverage.share=turns",
    "federation.devices=3", "federation.factories=1",
]  # fmt: skip


async def test_stations_change_under_a_running_top_server_and_devices_follow(park: Park) -> None:
    """A real top server, SIGHUP, and devices with a list: the removed station sends its own to the other one."""
    first, second = [await park.serve(name, gather=1) for name in ("s1", "s2")]
    file = park.folder / "stations.txt"
    file.write_text(f"{first.top}\n")
    both = StationHandle(park, "both", first.runs, f"{first.devices},{second.devices}", "")
    devices = [agent(park, both, name, Noise(number)) for number, name in enumerate("ab")]
    devices.append(agent(park, second, "c", Noise(2)))
    more = ["--classes", "4", "--image", "8x8", "--log-json"]

    async def until(what: Callable[[], object], why: str) -> None:
        await asyncio.to_thread(wait_for, what, 90, why)

    def online(station: StationHandle) -> set[str]:
        return {name for name, state in station.states().items() if state != "offline"}

    def rounds_with(stations: int, devices: int) -> bool:
        return any((line.get("stations"), line.get("devices")) == (stations, devices) for line in park.rounds()[-3:])

    process = park.top_of(str(file), *OPTIONS, more=more)
    async with running(*(one.run() for one in devices)):
        await until(lambda: rounds_with(1, 2), "rounds of one station")
        file.write_text(f"{first.top}\n{second.top}\n")
        process.send_signal(signal.SIGHUP)
        await until(lambda: rounds_with(2, 3), "rounds of two stations")
        file.write_text("nonsense\n")
        process.send_signal(signal.SIGHUP)
        await until(lambda: park.log("top", "the list of stations stays as it was"), "the bad file to be seen")
        file.write_text(f"{second.top}\n")
        process.send_signal(signal.SIGHUP)
        await until(lambda: rounds_with(1, 3), "all devices at the second station")
        assert (online(first), online(second)) == (set(), {"a", "b", "c"})
        process.terminate()
        await asyncio.to_thread(process.wait, 30)
        done = len(park.rounds())
        process = park.top_of(str(file), *OPTIONS, more=more)
        await until(lambda: len(park.rounds()) > done + 2, "the run to go on")
        process.terminate()
        await asyncio.to_thread(process.wait, 30)
    assert [line["round"] for line in park.rounds()] == list(range(len(park.rounds())))
    assert json.loads((park.folder / "state/stations.json").read_text())["stations"] == {"s1": 0, "s2": 1}
    assert [line["added"] for line in park.log("top", "list of stations")] == [[second.top], []]
    assert len(park.log("top", "run is resumed")) == 1


async def test_a_device_waits_for_its_station_then_fails_over_and_prefers_the_first_of_its_list(park: Park) -> None:
    """The first station is not there yet: who is to wait for it waits, the other one stays where it has found work."""
    with socket.create_server(("127.0.0.1", 0)) as one, socket.create_server(("127.0.0.1", 0)) as other:
        ports = [taken.getsockname()[1] for taken in (one, other)]
    second = await park.serve("s2", gather=0.2)
    both = StationHandle(park, "both", second.runs, f"127.0.0.1:{ports[0]},{second.devices}", "")
    patient, moving = agent(park, both, "a", Noise(0), failover=1000), agent(park, both, "b", Noise(1), failover=0.2)
    (park.folder / "s1").mkdir(mode=0o700)
    (park.folder / "s1/addresses.txt").write_text("".join(f"127.0.0.1:{port}\n" for port in ports))
    async with running(patient.run(), moving.run()):
        await asyncio.to_thread(second.wait_ready, 1)
        first = await asyncio.to_thread(park.station, "s1", "--gather", "5")
        await asyncio.to_thread(first.wait_ready, 1)
        await run_round(second, 1, 1, pick=1)
        assert (list(first.states()), list(second.states())) == (["a"], ["b"])
        for member in second.control.station.roster.online:
            assert member.link is not None
            member.link.hang_up("for the test")
        await asyncio.to_thread(first.wait_ready, 2)
        await run_round(first, 1, 1, pick=2)
        first.process.kill()
        await asyncio.to_thread(second.wait_ready, 1)
        assert list(second.states()) == ["b"]


def test_a_new_station_of_a_local_park_takes_its_share_and_a_removed_ones_devices_are_spread() -> None:
    homes = {"s1": ["a", "b", "c", "d"], "s2": ["e", "f"]}
    more = with_station(homes, "s3")
    assert more == {"s1": ["a", "b"], "s2": ["e", "f"], "s3": ["d", "c"]}
    assert without_station(more, "s1") == {"s2": ["e", "f", "a"], "s3": ["d", "c", "b"]}
    assert with_station({"s1": ["a"]}, "s2") == {"s1": ["a"], "s2": []}


def test_a_device_of_a_local_park_is_started_again_where_its_list_leads_elsewhere() -> None:
    assert leads_home(["s1", "s2"], ["s1", "s2", "s3"])  # another station is new
    assert leads_home(["s1", "s2"], ["s2", "s3"])  # its own is gone, and the next one of its list is its own now
    assert not leads_home(["s1", "s2"], ["s3", "s2"])  # it would join the others at s2
    assert not leads_home(["s1"], ["s2"])
