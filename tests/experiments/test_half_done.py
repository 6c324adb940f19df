"""Parts that were stopped in the middle: they go on from there, and come to what they would have come to."""

import json
from pathlib import Path

import pytest
import torch

from fedgs.experiments import half_done
from fedgs.experiments.parts import Part, Progress, Result, run_parts
from tests.experiments.test_parts import dealt
from tests.simulation.small import small_settings

ROUNDS = 6


class StoppedError(Exception):
    """A process that comes to its end for a reason of its own."""


class StopsAt(Progress):
    """Counts what is told of, and stops when so much has been done."""

    def __init__(self, stop: float = 2.0, reason: type[BaseException] = StoppedError) -> None:
        self.stop, self.reason = stop, reason
        self.told: list[float] = []

    def share(self, share: float) -> None:
        self.told.append(share)
        if sum(self.told) > self.stop:
            raise self.reason


@pytest.fixture(autouse=True)
def _no_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(half_done, "PATIENCE", 0.0)


def part(*overrides: str) -> Part:
    return Part("one", "one", small_settings(f"training.rounds={ROUNDS}", *overrides), "bars")


def run(out: Path, wanted: Part, progress: Progress | None = None) -> Result:
    return run_parts([wanted], out, dealt, "d", torch.device("cpu"), progress or Progress())["one"]


def without_times(result: Result) -> Result:
    summary = {key: value for key, value in result["summary"].items() if key != "clock"}  # which measures
    return {**result, "summary": summary, "seconds": None}


def stop(out: Path, wanted: Part, share: float = 0.7, reason: type[BaseException] = StoppedError) -> Path:
    with pytest.raises(reason):
        run(out, wanted, StopsAt(share, reason))
    assert not (out / "parts/one.json").exists()
    return out / "half-done/one"


@pytest.mark.parametrize(
    "overrides",
    [
        (),
        ("training.momentum=0.9", "eval.ema=0.9", "training.calibration=1", "selection.solver=auto"),
        ("algorithm.name=fedadam",),
        ("algorithm.name=fedavg",),
    ],
)
def test_it_comes_to_the_same(tmp_path: Path, overrides: tuple[str, ...]) -> None:
    whole = run(tmp_path / "whole", part(*overrides))
    folder = stop(tmp_path, part(*overrides))
    kept = max(path.name for path in folder.glob("round-*"))
    assert kept == "round-000004"  # of six rounds more than 0.7 were at work, four of them done
    told = StopsAt()
    assert without_times(run(tmp_path, part(*overrides), told)) == without_times(whole)
    assert told.told[0] == pytest.approx(4 / ROUNDS)
    assert sum(told.told) == pytest.approx(1.0, abs=0.01)  # flat approaches tell in pieces of some size
    assert not (tmp_path / "half-done").exists()


def test_who_interrupts_loses_no_round(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(half_done, "PATIENCE", 1e9)
    assert not stop(tmp_path, part()).exists()  # killed: nothing was kept so far
    folder = stop(tmp_path, part(), reason=KeyboardInterrupt)
    assert [path.name for path in folder.glob("round-*")] == ["round-000004"]
    stop(tmp_path, part(), 0.9, KeyboardInterrupt)
    assert max(path.name for path in folder.glob("round-*")) == "round-000005"
    whole = run(tmp_path / "whole", part())
    assert without_times(run(tmp_path, part())) == without_times(whole)


def test_seconds_are_those_of_all_who_worked_on_it(tmp_path: Path) -> None:
    folder = stop(tmp_path, part())
    (folder / "seconds.json").write_text('{"3": 500.0, "4": 1000.0, "9": 3000.0}', encoding="utf-8")
    assert 1000.0 <= run(tmp_path, part())["seconds"] < 1500.0
    folder = stop(tmp_path / "torn", part())
    (folder / "seconds.json").write_text("[", encoding="utf-8")
    assert run(tmp_path / "torn", part())["seconds"] < 500.0


def test_what_is_of_another_make_counts_for_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stop(tmp_path, part())
    told = StopsAt(0.01)
    with pytest.raises(StoppedError):  # other settings: from the beginning
        run(tmp_path, part("training.learning_rate=0.07"), told)
    assert told.told[0] < 4 / ROUNDS
    assert not list((tmp_path / "half-done/one").glob("round-*"))
    stop(tmp_path, part())
    monkeypatch.setattr(half_done, "source_digest", lambda: "other files")
    told = StopsAt()
    run(tmp_path, part(), told)
    assert told.told[0] < 4 / ROUNDS


def test_a_torn_checkpoint_is_passed_over(tmp_path: Path) -> None:
    folder = stop(tmp_path, part())
    newest = max(folder.glob("round-*"))
    (newest / "state.safetensors").write_bytes(b"torn")
    told = StopsAt()
    whole = run(tmp_path / "whole", part())
    assert without_times(run(tmp_path, part(), told)) == without_times(whole)
    assert told.told[0] == pytest.approx(3 / ROUNDS)
    folder = stop(tmp_path / "all", part())
    for path in folder.glob("round-*/state.json"):
        path.write_text("{}", encoding="utf-8")
    assert without_times(run(tmp_path / "all", part())) == without_times(whole)


def test_a_run_that_goes_astray_leaves_nothing_half_done(tmp_path: Path) -> None:
    wild = part("training.learning_rate=1e30", "training.schedule.kind=constant")
    assert "round 1" in run(tmp_path, wild)["failed"]
    assert not (tmp_path / "half-done").exists()
    assert "earlier" not in json.loads((tmp_path / "parts/one.json").read_text(encoding="utf-8"))
