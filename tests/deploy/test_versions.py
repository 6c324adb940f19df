"""Two versions of fedgs in one park: a copy of the package that speaks the next version of the protocol."""

import asyncio
import re
import shutil
import signal
import subprocess
from pathlib import Path

import pytest

import fedgs
from fedgs.deploy.pki import Identity
from fedgs.deploy.transport import GrpcTransport
from fedgs.deploy.wire import VERSION
from fedgs.errors import PeerError
from tests.deploy.devices import bundle
from tests.deploy.processes import Park, StationHandle, order, wait_for


def install(folder: Path, version: int) -> Path:
    """Install fedgs with another version of the protocol; return the folder to import it from."""
    there = Path(fedgs.__file__).parent
    shutil.copytree(there, folder / "fedgs", ignore=shutil.ignore_patterns("__pycache__"))
    wire = folder / "fedgs/deploy/wire.py"
    changed, number = re.subn(r"^VERSION = \d+$", f"VERSION = {version}", wire.read_text(), flags=re.MULTILINE)
    assert number == 1
    wire.write_text(changed)
    return folder


OPTIONS = [
    "task.model=linear", "training.rounds=100000", "training.iterations=4", "training.batch_size=8", "selection.pick=2",
    "training.learning_rate=0.01", "federation.devices=4", "federation.factories=2",
    "selection.coverage.weight=0.5", "selection.coverage.share=turns",
]  # fmt: skip


def test_a_park_is_upgraded_one_process_after_the_other_without_losing_its_run(park: Park) -> None:
    """A station and a device, the top server, the rest: every pair of neighbouring versions meets."""
    new = install(park.folder / "new", VERSION + 1)
    devices: dict[str, subprocess.Popen[bytes]] = {}
    stations: dict[str, StationHandle] = {}
    tops: list[subprocess.Popen[bytes]] = []

    def ended(process: "subprocess.Popen[bytes]") -> None:
        process.send_signal(signal.SIGTERM)
        process.wait(timeout=60)

    def device(number: int) -> None:
        name, station = f"camera-{number}", stations[f"s{1 + number % 2}"]
        if name in devices:
            ended(devices[name])
        devices[name] = park.device(name, station, source=f"glyphs:{number}")

    def station(name: str) -> None:
        if name in stations:
            ended(stations[name].process)
        stations[name] = park.station(name, "--gather", "1")

    def top() -> None:
        if tops:
            ended(tops[-1])
        tops.append(park.top(list(stations.values()), *OPTIONS, more=["--log-json"]))

    def goes_on() -> None:
        """Both stations train, with all four devices."""
        done = park.rounds()[-1]["round"] if park.rounds() else 0
        both = (2, 4)
        wait_for(
            lambda: any((line.get("stations"), line["devices"]) == both for line in park.rounds()[done + 2 :]), 120,
            "a round of both stations",
        )  # fmt: skip

    for name in ("s1", "s2"):
        station(name)
    for number in range(4):
        device(number)
    top()
    goes_on()
    park.path = new
    station("s1")  # with an old top server and old devices
    device(1)  # at an old station
    goes_on()
    top()  # with an old station
    goes_on()
    station("s2")
    for number in (0, 2, 3):
        device(number)
    goes_on()
    rounds = [line["round"] for line in park.rounds()]
    assert rounds == list(range(len(rounds)))
    assert [len(park.log("top", event)) for event in ("run begins", "run is resumed")] == [1, 1]
    for name in ("top", "s1", "s2", *devices):
        assert "protocol version" not in park.text(name)
        assert "Traceback" not in park.text(name)


async def test_two_versions_apart_are_refused_in_one_line_on_both_sides(park: Park) -> None:
    """A station from the future: whoever calls it is told to update."""
    park.path = install(park.folder / "newer", VERSION + 2)
    future = await asyncio.to_thread(park.station, "s1")
    park.path = None
    park.device("old", future, source="glyphs:1")
    top = GrpcTransport(future.top, bundle(park, "top", "top"), Identity("park", "top", "top"), 2.0)
    with pytest.raises(PeerError) as refused:
        await top.run_round(order())
    await asyncio.to_thread(wait_for, lambda: park.log("old", "not connected"), 60, "the refusal")
    (line,) = park.log("old", "not connected")
    told = {"device": line["reason"], "top server": str(refused.value)}
    logged = [line["reason"] for line in park.log("s1", "connection refused")]
    assert len(logged) == 2
    for role, reason in told.items():
        both = f"protocol version {VERSION} of the {role}, {VERSION + 2} of the station"
        assert both in reason
        assert f"update fedgs on the {role}" in reason
        assert sum(both in text for text in logged) == 1
