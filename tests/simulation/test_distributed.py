"""Factories shared out over processes: real ones that talk over gloo."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from fedgs.errors import ConfigError
from fedgs.simulation.process_group import ProcessGroup
from fedgs.simulation.simulator import Simulator
from tests.conftest import Here
from tests.simulation.small import small_config, small_federation, small_settings

TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m", "fedgs")
RANKS = ("-m", "tests.simulation.ranks")
"""What torchrun starts, without waiting for torch to be imported three times."""
BASELINE = """baseline=["algorithm.name=ida+intrac", "algorithm.devices_per_round=8", "algorithm.local_epochs=2",
              "algorithm.sampling=power-of-choice"]"""
ENVIRONMENT = os.environ | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}


def start(launcher: tuple[str, ...], *arguments: str, cwd: Path) -> subprocess.Popen[str]:
    command = [sys.executable, *launcher, *arguments]
    pipe = subprocess.PIPE
    return subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True, cwd=cwd, env=ENVIRONMENT)


def assert_same(one: Path, other: Path) -> None:
    lines = [[json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()] for run in (one, other)]
    assert len(lines[0]) == len(lines[1])
    for mine, theirs in zip(*lines, strict=True):
        assert mine.keys() == theirs.keys()
        assert mine["loss"] == pytest.approx(theirs["loss"], rel=1e-4)
        assert mine["accuracy"] == pytest.approx(theirs["accuracy"], abs=0.02)
        for key in ("divergence", "samples", "devices_selected", "events"):
            assert mine.get(key) == theirs.get(key)  # the plan is the same to the bit
    torch.testing.assert_close(*(load_file(run / "model.safetensors") for run in (one, other)), rtol=1e-4, atol=1e-5)


def test_two_processes_give_what_one_gives_and_speak_with_one_voice(tmp_path: Path, here: Here) -> None:
    """FedGS: three factories on two ranks. Then IDA: participants, selected by their losses, are
    shared out, and its server needs all uploads."""
    options = small_config(
        tmp_path, "training.momentum=0.5", "training.calibration=1", "server.class_wise=true", "training.rounds=4",
        "dynamics.leave=0.05", "checkpoint.every=2", BASELINE,
    )  # fmt: skip
    command = ("run", *options, "--device", "cpu", "--out")
    assert here(*command, "one")[0] == 0
    out, err = start(RANKS, *command, "two", "then", *command, "one", cwd=tmp_path).communicate(timeout=120)
    assert [line for line in out.splitlines() if line.startswith("ended")] == ["ended with 0", "ended with 2"], err
    assert out.count("two: accuracy") == 1
    for name in ("", "-ida+intrac"):
        assert_same(tmp_path / f"two{name}", tmp_path / f"one{name}")
    # A busy machine also has lines of progress.
    assert [line for line in err.splitlines() if line.startswith("fedgs: error:")] == [
        "fedgs: error: one: exists already; choose another folder (out), go on with: fedgs resume one, or "
        "replace it (overwrite)"
    ]


def test_a_lost_rank_ends_the_job_and_the_run_is_resumed(tmp_path: Path) -> None:
    options = small_config(tmp_path, "training.momentum=0.5", "training.rounds=60", "checkpoint.every=2")
    process = start(TORCHRUN, "run", *options, "--device", "cpu", "--out", "lost", cwd=tmp_path)
    metrics = tmp_path / "lost" / "metrics.jsonl"
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and not (metrics.exists() and metrics.read_bytes().count(b"\n") > 5):
        assert process.poll() is None, process.communicate()
        time.sleep(0.01)
    ranks = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    victim = next(pid for pid in map(int, ranks) if b"RANK=1" in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"))
    os.kill(victim, signal.SIGKILL)
    _, err = process.communicate(timeout=60)
    assert process.returncode != 0
    ours = [line for line in err.splitlines() if line.startswith("fedgs: error: rank 0 of 2 ")]
    assert len(ours) == 1
    assert ours[0].endswith("with: fedgs resume RUN")
    assert not (tmp_path / "lost" / "summary.json").exists()
    out, err = start(RANKS, "resume", "lost", "--device", "cpu", cwd=tmp_path).communicate(timeout=120)
    assert "ended with 0" in out, err
    rounds = [json.loads(line)["round"] for line in metrics.read_text().splitlines()]
    assert rounds == list(range(61))


def test_factories_are_shared_out_evenly() -> None:
    shards = [ProcessGroup(rank, 3).shard(10).tolist() for rank in range(3)]
    assert shards == [[0, 1, 2, 3], [4, 5, 6], [7, 8, 9]]
    assert ProcessGroup().shard(3).tolist() == [0, 1, 2]


@pytest.mark.parametrize(
    ("processes", "options", "words"),
    [
        (4, (), "4 processes for 3 factories"),
        (11, ("algorithm.name=fedavg", "algorithm.devices_per_round=10"), "11 processes for 10 devices a round"),
    ],
)
def test_more_processes_than_work_are_refused(processes: int, options: tuple[str, ...], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        Simulator(small_settings(*options), small_federation(), group=ProcessGroup(0, processes))
