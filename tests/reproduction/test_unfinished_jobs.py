"""Jobs that were stopped in the middle: they go on from there, and come to what they would have come to."""

import json
import multiprocessing
import os
import signal
from pathlib import Path

import pytest
import torch

from fedgs.data import Federation
from fedgs.settings import Settings
from reproduction.experiments import jobs
from reproduction.experiments.jobs import Job, Progress, Result, run_jobs
from reproduction.experiments.training import Unfinished, train
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


def job(*overrides: str) -> Job:
    return Job("one", "one", small_settings(f"training.rounds={ROUNDS}", *overrides), "bars")


def run(out: Path, wanted: Job, progress: Progress | None = None, data: str = "d") -> Result:
    return run_jobs([wanted], out, dealt, data, torch.device("cpu"), progress or Progress())["one"]


def without_times(result: Result) -> Result:
    summary = {key: value for key, value in result["summary"].items() if key != "clock"}  # which measures
    return {**result, "summary": summary, "seconds": None}


def stop(out: Path, wanted: Job, share: float = 0.7, reason: type[BaseException] = StoppedError) -> list[str]:
    """Stop a job in the middle; return its checkpoints."""
    with pytest.raises(reason):
        run(out, wanted, StopsAt(share, reason))
    assert not (out / "parts/one.json").exists()
    return sorted(path.name for path in out.glob("unfinished/one/checkpoints/round-*"))


def goes_on(out: Path, wanted: Job, first: float, note: str, data: str = "d") -> None:
    """Do a job that was stopped: what it comes to, what is told first, what is noted and what it leaves."""
    told = StopsAt()
    assert without_times(run(out, wanted, told, data)) == without_times(run(out / "whole", wanted, data=data))
    assert told.told[0] == pytest.approx(first)
    assert sum(told.told) == pytest.approx(1.0, abs=0.01)  # baselines tell in pieces of some size
    assert told.notes == [f"one: {note}"]
    assert not (out / "unfinished").exists()
    assert "note" not in json.loads((out / "parts/one.json").read_text(encoding="utf-8"))


AGAIN = "started again: its checkpoint is damaged, or of other settings, data, source files or hardware"


@pytest.mark.parametrize(
    "overrides",
    [
        (),
        ("training.momentum=0.9", "eval.ema=0.9", "training.calibration=1", "selection.solver=auto"),
        ("algorithm.name=fedadam",),
        ("algorithm.name=cgau", "algorithm.options.pretrain_rounds=2"),
    ],
)
def test_it_comes_to_the_same(tmp_path: Path, overrides: tuple[str, ...]) -> None:
    # Of six rounds more than 0.7 were at work, four of them done.
    assert stop(tmp_path, job(*overrides))[-1] == "round-000004"
    goes_on(tmp_path, job(*overrides), 4 / ROUNDS, "continued from round 4, where it had been stopped")


def test_who_interrupts_loses_no_round(tmp_path: Path) -> None:
    seldom = job("checkpoint.every=100")
    assert stop(tmp_path, seldom) == ["round-000000"]
    assert stop(tmp_path, seldom, reason=KeyboardInterrupt)[-1] == "round-000004"
    assert stop(tmp_path, seldom, 0.9, KeyboardInterrupt)[-1] == "round-000005"
    goes_on(tmp_path, seldom, 5 / ROUNDS, "continued from round 5, where it had been stopped")


@pytest.mark.parametrize("key", ["settings", "data", "source", "hardware"])
def test_what_was_made_with_something_else_counts_for_nothing(
    tmp_path: Path, key: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    stop(tmp_path, job())
    if key == "source":
        monkeypatch.setattr(jobs, "source_digest", lambda: "other files")
    if key == "hardware":
        monkeypatch.setattr(jobs, "hardware", lambda device: {"device": "another", "cores": 2, "torch": "2"})
    other = job("training.learning_rate=0.07") if key == "settings" else job()
    goes_on(tmp_path, other, 1 / 4 / 3 / ROUNDS, AGAIN, "other" if key == "data" else "d")


def test_a_torn_checkpoint_is_passed_over(tmp_path: Path) -> None:
    newest = stop(tmp_path, job())[-1]
    (tmp_path / "unfinished/one/checkpoints" / newest / "state.safetensors").write_bytes(b"torn")
    goes_on(tmp_path, job(), 3 / ROUNDS, "continued from round 3, where it had been stopped")
    stop(tmp_path / "all", job())
    for path in (tmp_path / "all").glob("unfinished/one/checkpoints/round-*/state.json"):
        path.write_text("{}", encoding="utf-8")
    goes_on(tmp_path / "all", job(), 1 / 4 / 3 / ROUNDS, AGAIN)


def test_seconds_are_those_of_all_who_worked_on_it(tmp_path: Path) -> None:
    stop(tmp_path, job())
    row = {"training": 1, "evaluation": 1, "waiting": 0, "megabytes": 1}
    rows = [{"round": number, "seconds": 250.0, **row} for number in range(9)]
    timings = "".join(json.dumps(one) + "\n" for one in rows)
    (tmp_path / "unfinished/one/timings.jsonl").write_text(timings, encoding="utf-8")
    assert 5 * 250.0 <= run(tmp_path, job())["seconds"] < 6 * 250.0  # up to round 4


def test_a_job_that_is_done_or_diverges_leaves_no_checkpoint(tmp_path: Path) -> None:
    wild = job("training.learning_rate=1e30")
    assert "round 1" in run(tmp_path / "wild", wild)["failed"]
    assert not (tmp_path / "wild/unfinished").exists()
    run(tmp_path, job())
    (tmp_path / "unfinished/one/checkpoints").mkdir(parents=True)
    run(tmp_path, job())
    assert not (tmp_path / "unfinished").exists()


def train_and_tell(
    settings: Settings, federation: Federation, device: torch.device, share: object, unfinished: Unfinished
) -> Result:
    """Train, and tell the test when a round has been done."""
    told = Path(os.environ["FEDGS_TEST_TOLD"], str(os.getpid()))
    iterations = []

    def tick(share: float) -> None:
        iterations.append(share)
        if sum(iterations) * settings.training.rounds > 1.5:
            told.touch()

    return train(settings, federation, device, tick, unfinished)


def test_interrupted_side_by_side_all_keep_what_they_have(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told = tmp_path / "told"
    told.mkdir()
    monkeypatch.setenv("FEDGS_TEST_TOLD", str(told))
    settings = small_settings("training.rounds=100000", "checkpoint.every=100000")
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
    for name in ("first", "second"):
        assert max(path.name for path in tmp_path.glob(f"out/unfinished/{name}/checkpoints/round-*")) > "round-000000"
