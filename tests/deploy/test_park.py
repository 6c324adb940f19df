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
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from rich.console import Console
from safetensors.torch import load_file

from fedgs.cli.park_display import picture, show
from fedgs.data.npz import save_npz
from fedgs.deploy.proto import fedgs_wire_pb2 as pb
from fedgs.deploy.top_client import Followed, TopClient
from fedgs.settings import Settings
from fedgs.simulation.federations import load_federation
from fedgs.simulation.run import execute
from fedgs.ui.sources import make_source
from tests.conftest import Here
from tests.deploy.by_hand import played
from tests.deploy.processes import wait_for
from tests.simulation.small import small_config, small_set


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


def test_a_park_runs_to_the_simulators_end_leaves_no_process_and_can_be_replayed_by_hand(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Started where the user's own module is, which its processes, in other folders, import too.

    Its commands.txt, line by line, starts the same processes again.
    """
    data = small_set()
    names = tuple(f"Halle {number:02d}, Tür Süd ß" for number in range(len(data.client_names)))
    save_npz(replace(data, client_names=names), tmp_path / "bars.npz")
    (tmp_path / "plant_here.py").write_text("def first(problem, rng):\n    return list(range(problem.pick))\n")
    monkeypatch.syspath_prepend(tmp_path)
    given = [*options(tmp_path, 3), "--set", "selection.solver=plant_here:first", "--out", "park"]
    done = subprocess.run(
        [sys.executable, "-c", "from fedgs.__main__ import main; main()", *given],
        cwd=tmp_path, capture_output=True, text=True, timeout=180, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert [line.split("  ")[0] for line in done.stdout.splitlines()[:4]] == [f"round {n}/3" for n in range(4)]
    assert "park: done after 3 rounds, accuracy" in done.stdout
    assert "bars: 4 of its 12 devices, at 2 stations;" in done.stderr
    assert not processes_of(tmp_path / "park")
    lines = [json.loads(line) for line in (tmp_path / "park/top/metrics.jsonl").read_text().splitlines()]
    assert [line.get("stations") for line in lines] == [None, 2, 2, 2]
    assert lines[-1]["devices"] == 4
    settings = Settings.model_validate_json((tmp_path / "park/config.json").read_text())
    simulated = execute(settings, load_federation(settings)).weights
    for name, weight in load_file(tmp_path / "park/top/model.safetensors").items():
        torch.testing.assert_close(weight, simulated[name], rtol=0, atol=1e-5)
    for folder in (tmp_path / "park", tmp_path / "park/top"):
        check_what_a_page_is_told(folder, settings.training.iterations)
    head, *commands, last = (tmp_path / "park/commands.txt").read_text().splitlines()
    assert head.startswith("#")
    assert len(commands) == 6
    with played([*commands, f"{last} --set training.rounds=4"], tmp_path / "park"):
        metrics = (tmp_path / "park/top/metrics.jsonl").read_text().splitlines()
    assert [json.loads(line)["round"] for line in metrics] == [0, 1, 2, 3, 4]
    assert not processes_of(tmp_path / "park")


def check_what_a_page_is_told(folder: Path, iterations: int) -> None:
    """Of a run that has ended: the teams, turns, mixes and bytes of every round."""
    source = make_source(folder)
    facts = source.describe()
    told = source.news()
    assert (facts["of_rounds"], facts["score"], len(facts["classes"])) == (3, "accuracy", 4)
    assert sum(told.get("p_real", facts.get("p_real"))) == pytest.approx(1)
    who = told["facts"]
    assert (who["factories"], sorted(who["homes"])) == (["station-1", "station-2"], ["station-1", "station-2"])
    assert {name for name, _ in who["devices"]} == set(who["roster"])
    assert told["finished"] is True
    assert [line["round"] for line in told["rounds"]] == [0, 1, 2, 3]
    for line in told["rounds"][1:]:
        assert line["turns"] == [iterations] * 4
        assert sorted(device for team in line["team"] for device in team) == [0, 1, 2, 3]
        assert [len(mix) for mix in line["mix"]] == [4, 4]
        assert all(line["bytes"].values())
        assert len(line["bytes"]) == 4
    assert source.news() == {}


def process_with(folder: Path, role: str) -> int:
    """Return the first process of a role that works in a folder."""
    for process in processes_of(folder):
        with suppress(OSError):
            if f"\0fedgs\0{role}\0" in Path(f"/proc/{process}/cmdline").read_text():
                return process
    return 0


def test_a_park_survives_deaths_ends_where_one_dies_at_once_and_goes_on_in_its_folder(tmp_path: Path) -> None:
    """Real signals. The device's last death is for good: its data are gone, until the same command writes them."""
    park = tmp_path / "park"

    def up(rounds: int) -> "subprocess.Popen[str]":
        command = [sys.executable, "-m", "fedgs", *options(tmp_path, rounds, stations=1), "--out", "park"]
        with (tmp_path / "out.txt").open("w") as out:
            return subprocess.Popen(command, cwd=tmp_path, stdout=out, stderr=subprocess.PIPE, text=True)

    def rounds() -> int:
        file = park / "top/metrics.jsonl"
        return file.read_bytes().count(b"\n") - 1 if file.exists() else -1

    def metrics() -> list[dict[str, Any]]:
        return [json.loads(line) for line in (park / "top/metrics.jsonl").read_text().splitlines()]

    def command(*arguments: str) -> "subprocess.CompletedProcess[str]":
        return subprocess.run(
            [sys.executable, "-m", "fedgs", *arguments], cwd=tmp_path, capture_output=True, text=True, timeout=150,
            check=False,
        )  # fmt: skip

    def kill(role: str) -> None:
        victim, before = process_with(park, role), rounds()
        os.kill(victim, signal.SIGKILL)
        wait_for(lambda: process_with(park, role) not in (0, victim), 20, f"another {role}")
        wait_for(lambda: rounds() > before + 3, 30, f"rounds after the death of the {role}")

    process = up(100_000)
    try:
        wait_for(lambda: rounds() > 2, 60, "the park to train")
        for role in ("device", "station", "top"):
            kill(role)
        assert process.poll() is None
        for arguments in (["add", "park"], ["remove", "park", "station-1"]):
            before = rounds()
            done = command("park", "stations", *arguments)
            assert done.returncode == 0, done.stderr
            wait_for(lambda: rounds() > before + 3, 60, "rounds after the change")  # noqa: B023
        wait_for(lambda: metrics()[-1]["devices"] == 2, 60, "both devices at the other station")
        assert [line["stations"] for line in metrics() if "stations" in line][-1] == 1
        assert list(json.loads((park / "stations.json").read_text())) == ["station-2"]
        for arguments in (["remove", "park", "station-2"], ["remove", "park", "station-7"], ["add", "nowhere"]):
            done = command("park", "stations", *arguments)
            assert (done.returncode, done.stderr.count("\n")) == (2, 1)
        device = process_with(park, "device")
        name = Path(f"/proc/{device}/cmdline").read_text().split("--id\0")[1].split("\0")[0]
        (park / f"data/{name}.npz").unlink()
        os.kill(device, signal.SIGKILL)
        _, said = process.communicate(timeout=150)
    finally:
        process.kill()
    assert process.returncode == 2
    *notices, last = said.splitlines()
    assert f"{name} has ended with code 2: fedgs: error: data/{name}.npz: no such file" in last
    assert last.endswith("(4 times in a row, each within 10 s of its start)")
    assert "station-1 has ended with code -9; it is started again in 0.5 s" in notices
    assert not processes_of(park)
    before = rounds()
    process = up(before + 3)
    _, said = process.communicate(timeout=150)
    assert f"park: goes on after round {before}\n" in said
    first, *_, last = (tmp_path / "out.txt").read_text().splitlines()
    assert first.startswith(f"round {before + 1}/{before + 3}")
    assert last.startswith(f"park: done after {before + 3} rounds")
    assert [line["round"] for line in metrics()] == list(range(before + 4))
    assert command("park", "stations", "add", "park").returncode == 2  # it has ended
    process = up(before + 3)
    process.communicate(timeout=150)
    assert (tmp_path / "out.txt").read_text().startswith(f"park: finished already after {before + 3} rounds")
    assert not processes_of(park)


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
        wait_for(lambda: b"2 online, " in b"".join(shown), 20, "the table to show it")
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
        assert text.index("stops all processes") < text.index("stopped after")


def read_all(terminal: int, into: list[bytes]) -> None:
    with suppress(OSError):  # its other end is closed
        while data := os.read(terminal, 65536):
            into.append(data)


def test_the_table_shows_stations_devices_round_and_accuracy() -> None:
    devices = [
        pb.DeviceStatus(name="camera-1", state="ready", turns=17),
        pb.DeviceStatus(name="camera-2", state="quarantined", turns=3, failures=4, last_failure="a loss of nan"),
        pb.DeviceStatus(name="camera-3", state="offline"),
    ]
    first = pb.StationStatus(name="station-1", round=3, iteration=7, iterations=25, loss=1.25, divergence=0.125,
                             iterations_per_second=80, devices=devices)  # fmt: skip
    reports = [pb.StationReport(name="station-1", status=first), pb.StationReport(name="station-2", fault="gone")]
    lines: list[dict[str, Any]] = [
        {"round": 0, "accuracy": 0.1, "loss": 1.4},
        {"round": 1, "accuracy": 0.3, "loss": 1.2},
        {"round": 2, "divergence": 0.2},
    ]

    def printed() -> list[str]:
        console = Console(width=80, record=True, file=io.StringIO())
        console.print(picture(pb.TopStatus(round=2, rounds=9, stations=reports), lines, "1:01", []))
        return [line.rstrip() for line in console.export_text().splitlines() if line.strip()]

    shown = printed()
    assert shown[0] == "round 2/9   accuracy 30.00%   divergence 0.200   1:01"
    assert [line.split() for line in shown if "station-1" in line] == [
        ["station-1", "2", "online,", "iteration", "7/25", "0.125", "1.250", "80.0"]
    ]
    assert any(line.split() == ["camera-1", "ready", "17"] for line in shown)
    assert any(line.split() == ["camera-2", "quarantined,", "4", "failed", "3"] for line in shown)
    assert any(line.split() == ["station-2", "no", "answer"] for line in shown)
    assert max(map(len, shown)) <= 80
    first.devices.extend(pb.DeviceStatus(name=f"more-{number}", state="late") for number in range(40))
    reports[0] = pb.StationReport(name="station-1", status=first)
    shown = printed()  # too many for a row each: they are counted
    assert len(shown) == 5
    assert "42 online" in shown[2]
    assert "40 late, 1 quarantined" in shown[3]


def test_the_table_shows_a_device_that_has_moved_at_its_new_station_only() -> None:
    def station(name: str, **states: str) -> pb.StationReport:
        devices = [pb.DeviceStatus(name=device, state=state) for device, state in states.items()]
        return pb.StationReport(name=name, status=pb.StationStatus(name=name, devices=devices))

    status = pb.TopStatus(rounds=9, stations=[
        station("s1", c1="offline", c2="offline"), station("s2", c1="ready"),
    ])  # fmt: skip
    console = Console(width=80, record=True, file=io.StringIO())
    console.print(picture(status, [], "", []))
    rows = [line.split() for line in console.export_text().splitlines()[3:] if line.strip()]
    assert [row[:2] for row in rows] == [["s1", "0"], ["c2", "offline"], ["s2", "1"], ["c1", "ready"]]


def test_the_status_that_is_printed_once_has_every_word_and_the_newest_events(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A station's events are told after those of the top server, and its machine may have another time zone."""
    reason = "station s2: the certificate is revoked, or superseded by a newer one " + 20 * "and so on "
    events = [pb.Event(time=f"2026-11-19T10:00:0{second}+00:00", level="error", what="old") for second in range(5)]
    events.append(pb.Event(time="2026-11-19T10:00:09+00:00", level="error", what="newest", details=reason))
    events += [pb.Event(time=f"2026-11-19T11:00:0{second}+02:00", level="warning", what="older") for second in range(5)]

    class Told:
        def status(self, lines: int, events_known: int) -> pb.TopStatus:
            first = pb.StationStatus(name="s1", devices=[pb.DeviceStatus(name=40 * "long", state="ready")])
            stations = [pb.StationReport(name="s1", status=first), pb.StationReport(name="s2", fault=reason)]
            return pb.TopStatus(rounds=9, stations=stations, events=events)

    show(Followed(cast(TopClient, Told())))
    printed = [line.rstrip() for line in capsys.readouterr().out.splitlines()]
    assert "…" not in "".join(printed)
    assert [line.split()[2] for line in printed if ": " in line and line[0] == "2"] == [*4 * ["old"], "newest"]
    assert sum(reason.strip() in line for line in printed) == 2
    assert any("1 online, waiting for the top server" in line for line in printed)


def test_the_data_of_a_park_are_written_again_but_not_over_those_of_others(here: Here, tmp_path: Path) -> None:
    given = ["data", *options(tmp_path, 2)[2:], "--out", "park"]
    for _ in range(2):
        done = here("park", *given)
        assert done.code == 0, done.err
    first, *stations = done.out.splitlines()
    assert "park/data" in first
    devices = [name for line in stations for name in line.partition(": ")[2].split(", ")]
    assert sorted(path.stem for path in (tmp_path / "park/data").glob("*.npz")) == sorted([*devices, "held-out"])
    code, _, err = here("park", *given, "--set", "seed=7")
    assert (code, err.count("\n")) == (2, 1)
    assert "holds a park with seed=" in err


def test_what_is_wrong_with_a_park_is_one_line(here: Here, tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    for arguments, reason in (
        ([*options(tmp_path, 2), "--out", "there"], "there: exists already and is no park"),
        (["park", "up", "--wire", "int4"], "--wire int4: input should be"),
        (["park", "up", "--set", "eval.ema=0.5"], "is for simulations"),
        (["park", "up", "--set", "selection.pick=9"], "selection.pick=9 is more than the 4 devices"),
        (["park", "up", "nowhere.toml"], "no such file"),
        ([*options(tmp_path, 2), "--set", "task=nowhere:task"], "module 'nowhere' cannot be imported"),
        ([*options(tmp_path, 2), "--set", "task.loss=hinge"], "task.loss='hinge' is not a loss"),
    ):
        code, _, err = here(*arguments)
        assert code == 2
        assert reason in err
        assert err.count("\n") == 1
    assert sorted(path.name for path in tmp_path.iterdir()) == ["bars.npz", "there"]
