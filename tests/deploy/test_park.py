"""``fedgs park up``, as its user starts it."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from rich.console import Console

from tests.conftest import Here
from tests.deploy.processes import wait_for
from tests.simulation.small import small_config

QUICK = ["--stations", "2", "--devices", "2", "--set", "training.model=linear", "--set", "training.iterations=4"]


def options(folder: Path, rounds: int) -> list[str]:
    small = [*small_config(folder, "selection.pick=2"), "--set", f"training.rounds={rounds}"]
    return ["park", "up", *small, *QUICK, "--set", "federation.devices=4", "--set", "federation.factories=2"]


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


def test_a_park_runs_to_its_end_and_leaves_no_process(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "fedgs", *options(tmp_path, 3), "--out", "park"],
        cwd=tmp_path, capture_output=True, text=True, timeout=90, check=False,
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


@pytest.mark.parametrize("deed", [signal.SIGINT, signal.SIGKILL])
def test_whoever_stops_a_park_stops_all_of_it(tmp_path: Path, deed: signal.Signals) -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "fedgs", *options(tmp_path, 100_000), "--out", "park"],
        cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    metrics = tmp_path / "park/top/metrics.jsonl"
    try:
        wait_for(lambda: metrics.exists() and metrics.read_bytes().count(b"\n") > 2, 60, "the park to train")
        assert len(processes_of(tmp_path / "park")) == 7
        process.send_signal(deed)
        out, err = process.communicate(timeout=30)
    finally:
        process.kill()
    if deed == signal.SIGINT:
        assert process.returncode == 130
        assert "stopped after" in err
        assert not processes_of(tmp_path / "park")
    wait_for(lambda: not processes_of(tmp_path / "park"), 20, "all processes to end")


def test_the_table_shows_stations_devices_round_and_accuracy(tmp_path: Path) -> None:
    from fedgs.cli.park_display import picture
    from fedgs.deploy.park import LocalPark, running
    from fedgs.simulation.source import load_federation
    from tests.simulation.small import small_settings

    small_config(tmp_path)
    settings = small_settings(
        "federation.devices=4", "federation.factories=2", "selection.pick=2", "training.model=linear",
        "training.rounds=2", f"data.name='{tmp_path / 'bars.npz'}'",
    )  # fmt: skip
    console = Console(width=80, record=True, file=open(os.devnull, "w"))  # noqa: SIM115  (closed with the test)
    with running(LocalPark(tmp_path / "park", settings, load_federation(settings))) as park:
        console.print(picture(park, 0.0))  # nobody is ready yet, and that is no error
        assert park.top.wait(timeout=60) == 0
        time.sleep(0.1)
        console.print(picture(park, 61.0))
        park.check()
    console.file.close()
    shown = console.export_text()
    assert "round 2/2" in shown
    assert f"accuracy {park.lines()[-1]['accuracy']:.1%}" in shown
    assert "station-1  2 online" in shown
    assert shown.count("ready") >= 4
    assert "1:01" in shown
    assert max(map(len, shown.splitlines())) <= 80


def test_what_is_wrong_with_a_park_is_one_line(here: Here, tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    for arguments, reason in (
        (options(tmp_path, 2) + ["--out", "there"], "there: exists already"),
        (["park", "up", "--wire", "int4"], "--wire int4: choose"),
        (["park", "up", "--set", "training.momentum=0.9"], "is for simulations"),
        (["park", "up", "--set", "selection.pick=9"], "selection.pick=9 is more than the 4 devices"),
        (["park", "up", "nowhere.toml"], "no such file"),
    ):
        code, _, err = here(*arguments)
        assert code == 2
        assert reason in err
        assert err.count("\n") == 1
