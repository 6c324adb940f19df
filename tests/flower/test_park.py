"""A park over Flower as real processes: SuperLink, SuperNodes, stations, devices."""

import json
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file

pytest.importorskip("flwr")

from fedgs.config import load_settings
from fedgs.data import Federation
from fedgs.data.npz import save_npz
from fedgs.data.user_data import from_arrays
from fedgs.deploy.park import LocalPark, running
from fedgs.deploy.top_state import checkpoints
from fedgs.errors import ConfigError, WorkerError
from fedgs.flower.park import FlowerPark, started_here
from fedgs.settings import Settings
from fedgs.simulation.federations import load_federation
from fedgs.simulation.run import execute
from tests.api import plant
from tests.deploy.processes import wait_for
from tests.deploy.test_park import options, processes_of
from tests.deploy.test_same_as_simulator import COMMON
from tests.simulation.small import small_config, small_settings


def rounds_in(metrics: Path) -> list[int]:
    return [json.loads(line)["round"] for line in metrics.read_text().splitlines()] if metrics.exists() else []


def small_park(folder: Path, *overrides: str) -> tuple[Settings, Federation]:
    small_config(folder)
    settings = small_settings(
        "federation.devices=4", "federation.factories=2", "selection.pick=2", "task.model=linear",
        f"data.name='{folder / 'bars.npz'}'", *overrides,
    )  # fmt: skip
    return settings, load_federation(settings)


def test_a_superlink_killed_in_mid_run_costs_no_round_and_the_end_is_that_of_plain_grpc(tmp_path: Path) -> None:
    settings, federation = small_park(tmp_path, "training.rounds=3", "training.calibration=1", "server.class_wise=true")
    plain = LocalPark(tmp_path / "plain", settings, federation)
    with running(plain):
        wait_for(lambda: plain.done, 60, "the park over gRPC")
        plain.check()
    park = FlowerPark(tmp_path / "park", settings, federation)
    metrics = tmp_path / "park/top/metrics.jsonl"
    with running(park):
        wait_for(lambda: 1 in rounds_in(metrics), 120, "the first round")
        for process in [one for one in park.processes if one.role in ("superlink", "top")]:
            process.popen.kill()
            process.popen.wait()
            park.processes.remove(process)
        park.start_superlink()
        park.start_run()
        wait_for(lambda: park.done, 120, "the run to be finished")
        park.check()
        assert len(started_here()) > 8
    assert not started_here()
    assert not processes_of(tmp_path / "park")
    assert rounds_in(metrics) == [0, 1, 2, 3]
    expected = load_file(tmp_path / "plain/top/model.safetensors")
    found = load_file(tmp_path / "park/top/model.safetensors")
    for name, weight in expected.items():
        torch.testing.assert_close(found[name], weight, rtol=0, atol=1e-5)
    assert rounds_in(tmp_path / "plain/top/metrics.jsonl") == [0, 1, 2, 3]


def test_adam_over_super_nodes_and_whoever_kills_the_park_ends_all_of_it(tmp_path: Path) -> None:
    adam = ["--flower", "--set", "server.rule=FedAdam", "--set", "server.options.eta=0.03", "--out", "park"]
    process = subprocess.Popen(
        [sys.executable, "-m", "fedgs", *options(tmp_path, 100_000), *adam],
        cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        wait_for(lambda: 1 in rounds_in(tmp_path / "park/top/metrics.jsonl"), 120, "the park to train")
        with safe_open(checkpoints(tmp_path / "park/top")[0], "pt") as file:
            assert {"server/m_t/dense.weight", "server/v_t/dense.weight"} <= set(file.keys())
        process.send_signal(signal.SIGKILL)
        process.communicate(timeout=30)
    finally:
        process.kill()
    wait_for(lambda: not processes_of(tmp_path / "park"), 30, "all processes to end")
    commands = (tmp_path / "park/commands.txt").read_text()
    assert "export FLWR_TELEMETRY_ENABLED=0" in commands
    assert "--disable-runtime-dependency-installation" in commands
    assert "--control" not in commands


def test_a_run_that_ends_too_early_says_why(tmp_path: Path, monkeypatch: Any) -> None:
    settings, federation = small_park(tmp_path)
    park = FlowerPark(tmp_path / "park", settings, federation)
    (tmp_path / "park/logs").mkdir(parents=True)
    log = tmp_path / "park/logs/top.log"
    log.write_text("12:00:00 INFO    run begins\n12:00:01 ERROR   round 3: the global model is not finite\nTraceback\n")
    monkeypatch.setattr(FlowerPark, "done", True)
    with pytest.raises(WorkerError, match="before its last round: round 3: the global model is not finite"):
        park.check()
    log.write_text("nothing")
    with pytest.raises(WorkerError, match=r"see .*top\.log"):
        park.check()


def test_a_rule_that_flower_does_not_have_is_found_before_anything_is_written(tmp_path: Path) -> None:
    settings, federation = small_park(tmp_path, "server.rule=FedAdm")
    with pytest.raises(ConfigError, match="did you mean 'FedAdam'"):
        FlowerPark(tmp_path / "park", settings, federation).check_folder()
    assert not (tmp_path / "park").exists()


def test_a_park_over_flower_is_the_simulator(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    shutil.copy(plant.__file__, tmp_path / "my_plant.py")
    monkeypatch.syspath_prepend(str(tmp_path))
    waves, labels, _ = plant.arrays()
    save_npz(from_arrays(waves, labels, np.arange(180) % 8), tmp_path / "waves.npz")
    options = ["data.name=waves.npz", "task=my_plant:signals", "training.optimizer=adam", "training.learning_rate=0.02"]
    settings = load_settings(overrides=[*COMMON, *options])
    federation = load_federation(settings)
    history = execute(settings, federation)
    park = FlowerPark(tmp_path / "park", settings, federation)
    with running(park):
        wait_for(lambda: park.done, 240, "the run to be finished")
        park.check()
    real = load_file(tmp_path / "park/top/model.safetensors")
    expected = history.model.state_dict()
    assert set(real) == set(expected)
    for name, weight in expected.items():
        torch.testing.assert_close(real[name].double(), weight.double(), rtol=0, atol=1e-5)
