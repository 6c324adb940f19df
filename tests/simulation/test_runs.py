"""Runs as a user starts them: real processes, real folders, real kills."""

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from tests.conftest import Here
from tests.simulation.small import small_config


def results(folder: Path) -> tuple[bytes, ...]:
    """All that follows from the seed: the clock too, where its times are given."""
    summary = json.loads((folder / "summary.json").read_text())
    summary.pop("machine")
    files = ["metrics.jsonl", "model.safetensors"]
    if summary["clock"]["measured"]:
        summary.pop("clock")
    else:
        files.append("clock.jsonl")
    return json.dumps(summary).encode(), *((folder / name).read_bytes() for name in files)


def test_killed_runs_end_like_uninterrupted_ones(tmp_path: Path, here: Here) -> None:
    """SIGKILL right after the folder appeared, and again in mid-run: the same bytes come out."""
    options = small_config(
        tmp_path, "training.rounds=16", "training.iterations=12", "checkpoint.every=3", "training.momentum=0.5",
        "eval.ema=0.5", "dynamics.leave=0.02",
        "clock.step_seconds=0.01", "clock.selection_seconds=0.002", "clock.slowness=0.5",
        "dynamics.move=0.02", "selection.coverage.weight=0.3",
    )  # fmt: skip
    code, out, err = here("run", *options, "--out", "whole", "--device", "cpu")
    assert (code, err) == (0, "")
    assert "accuracy" in out
    folder = tmp_path / "killed"
    metrics = folder / "metrics.jsonl"
    for arguments, awaited, lines in ((["run", *options, "--out"], folder, 0), (["resume"], metrics, 5)):
        command = [sys.executable, "-m", "fedgs", *arguments, "killed", "--device", "cpu"]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=tmp_path)
        deadline = time.monotonic() + 60
        while not awaited.exists() or (lines and metrics.read_bytes().count(b"\n") < lines):
            assert process.poll() is None, process.communicate()
            assert time.monotonic() < deadline
            time.sleep(0.01)
        time.sleep(np.random.default_rng(lines).uniform(0, 0.05))
        process.send_signal(signal.SIGKILL)
        process.communicate()
        assert not (folder / "summary.json").exists()
    assert here("resume", "killed", "--device", "cpu")[0] == 0
    assert results(folder) == results(tmp_path / "whole")
    rounds = [json.loads(line)["round"] for line in metrics.read_text().splitlines()]
    assert rounds == list(range(17))
    code, out, err = here("resume", "killed")
    assert (code, out, err) == (0, "killed: is finished, there is nothing left to do\n", "")


def test_a_run_leaves_its_folder_and_compares(tmp_path: Path, here: Here) -> None:
    options = small_config(tmp_path, "baseline=['selection.solver=random']")
    code, out, err = here("run", *options, "--out", "runs/a")
    assert (code, err) == (0, "")
    assert "runs/a/comparison.png" in out
    for name in ("config.json", "metrics.jsonl", "timings.jsonl", "clock.jsonl", "summary.json", "devices.csv",
                 "model.safetensors", "learning.png", "divergence.png", "selection.png", "comparison.png"):  # fmt: skip
        assert (tmp_path / "runs/a" / name).stat().st_size > 0, name
    other = json.loads((tmp_path / "runs/a-random/config.json").read_text())
    assert other["selection"]["solver"] == "random"
    code, out, err = here("compare", "runs/a", "runs/a-random", "--out", "both.png")
    assert (code, err) == (0, "")
    assert "a-random" in out
    assert (tmp_path / "both.png").read_bytes().startswith(b"\x89PNG")
    # The resolved settings of a run are a config themselves, and give the same run.
    code, out, err = here("run", "runs/a/config.json", "--set", "baseline=[]", "--out", "again")
    assert (code, err) == (0, "")
    assert results(tmp_path / "again") == results(tmp_path / "runs/a")
    # A damaged newest checkpoint costs a line and a round, not the run.
    (tmp_path / "again/summary.json").unlink()
    newest = sorted((tmp_path / "again/checkpoints").iterdir())[-1]
    (newest / "state.safetensors").write_bytes(b"torn")
    code, out, err = here("resume", "again")
    assert code == 0
    assert err.count("\n") == 1
    assert "round-000003: torn" in err
    assert results(tmp_path / "again") == results(tmp_path / "runs/a")


def test_a_loss_that_explodes_leaves_no_folder_without_a_round(tmp_path: Path, here: Here) -> None:
    options = small_config(tmp_path, "training.learning_rate=1e18", "checkpoint.every=50")
    code, _, err = here("run", *options, "--out", "wild")
    assert code == 2
    assert err.startswith("fedgs: error: round ")
    assert "factory-0" in err
    assert "learning rate 1e+18" in err
    assert err.count("\n") == 1
    assert [path.name for path in tmp_path.iterdir()] == ["bars.npz"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["run", "--preset", "slow"], "there is no such preset; choose one of quick, paper, coverage"),
        (["run", "nowhere.toml"], "nowhere.toml: no such file"),
        (["run", "--device", "tpu"], "choose auto, cpu or cuda"),
        (["run", "--set", "data.name=nowhere"], "nowhere: no such file or folder"),
        (["run", "--set", "training.engine=graph", "--device", "cpu"], "needs device='cuda'"),
        (["run", "--set", "dynamics.trace=nowhere.csv"], "nowhere.csv: the trace cannot be read"),
        (["run", "--out", "there"], "there: exists already"),
        (["run", "--out", "file/run"], "file: cannot make this folder"),
        (["resume", "nowhere"], "nowhere: is not the folder of a run"),
        (["compare", "there"], "there: is not the folder of a run"),
    ],
)
def test_what_a_user_gets_wrong_is_one_line(tmp_path: Path, here: Here, arguments: list[str], words: str) -> None:
    (tmp_path / "there").mkdir()
    (tmp_path / "file").write_text("")
    options = small_config(tmp_path) if arguments[0] == "run" and "--preset" not in arguments else []
    code, _, error = here(*arguments[:1], *options, *arguments[1:])
    assert code == 2
    assert error.startswith("fedgs: error: ")
    assert error.count("\n") == 1
    assert words in error
    assert not (tmp_path / "runs" / "quick").exists()  # nothing is in the way of the next try
