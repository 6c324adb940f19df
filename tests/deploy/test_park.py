"""``fedgs park up``, as its user starts it."""

import io
import json
import os
import pty
import signal
import subprocess
import sys
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console
from safetensors.torch import load_file

from fedgs.cli.park_display import picture
from fedgs.deploy.park import LocalPark
from fedgs.deploy.proto import fedgs_wire_pb2 as pb
from fedgs.settings import Settings
from fedgs.simulation.federations import load_federation
from fedgs.simulation.run import execute
from tests.conftest import Here
from tests.deploy.processes import wait_for
from tests.simulation.small import small_config, small_federation, small_settings


def options(folder: Path, rounds: int, stations: int = 2) -> list[str]:
    """A park with two devices a station."""
    wanted = [f"training.rounds={rounds}", "task.model=linear", "selection.pick=2"]
    size = [f"federation.factories={stations}", f"federation.devices={2 * stations}"]
    return ["park", "up", *small_config(folder, *wanted, *size)]


def processes_of(folder: Path) -> list[int]:
    """Return the processes that work in a folder or below it."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            try:
                if Path(os.readlink(entry / "cwd")).is_relative_to(folder):
                    found.append(int(entry.name))
            except OSError:
                continue
    return found


def test_a_park_runs_to_the_simulators_end_and_leaves_no_process(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "fedgs", *options(tmp_path, 3), "--out", "park"],
        cwd=tmp_path, capture_output=True, text=True, timeout=180, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert [line.split("  ")[0] for line in done.stdout.splitlines()[:4]] == [f"round {n}/3" for n in range(4)]
    assert "park: done after 3 rounds, accuracy" in done.stdout
    assert not processes_of(tmp_path / "park")
    lines = [json.loads(line) for line in (tmp_path / "park/top/metrics.jsonl").read_text().splitlines()]
    assert [line.get("stations") for line in lines] == [None, 2, 2, 2]
    assert lines[-1]["devices"] == 4
    commands = (tmp_path / "park/commands.txt").read_text().splitlines()
    assert [command.split()[1] for command in commands] == ["station"] * 2 + ["device"] * 4 + ["top"]
    settings = Settings.model_validate_json((tmp_path / "park/config.json").read_text())
    simulated = execute(settings, load_federation(settings)).weights
    for name, weight in load_file(tmp_path / "park/top/model.safetensors").items():
        torch.testing.assert_close(weight, simulated[name], rtol=0, atol=1e-5)


@pytest.mark.parametrize("deed", [signal.SIGINT, signal.SIGKILL])
def test_whoever_stops_a_park_stops_all_of_it(tmp_path: Path, deed: signal.Signals) -> None:
    terminal, end = pty.openpty()  # it shows its table
    process = subprocess.Popen(
        [sys.executable, "-m", "fedgs", *options(tmp_path, 100_000, stations=1), "--out", "park"],
        cwd=tmp_path, stderr=end, env=os.environ | {"TERM": "xterm", "COLUMNS": "80", "LINES": "30"},
    )  # fmt: skip
    os.close(end)
    shown: list[bytes] = []
    reader = threading.Thread(target=read_all, args=(terminal, shown))
    reader.start()
    metrics = tmp_path / "park/top/metrics.jsonl"
    try:
        wait_for(lambda: metrics.exists() and metrics.read_bytes().count(b"\n") > 2, 150, "the park to train")
        wait_for(lambda: b"station-1  2 online" in b"".join(shown), 20, "the table to show it")
        assert len(processes_of(tmp_path / "park")) == 4
        process.send_signal(deed)
        process.wait(timeout=30)
    finally:
        process.kill()
        process.wait()
    wait_for(lambda: not processes_of(tmp_path / "park"), 20, "all processes to end")
    reader.join(10)
    os.close(terminal)
    text = b"".join(shown).decode()
    assert "Ctrl-C end" in text
    if deed == signal.SIGINT:
        assert process.returncode == 130
        assert "stopped after" in text


def read_all(terminal: int, into: list[bytes]) -> None:
    with suppress(OSError):  # its other end is closed
        while data := os.read(terminal, 65536):
            into.append(data)


def test_the_table_shows_stations_devices_round_and_accuracy(tmp_path: Path) -> None:
    class Still(LocalPark):
        """A park of which only the picture is of interest."""

        def status(self, station: str) -> pb.StationStatus | None:
            if station == "station-2":
                return None
            devices = [
                pb.DeviceStatus(name="camera-1", state="ready", turns=17),
                pb.DeviceStatus(
                    name="camera-2", state="quarantined", turns=3, failures=4, last_failure="a loss of nan"
                ),
                pb.DeviceStatus(name="camera-3", state="offline"),
            ]
            return pb.StationStatus(name=station, round=3, iteration=7, iterations=25, loss=1.25, divergence=0.125,
                                    iterations_per_second=80, devices=devices)  # fmt: skip

        def lines(self) -> list[dict[str, Any]]:
            return [
                {"round": 0, "accuracy": 0.1, "loss": 1.4},
                {"round": 1, "accuracy": 0.3, "loss": 1.2},
                {"round": 2, "divergence": 0.2},
            ]

    settings = small_settings("training.rounds=9", "selection.pick=2", "federation.devices=4", "federation.factories=2")
    console = Console(width=80, record=True, file=io.StringIO())
    console.print(picture(Still(tmp_path / "park", settings, small_federation(4, 2)), 61.0))
    shown = [line.rstrip() for line in console.export_text().splitlines() if line.strip()]
    assert shown[0] == "round 2/9   accuracy 30.00%   divergence 0.200   1:01   Ctrl-C ends it"
    assert [line.split() for line in shown if "station-1" in line] == [
        ["station-1", "2", "online", "iteration", "7/25", "0.125", "1.250", "80.0"]
    ]
    assert any(line.split() == ["camera-1", "ready", "17"] for line in shown)
    assert any(line.split() == ["camera-2", "quarantined,", "4", "failed", "3"] for line in shown)
    assert any(line.split() == ["station-2", "starting"] for line in shown)
    assert max(map(len, shown)) <= 80


def test_what_is_wrong_with_a_park_is_one_line(here: Here, tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    for arguments, reason in (
        ([*options(tmp_path, 2), "--out", "there"], "there: exists already"),
        (["park", "up", "--wire", "int4"], "--wire int4: input should be"),
        (["park", "up", "--set", "data.normalise=per-channel"], "is for simulations"),
        (["park", "up", "--set", "selection.pick=9"], "selection.pick=9 is more than the 4 devices"),
        (["park", "up", "nowhere.toml"], "no such file"),
    ):
        code, _, err = here(*arguments)
        assert code == 2
        assert reason in err
        assert err.count("\n") == 1
