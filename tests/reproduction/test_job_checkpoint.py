"""Jobs that were stopped in the middle: they go on from there, and come to what they would have come to."""

import json
import multiprocessing
import os
import signal
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from fedgs.data import Federation
from fedgs.settings import Settings
from fedgs.simulation.simulator import Simulator
from reproduction.experiments import job_checkpoint, jobs
from reproduction.experiments.jobs import Job, Progress, Result, run_jobs
from reproduction.experiments.training import train
from tests.reproduction.test_jobs import dealt, until
from tests.simulation.small import small_settings

ROUNDS = 6


class StoppedError(Exception):
    """A process that comes to its end for a reason of its own."""


class StopsAt(Progress):
    """Counts what is told of, and stops when so much has been done."""

    def __init__(self, stop: float = 2.0, reason: type[BaseException] = StoppedError) -> None:
        self.stop, self.reason = stop, reason
        self.told: list[float] = []
        self.notes: list[str] = []

    def note(self, job: Job, text: str) -> None:
        self.notes.append(f"{job.name}: {text}")

    def share(self, share: float) -> None:
        self.told.append(share)
        if sum(self.told) > self.stop:
            raise self.reason


@pytest.fixture(autouse=True)
def _no_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job_checkpoint, "PATIENCE", 0.0)


def job(*overrides: str) -> Job:
    return Job("one", "one", small_settings(f"training.rounds={ROUNDS}", *overrides), "bars")


def run(out: Path, wanted: Job, progress: Progress | None = None, data: str = "d") -> Result:
    return run_jobs([wanted], out, dealt, data, torch.device("cpu"), progress or Progress())["one"]


def without_times(result: Result) -> Result:
    summary = {key: value for key, value in result["summary"].items() if key != "clock"}  # which measures
    return {**result, "summary": summary, "seconds": None}


def stop(out: Path, wanted: Job, share: float = 0.7, reason: type[BaseException] = StoppedError) -> Path:
    with pytest.raises(reason):
        run(out, wanted, StopsAt(share, reason))
    assert not (out / "parts/one.json").exists()
    return out / "unfinished/one"


@pytest.mark.parametrize(
    "overrides",
    [
        (),
        ("training.momentum=0.9", "eval.ema=0.9", "training.calibration=1", "selection.solver=auto"),
        ("algorithm.name=fedadam",),
        ("algorithm.name=fedavg",),
        ("algorithm.name=cgau", "algorithm.options.pretrain_rounds=2"),
    ],
)
def test_it_comes_to_the_same(tmp_path: Path, overrides: tuple[str, ...]) -> None:
    whole = run(tmp_path / "whole", job(*overrides))
    folder = stop(tmp_path, job(*overrides))
    kept = max(path.name for path in folder.glob("round-*"))
    assert kept == "round-000004"  # of six rounds more than 0.7 were at work, four of them done
    told = StopsAt()
    assert without_times(run(tmp_path, job(*overrides), told)) == without_times(whole)
    assert told.told[0] == pytest.approx(4 / ROUNDS)
    assert sum(told.told) == pytest.approx(1.0, abs=0.01)  # baselines tell in pieces of some size
    assert told.notes == ["one: continued from round 4, where it had been stopped"]
    assert not (tmp_path / "unfinished").exists()
    assert "note" not in json.loads((tmp_path / "parts/one.json").read_text(encoding="utf-8"))


def test_who_interrupts_loses_no_round(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job_checkpoint, "PATIENCE", 1e9)
    assert not stop(tmp_path, job()).exists()  # killed: nothing was kept so far
    folder = stop(tmp_path, job(), reason=KeyboardInterrupt)
    assert [path.name for path in folder.glob("round-*")] == ["round-000004"]
    stop(tmp_path, job(), 0.9, KeyboardInterrupt)
    assert max(path.name for path in folder.glob("round-*")) == "round-000005"
    whole = run(tmp_path / "whole", job())
    assert without_times(run(tmp_path, job())) == without_times(whole)


def test_seconds_are_those_of_all_who_worked_on_it(tmp_path: Path) -> None:
    folder = stop(tmp_path, job())
    (folder / "seconds.json").write_text('{"3": 500.0, "4": 1000.0, "9": 3000.0}', encoding="utf-8")
    assert 1000.0 <= run(tmp_path, job())["seconds"] < 1500.0
    folder = stop(tmp_path / "torn", job())
    (folder / "seconds.json").write_text("[", encoding="utf-8")
    assert run(tmp_path / "torn", job())["seconds"] < 500.0


def another_make(key: str, monkeypatch: pytest.MonkeyPatch) -> tuple[Job, str]:
    """Return the job and the data of a command that differs from the first in one thing."""
    if key == "source":
        monkeypatch.setattr(jobs, "source_digest", lambda: "other files")
    if key == "hardware":
        monkeypatch.setattr(jobs, "hardware", lambda device: {"device": "another", "cores": 2, "torch": "2"})
    return job("training.learning_rate=0.07") if key == "settings" else job(), "other" if key == "data" else "d"


@pytest.mark.parametrize("key", ["settings", "data", "source", "hardware"])
def test_what_is_of_another_make_counts_for_nothing(tmp_path: Path, key: str, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = stop(tmp_path, job())
    told = StopsAt()
    other, data = another_make(key, monkeypatch)
    whole = run(tmp_path / "whole", other, data=data)
    assert without_times(run(tmp_path, other, told, data)) == without_times(whole)
    assert told.told[0] < 4 / ROUNDS  # from the beginning
    assert told.notes == [
        "one: started again: its checkpoint is damaged, or of other settings, data, source files or hardware"
    ]  # fmt: skip
    assert not folder.exists()


def test_a_torn_checkpoint_is_passed_over(tmp_path: Path) -> None:
    folder = stop(tmp_path, job())
    newest = max(folder.glob("round-*"))
    (newest / "state.safetensors").write_bytes(b"torn")
    told = StopsAt()
    whole = run(tmp_path / "whole", job())
    assert without_times(run(tmp_path, job(), told)) == without_times(whole)
    assert told.told[0] == pytest.approx(3 / ROUNDS)
    folder = stop(tmp_path / "all", job())
    for path in folder.glob("round-*/state.json"):
        path.write_text("{}", encoding="utf-8")
    assert without_times(run(tmp_path / "all", job())) == without_times(whole)


def test_a_run_that_diverges_leaves_no_checkpoint(tmp_path: Path) -> None:
    wild = job("training.learning_rate=1e30")
    assert "round 1" in run(tmp_path, wild)["failed"]
    assert not (tmp_path / "unfinished").exists()


def test_a_checkpoint_a_minute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job_checkpoint, "PATIENCE", 60.0)
    clock = [0.0]
    monkeypatch.setattr(job_checkpoint.time, "perf_counter", lambda: clock[0])
    settings = small_settings()
    with Simulator(settings, dealt("bars", 0)) as simulator:
        state = simulator.begin()
        kept = job_checkpoint.JobCheckpoint(tmp_path / "one", "of some make")
        seen = []
        for number, clock[0] in enumerate((30.0, 59.0, 61.0, 100.0, 120.0, 121.0, 180.0)):
            kept.save(simulator, replace(state, round=number))
            seen.append(len(list((tmp_path / "one").glob("round-*"))))
    assert seen == [0, 0, 1, 1, 1, 2, 2]
    assert json.loads((tmp_path / "one/seconds.json").read_text(encoding="utf-8")) == {"2": 61.0, "5": 121.0}


def test_where_nothing_can_be_kept_the_run_goes_on(tmp_path: Path) -> None:
    (tmp_path / "unfinished").write_text("a file where there should be a folder", encoding="utf-8")
    whole = run(tmp_path / "whole", job())
    assert without_times(run(tmp_path, job())) == without_times(whole)


def test_what_was_kept_of_a_job_that_is_done_is_thrown_away(tmp_path: Path) -> None:
    run(tmp_path, job())
    left = tmp_path / "unfinished/one/round-000003"
    left.mkdir(parents=True)
    run(tmp_path, job())
    assert not (tmp_path / "unfinished").exists()


def train_and_tell(
    settings: Settings,
    federation: Federation,
    device: torch.device,
    share: object,
    kept: job_checkpoint.JobCheckpoint,
) -> Result:
    """Train, and tell the test when a round has been done."""
    told = Path(os.environ["FEDGS_TEST_TOLD"], str(os.getpid()))
    iterations = []

    def tick(share: float) -> None:
        iterations.append(share)
        if sum(iterations) * settings.training.rounds > 1.5:
            told.touch()

    return train(settings, federation, device, tick, kept)


def test_interrupted_side_by_side_all_keep_what_they_have(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told = tmp_path / "told"
    told.mkdir()
    monkeypatch.setenv("FEDGS_TEST_TOLD", str(told))
    settings = small_settings("training.rounds=100000")
    wanted = [Job(name, name, settings, "bars", train_and_tell) for name in ("first", "second")]
    arguments = (wanted, tmp_path / "out", dealt, "d", torch.device("cpu"), None, None, 2)
    program = multiprocessing.get_context("spawn").Process(target=run_jobs, args=arguments)
    program.start()
    try:
        until(lambda: len(list(told.iterdir())) == 2)
        assert program.pid is not None
        os.kill(program.pid, signal.SIGINT)
        program.join(60)
        assert not program.is_alive()
    finally:
        program.kill()  # or it would train on beside all other tests
    assert all(list((tmp_path / "out/unfinished" / name).glob("round-*")) for name in ("first", "second"))
