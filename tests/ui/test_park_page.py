"""The live page and the status of a park of real processes: a device is killed while a browser looks at its tile."""

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.ui.conftest import serving, until

pytest.importorskip("grpc")


def process_of(device: str, folder: Path) -> int:
    """Return the process that serves a device of this park."""
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = path.read_bytes().decode().split("\0")
            here = Path(os.readlink(path.with_name("cwd"))) == folder
        except OSError:  # it has ended
            continue
        if here and "device" in words and device in words:
            return int(path.parent.name)
    raise AssertionError(f"no process serves {device}")


class Park(NamedTuple):
    """A park of real processes, with its page."""

    folder: Path
    page: str

    @property
    def top(self) -> list[str]:
        """How an operator asks its top server."""
        address = (self.folder / "top/addresses.txt").read_text().split()[1]
        return ["--top", address, "--certificates", str(self.folder / "pki/operator/operator")]


@pytest.fixture
def park(tmp_path: Path) -> Iterator[Park]:
    folder = tmp_path / "park"
    # A rate at which the model is not ruined, however long this takes.
    wanted = ("training.rounds=100000", "data.samples_per_device=40", "training.learning_rate=0.001")
    options = [word for one in wanted for word in ("--set", one)]
    command = [sys.executable, "-m", "fedgs", "park", "up", "--ui", "--devices", "3", *options, "--out", str(folder)]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stderr is not None
            lines = iter(process.stderr.readline, "")
            address = next(found[1] for line in lines if (found := re.match(r"live page: (\S+)", line)))
            until((folder / "top/metrics.jsonl").exists, 120)
            yield Park(folder, address)
        finally:
            process.send_signal(signal.SIGINT)
            process.wait(30)


@pytest.mark.skipif(not Path("/proc").is_dir(), reason="finds processes in /proc")
def test_a_killed_device_is_seen_here_and_from_afar(park: Park, open_page: Callable[..., Any]) -> None:
    """One test, for the sake of one park."""
    see_a_death(park, open_page(park.page))
    with serving(*park.top) as address:
        see_a_death(park, open_page(address))
    ask_for_the_status(park)


def see_a_death(park: Park, page: Any) -> None:
    """Kill a device while a page shows it."""
    tiles = page.locator("#factories .tile")
    until(lambda: tiles.count() == 6, 60)
    states = ("selected", "idle", "late", "quarantined")
    until(lambda: tiles.evaluate_all("all => all.map(one => one.dataset.state)").count("gone") == 0, 60)
    until(lambda: (page.locator("#factories path.bar").first.get_attribute("d") or "") != "", 60)
    until(lambda: int(page.locator("#round").get_attribute("max")) > 2, 60)
    assert page.locator(".plot canvas").count() == 4
    shown = page.locator("#now").inner_text()
    assert all(link in shown for link in ("devices → stations", "stations → devices", "stations → top"))
    name = tiles.nth(4).get_attribute("aria-label").split(":")[0]
    os.kill(process_of(name, park.folder), signal.SIGKILL)
    until(lambda: tiles.nth(4).get_attribute("data-state") == "gone", 20)
    until(lambda: f"device={name}" in page.locator("#events").inner_text(), 20)
    until(lambda: tiles.nth(4).get_attribute("data-state") in states, 60)  # the park has started it again


def ask_for_the_status(park: Park) -> None:
    """Ask with the command, with and without the right certificate."""

    def status(*arguments: str) -> "subprocess.CompletedProcess[str]":
        command = [sys.executable, "-m", "fedgs", "status", *park.top, *arguments]
        return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)

    table = status()
    assert (table.returncode, table.stderr) == (0, "")
    assert len(re.findall(r"^station-\d +3 online", table.stdout, re.MULTILINE)) == 2
    facts = json.loads(status("--json").stdout)
    assert [line["round"] for line in facts["lines"]] == list(range(facts["round"] + 1))
    assert [len(station["status"]["devices"]) for station in facts["stations"]] == [3, 3]
    assert "station-1" in {event["process"] for event in facts["events"]}
    device = next((park.folder / "pki/device").iterdir())
    refused = status("--certificates", str(device))
    assert (refused.returncode, refused.stdout, refused.stderr.count("\n")) == (2, "", 1)


def test_devices_are_shown_where_they_are_and_stations_come_and_go() -> None:
    from fedgs.deploy.proto import fedgs_wire_pb2 as pb
    from fedgs.ui.sources import StationStates

    def report(name: str, fault: str = "", **devices: str) -> pb.StationReport:
        status = pb.StationStatus(devices=[pb.DeviceStatus(name=one, state=devices[one]) for one in devices])
        return pb.StationReport(name=name, fault=fault, status=None if fault else status)

    states = StationStates({"s1": ["a", "b"], "s2": ["c"]})

    def shown(*reports: pb.StationReport) -> dict[str, list[tuple[str, str]]]:
        now, facts = states.now(reports), states.facts
        assert len(now["stations"]) == len(facts["factories"])
        found: dict[str, list[tuple[str, str]]] = {name: [] for name in facts["factories"]}
        for (device, place), (state, *_) in zip(facts["devices"], now["devices"], strict=True):
            found[facts["factories"][place]].append((device, state))
        return found

    assert shown() == {"s1": [("a", "gone"), ("b", "gone")], "s2": [("c", "gone")]}
    assert shown(report("s1", a="ready"), report("s2", "starts")) == {
        "s1": [("a", "idle"), ("b", "gone")], "s2": [("c", "gone")],
    }  # fmt: skip
    moved = report("s1", a="training", b="offline"), report("s2", c="ready"), report("s3", b="ready")
    assert shown(*moved) == {"s1": [("a", "selected")], "s2": [("c", "idle")], "s3": [("b", "idle")]}
    assert shown(report("s2", c="ready", a="late"), report("s3", "no answer")) == {
        "s2": [("c", "idle"), ("a", "late")], "s3": [("b", "gone")],
    }  # fmt: skip
