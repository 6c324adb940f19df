"""The folder of a run: one writer at a time, free names, replacing a run, paths that hold from anywhere."""

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest

import fedgs
from fedgs.compiled import composed, running, told
from fedgs.config import load_settings
from fedgs.data.npz import save_npz
from fedgs.errors import OutputError
from fedgs.simulation.folder import WRITTEN, read_settings
from fedgs.simulation.lock import locked
from tests.conftest import Here, error_of
from tests.simulation.small import SMALL, small_config, small_federation, small_set

pytestmark = pytest.mark.usefixtures("unpainted")


def until_it_trains(process: "subprocess.Popen[str]", folder: Path) -> None:
    deadline = time.monotonic() + 120
    while not (folder / "metrics.jsonl").exists() or (folder / "metrics.jsonl").read_bytes().count(b"\n") < 3:
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.05)


def wait_until(there: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 120
    while not there():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def start(tmp_path: Path, *arguments: str) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, "-m", "fedgs", *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        cwd=tmp_path,
    )  # fmt: skip


def test_one_process_writes_a_run(tmp_path: Path, here: Here) -> None:
    """All others are told who does, from Python too; Ctrl-C stops it at once; a dead one's lock is taken over."""
    options = small_config(tmp_path, "training.rounds=100000", "algorithm.name=fedavg")
    process = start(tmp_path, "run", *options, "--out", "a")
    try:
        until_it_trains(process, tmp_path / "a")
        for command in (["resume", "a"], *(["run", *options, "--out", "a", *more] for more in ([], ["--overwrite"]))):
            line = error_of(here(*command))
            assert f"a: process {process.pid} on {socket.gethostname()} (since 20" in line
        with pytest.raises(OutputError, match=f"process {process.pid} on"):
            fedgs.resume("a")
        began = time.monotonic()
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=30)
        assert time.monotonic() - began < 10  # two seconds, on a machine with nothing else to do
        assert process.returncode == 130
        assert err.strip().splitlines()[-1] == "fedgs: interrupted; go on with: fedgs resume a"
        assert not (tmp_path / "a/.lock").exists()
    finally:
        process.kill()
        process.communicate()
    (tmp_path / "a/.lock").write_text("process 1 on nowhere (since 1970)\n")  # killed: the file is there, nobody's
    with locked(tmp_path / "a"):
        assert f"process {os.getpid()} on" in (tmp_path / "a/.lock").read_text()
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []


@pytest.mark.parametrize("trains", [True, False])
def test_sigterm_keeps_what_there_is(trains: bool, tmp_path: Path) -> None:
    """As batch systems and service managers end a run: a line, the last round, or no folder at all."""
    options = small_config(tmp_path, "training.rounds=100000", "checkpoint.every=100000")
    process = start(tmp_path, "run", *options, "--out", "a")
    try:
        if trains:
            until_it_trains(process, tmp_path / "a")
        else:
            wait_until((tmp_path / "a/config.json").exists)
        process.send_signal(signal.SIGTERM)
        _, err = process.communicate(timeout=30)
    finally:
        process.kill()
        process.communicate()
    assert process.returncode == 128 + signal.SIGTERM
    assert err.strip().splitlines()[-1].startswith("fedgs: interrupted; ")
    rounds = sorted(path.name for path in (tmp_path / "a/checkpoints").glob("round-*"))
    assert rounds[-1] > "round-000000" if trains else not rounds or rounds == ["round-000000"]


def test_a_finished_run_is_looked_at(tmp_path: Path, here: Here) -> None:
    options = small_config(tmp_path, "training.rounds=1")
    other = ["--set", "task.options.norm=none", "--set", "task.model=regularised", "--set", "task.options.hidden=16"]
    assert here("run", *options, "--out", "a").code == 0
    assert here("run", *options, *other, "--out", "b").code == 0
    (tmp_path / "a/model.safetensors").rename(tmp_path / "mine")
    shutil.copy(tmp_path / "b/model.safetensors", tmp_path / "a/model.safetensors")
    assert "is not that of this run" in error_of(here("resume", "a"))
    (tmp_path / "mine").rename(tmp_path / "a/model.safetensors")
    lines = (tmp_path / "a/metrics.jsonl").read_text()
    (tmp_path / "a/metrics.jsonl").write_text(re.sub('"loss": [0-9.]+', '"loss": NaN', lines))
    assert "round 0 holds NaN" in error_of(here("resume", "a"))


def loads_torch(process: "subprocess.Popen[str]") -> bool:
    return "libtorch" in Path(f"/proc/{process.pid}/maps").read_text()


def compiles(process: "subprocess.Popen[str]") -> bool:
    assert process.stderr is not None
    return "compiling kernels" in process.stderr.readline()


@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="needs /proc to see what a process loads")
@pytest.mark.parametrize(
    ("arguments", "stage", "later"),
    # Torch takes half a second to load. Some of its libraries abort if an exception is raised in them.
    [(["plan", "--measure"], compiles, 0.0), *((["run", "--out", "a"], loads_torch, 0.1 * step) for step in range(4))],
)
def test_ctrl_c_says_something_while_kernels_compile_and_libraries_load(
    tmp_path: Path,
    arguments: list[str],
    stage: Callable[["subprocess.Popen[str]"], bool],
    later: float,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What compiles or loads is neither waited for nor a traceback."""
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path / "cache"))
    process = start(tmp_path, *arguments)
    try:
        while not stage(process):
            assert process.poll() is None
            time.sleep(0.001)
        time.sleep(later)
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=30)
    finally:
        process.kill()
        process.communicate()
    assert process.returncode == 130
    assert re.search(r"^fedgs: interrupted(; nothing was done yet)?$", err.strip().splitlines()[-1])
    assert "Traceback" not in err
    assert not (tmp_path / "a").exists()


def test_a_new_run_takes_a_free_name_and_replaces_none_unasked(tmp_path: Path, here: Here) -> None:
    options = small_config(tmp_path, "baseline=['selection.solver=random']", "training.rounds=1")
    (tmp_path / "park.toml").write_text("seed = 1\n")
    assert here("run", "park.toml", *options).code == 0
    done = here("run", "park.toml", *options)
    assert done.out.startswith("runs/park: exists already; this run goes to runs/park-2")
    names = ["park", "park-2", "park-2-random", "park-random"]
    assert sorted(path.name for path in (tmp_path / "runs").iterdir()) == names

    # Replaced only by a run that makes a round.
    other = ["--set", "seed=7", "--out", "runs/park"]
    assert "exists already" in error_of(here("run", *options, *other))
    wild = ["--set", "training.learning_rate=1e18", "--overwrite"]
    assert "no finite number" in error_of(here("run", *options, *other, *wild))
    assert read_settings(tmp_path / "runs/park").seed == 1
    assert here("resume", "runs/park").out == "runs/park: is finished, there is nothing left to do\n"
    assert here("run", *options, *other, "--overwrite").code == 0
    assert read_settings(tmp_path / "runs/park").seed == 7
    assert sorted(path.name for path in (tmp_path / "runs").iterdir()) == names
    (tmp_path / "notes").mkdir()
    assert "notes: exists already and is no run" in error_of(here("run", *options, "--out", "notes", "--overwrite"))
    assert (tmp_path / "notes").is_dir()


def test_a_run_that_is_replaced_leaves_the_users_own_files(tmp_path: Path, here: Here) -> None:
    options = small_config(
        tmp_path, "baseline=['selection.solver=random']", "training.rounds=1", "training.iterations=1"
    )
    folder = tmp_path / "a"
    assert here("run", *options, "--out", "a").code == 0
    written = {path.name for path in folder.iterdir()}
    assert written <= WRITTEN
    (folder / "notes.txt").write_text("mine")
    (folder / "plots").mkdir()
    (folder / "plots/one.txt").write_text("mine too")
    (folder / "checkpoints/old.txt").write_text("of the old run")
    # A run that fails brings back the old one, with all files.
    more = ["--out", "a", "--overwrite", "--set", "seed=7"]
    assert here("run", *options, *more, "--set", "training.learning_rate=1e18").code == 2
    for seed in (0, 7):
        assert read_settings(folder).seed == seed
        assert {path.name for path in folder.iterdir()} == written | {"notes.txt", "plots"}
        assert (folder / "plots/one.txt").read_text() == "mine too"
        assert (folder / "checkpoints/old.txt").exists() == (seed == 0)
        if seed == 0:
            assert here("run", *options, *more).code == 0
    assert sorted(path.name for path in tmp_path.iterdir() if path.is_dir()) == ["a", "a-random"]


def test_python_replaces_a_run_too(tmp_path: Path) -> None:
    options = {"rounds": 1, "iterations": 2, "pick": 2, "out": tmp_path / "a"}
    task = fedgs.classification("compact", classes=4)
    assert len(fedgs.run(task, small_federation(), **options)) == 1
    with pytest.raises(OutputError, match="exists already"):
        fedgs.run(task, small_federation(), **options)
    fedgs.run(task, small_federation(), **options, seed=3, overwrite=True)
    assert read_settings(tmp_path / "a").seed == 3


def test_a_run_repeats_from_anywhere(tmp_path: Path, here: Here, monkeypatch: pytest.MonkeyPatch) -> None:
    """Paths in a settings file are seen from the file, others from where the command is started."""
    park, elsewhere = tmp_path / "park", tmp_path / "else/where"
    park.mkdir()
    elsewhere.mkdir(parents=True)
    save_npz(small_set(), park / "bars.npz")
    (park / "trace.csv").write_text("iteration,device,event,factory\n")
    wired = Path(fedgs.__file__).parent / "network/profiles/wired.toml"
    (park / "hall.toml").write_bytes(wired.read_bytes())
    settings = {
        "data": {"name": "bars.npz", "min_samples": 0},
        "dynamics": {"trace": "trace.csv"},
        "clock": {"profile": "hall.toml"},
    }
    (park / "park.json").write_text(json.dumps(settings))
    options = [part for text in SMALL for part in ("--set", text)]
    assert here("run", "park/park.json", *options, "--out", "a").code == 0
    whole = json.loads((tmp_path / "a/config.json").read_text())
    assert (whole["data"]["name"], whole["dynamics"]["trace"], whole["clock"]["profile"]) == tuple(
        str(park / name) for name in ("bars.npz", "trace.csv", "hall.toml")
    )
    monkeypatch.chdir(elsewhere)
    assert here("run", "../../a/config.json", "--out", "b").code == 0
    assert (elsewhere / "b/metrics.jsonl").read_bytes() == (tmp_path / "a/metrics.jsonl").read_bytes()
    (tmp_path / "a/summary.json").unlink()
    assert here("resume", "../../a").code == 0
    monkeypatch.chdir(park)
    assert load_settings(overrides=["data.name=bars.npz"]).data.name == str(park / "bars.npz")
    assert load_settings(overrides=["data.name=glyphs", "clock.profile=5g"]).clock.profile == "5g"
    values = {**settings, "federation": {"devices": 12, "factories": 3}, "task": {"model": "compact"}}
    history = fedgs.run(settings=values, rounds=1, iterations=1, pick=2)
    assert history.settings.data.name == str(park / "bars.npz")


def test_callbacks_are_told_that_kernels_compile() -> None:
    pytest.importorskip("numba")
    told.clear()
    now = time.time_ns()  # another function in every run of this test, so that none is on the disk already

    @composed
    def one_more(number: int) -> int:
        return number + 1 + now - now

    def solver(problem: fedgs.SelectionProblem, draws: np.random.Generator) -> np.ndarray:
        with running(compiled=True):
            return np.arange(one_more(problem.pick) - 1)

    class Notes(fedgs.Callback):
        lines: ClassVar[list[str]] = []

        def on_note(self, line: str) -> None:
            self.lines.append(line)

    task = fedgs.classification("compact", classes=4)
    fedgs.run(task, small_federation(), rounds=2, iterations=1, pick=2, solver=solver, callbacks=[Notes()])
    assert [line for line in Notes.lines if "compiling kernels" in line] == Notes.lines[:1] != []
