"""Factories shared out over processes: real ones, started by torchrun, talking over gloo."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from fedgs.simulation.process_group import ProcessGroup
from fedgs.training.layout import Layout, load_model
from tests.simulation.small import small_config

LAUNCH = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node"]


def torchrun(ranks: int, *arguments: str, cwd: Path) -> subprocess.Popen[str]:
    command = [*LAUNCH, str(ranks), "-m", "fedgs", *arguments, "--device", "cpu"]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=cwd)


def alone(*arguments: str, cwd: Path) -> None:
    command = [sys.executable, "-m", "fedgs", *arguments, "--device", "cpu"]
    subprocess.run(command, cwd=cwd, check=True, capture_output=True, timeout=120)


def assert_same(one: Path, other: Path) -> None:
    lines = [[json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()] for run in (one, other)]
    assert len(lines[0]) == len(lines[1])
    for mine, theirs in zip(*lines, strict=True):
        assert mine.keys() == theirs.keys()
        assert mine["loss"] == pytest.approx(theirs["loss"], rel=1e-4)
        assert mine["accuracy"] == pytest.approx(theirs["accuracy"], abs=0.02)
        for key in ("divergence", "samples", "devices_selected", "events"):
            assert mine.get(key) == theirs.get(key)  # the plan is the same to the bit
    models = [load_model(run / "model.safetensors", _layout(run)) for run in (one, other)]
    torch.testing.assert_close(models[0], models[1], rtol=1e-4, atol=1e-5)


def _layout(run: Path) -> Layout:
    from safetensors.torch import load_file

    weights = load_file(run / "model.safetensors")
    return Layout.of_weights(weights)


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[str]]:
    folder = tmp_path_factory.mktemp("distributed")
    options = small_config(
        folder,
        "training.momentum=0.5",
        "training.calibration=1",
        "server.class_wise=true",
        "training.rounds=6",
        "dynamics.leave=0.05",
        "checkpoint.every=2",
    )
    alone("run", *options, "--out", "one", cwd=folder)
    return folder, options


def test_several_processes_give_what_one_gives(reference: tuple[Path, list[str]]) -> None:
    """Three factories on two ranks: two and one."""
    folder, options = reference
    process = torchrun(2, "run", *options, "--out", "two-ranks", cwd=folder)
    out, err = process.communicate(timeout=120)
    assert process.returncode == 0, err
    assert out.count("accuracy") == 1  # one of them speaks
    assert_same(folder / "two-ranks", folder / "one")


def test_a_lost_rank_ends_the_job_and_the_run_is_resumed(reference: tuple[Path, list[str]]) -> None:
    folder, options = reference
    longer = [*options, "--set", "training.rounds=400", "--set", "training.iterations=10"]
    process = torchrun(2, "run", *longer, "--out", "lost", cwd=folder)
    metrics = folder / "lost" / "metrics.jsonl"
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and not (metrics.exists() and metrics.read_bytes().count(b"\n") > 5):
        assert process.poll() is None, process.communicate()
        time.sleep(0.02)
    ranks = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    victim = next(pid for pid in map(int, ranks) if b"RANK=1" in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"))
    os.kill(victim, signal.SIGKILL)
    _, err = process.communicate(timeout=60)
    assert process.returncode != 0
    ours = [line for line in err.splitlines() if line.startswith("fedgs: error: rank 0 of 2 ")]
    assert len(ours) == 1
    assert ours[0].endswith("with: fedgs resume RUN")
    assert not (folder / "lost" / "summary.json").exists()
    # Fewer rounds than were asked for would be another run: the checkpoint itself must load and go on.
    process = torchrun(2, "resume", "lost", cwd=folder)
    began = metrics.read_bytes().count(b"\n")
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and metrics.read_bytes().count(b"\n") <= began + 10:
        assert process.poll() is None, process.communicate()
        time.sleep(0.02)
    process.terminate()
    process.communicate(timeout=60)
    rounds = [json.loads(line)["round"] for line in metrics.read_text().splitlines()]
    assert rounds == list(range(len(rounds)))
    assert len(rounds) > began


def test_factories_are_shared_out_evenly() -> None:
    shards = [ProcessGroup(rank, 3).shard(10).tolist() for rank in range(3)]
    assert shards == [[0, 1, 2, 3], [4, 5, 6], [7, 8, 9]]
    assert ProcessGroup().shard(3).tolist() == [0, 1, 2]


def test_more_processes_than_factories_are_refused() -> None:
    from fedgs.errors import ConfigError
    from fedgs.simulation.simulator import Simulator
    from tests.simulation.small import small_federation, small_settings

    with pytest.raises(ConfigError, match="4 processes for 3 factories"):
        Simulator(small_settings(), small_federation(), group=ProcessGroup(0, 4))


def test_what_is_wrong_is_said_once(reference: tuple[Path, list[str]]) -> None:
    folder, options = reference
    process = torchrun(2, "run", *options, "--out", "one", cwd=folder)
    _, err = process.communicate(timeout=120)
    assert process.returncode != 0
    assert [line for line in err.splitlines() if line.startswith("fedgs:")] == [
        "fedgs: error: one: exists already; choose another folder with --out, or go on with: fedgs resume one"
    ]
