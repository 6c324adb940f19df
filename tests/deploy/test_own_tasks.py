"""Own tasks in a park of real processes: imported by name on every device, the simulator's weights in the end."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fedgs.config import load_settings
from fedgs.data import build_federation
from fedgs.data.user_data import from_arrays
from fedgs.deploy import pki
from fedgs.deploy.torch_trainer import TorchTrainer
from fedgs.deploy.trainers import make_trainer
from fedgs.deploy.wire import Task
from fedgs.errors import ConfigError
from fedgs.simulation.run import execute
from tests.api import plant
from tests.deploy.processes import Park

COMMON = [
    "federation.devices=8", "federation.factories=2", "selection.pick=2", "selection.presample=1", "training.rounds=3",
    "training.iterations=4", "training.batch_size=5", "training.learning_rate=0.1", "data.min_samples=0",
    "training.engine=per-device",
]  # fmt: skip


def data_set(devices: int = 8, targets: Any = None) -> Any:
    waves, labels, _ = plant.arrays()
    return from_arrays(waves, labels if targets is None else targets, np.arange(180) % devices)


BOTH = ["training.optimizer=adamw", "training.weight_decay=0.05", "training.learning_rate=0.02",
        "training.calibration=1", "server.class_wise=true", "training.clip=0.5"]  # fmt: skip


@pytest.fixture
def own_plant(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A module my_plant that this process and those of the park import from the folder of the test."""
    monkeypatch.chdir(tmp_path)
    shutil.copy(plant.__file__, tmp_path / "my_plant.py")
    monkeypatch.syspath_prepend(str(tmp_path))


@pytest.mark.usefixtures("own_plant")
@pytest.mark.parametrize(
    ("task", "devices", "more"), [("signals", 8, BOTH), ("local_norms", 4, ["training.momentum=0.5"])]
)
def test_a_park_with_batch_normalisation_is_the_simulator(park: Park, task: str, devices: int, more: list[str]) -> None:
    options = [*COMMON, f"federation.devices={devices}", f"task=my_plant:{task}", *more]
    settings = load_settings(overrides=options)
    federation = build_federation(data_set(devices), 2, seed=settings.seed)
    expected = execute(settings, federation)
    real = park.train(federation, data_set(devices), options)
    kept = {"body.1.weight", "body.1.bias", "body.1.running_mean", "body.1.running_var", "body.1.num_batches_tracked"}
    local = kept if task == "local_norms" else set()
    assert set(real) == set(expected.weights) - local
    for name, weight in real.items():
        torch.testing.assert_close(weight, expected.weights[name].float(), rtol=0, atol=1e-5)
    assert not torch.allclose(real["fc.weight"], expected.finished.task.module.get_parameter("fc.weight"), atol=1e-3)  # type: ignore[union-attr]
    lines = park.rounds()
    if local:
        assert all("accuracy" not in line for line in lines)  # a part of the model is on the devices alone
    else:
        assert int(real["body.1.num_batches_tracked"]) == 12
        assert lines[-1]["loss"] < lines[0]["loss"]


@pytest.mark.usefixtures("own_plant")
def test_a_regression_with_known_bins_is_deployed(park: Park) -> None:
    _, labels, _ = plant.arrays()
    data = data_set(4, labels + 0.1)
    options = [*COMMON, "federation.devices=4", "task=my_plant:wear", "training.learning_rate=0.02"]
    settings = load_settings(overrides=options)
    expected = execute(settings, build_federation(data, 2, seed=settings.seed))
    bound = expected.finished.task.federation  # type: ignore[union-attr]
    real = park.train(bound, data, options)
    for name, weight in real.items():
        torch.testing.assert_close(weight, expected.weights[name], rtol=0, atol=1e-5)
    assert set(park.rounds()[-1]) >= {"mae", "rmse", "loss"}


def test_a_source_of_ones_own_and_a_device_whose_network_is_another(park: Park, tmp_path: Path) -> None:
    """One device imports a wider network: it refuses the task, both digests in the line; the others train."""
    text = Path(plant.__file__).read_text()
    (tmp_path / "my_plant.py").write_text(text)
    station = park.station("s0", "--min-devices", "2", "--gather", "20")
    for name, width in (("a", 6), ("b", 6), ("c", 7)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "my_plant.py").write_text(text.replace("width: int = 6", f"width: int = {width}"))
        certificates = str(pki.issue(park.pki, "device", name))
        park.start(
            name, "device", "--station", station.devices, "--id", name, "--source", "my_plant:Stream",
            "--longest-wait", "0.5", "--log-json", "--certificates", certificates, folder=tmp_path / name,
        )  # fmt: skip
    options = [*COMMON, "task=my_plant:signals", "federation.devices=2", "federation.factories=1", "selection.cap=true"]
    top = park.top([station], *options, more=["--classes", "3"])
    assert top.wait(timeout=120) == 0, park.text("top")
    lines = [line["reason"] for line in park.log("c", "not connected")]
    refused = next(line for line in lines if "another network here" in line)
    mine, theirs = refused.split("digest ")[1].split(")")[0], refused.split("station (")[1].split(")")[0]
    assert len(mine) == len(theirs) == 16
    assert mine != theirs
    last = park.rounds()[-1]
    assert last["round"] == 3
    assert last["train_loss"] < 1.2


def wire_task(spec: Any, digest: str = "", batch_size: int = 5) -> Task:
    return Task("r", json.dumps(spec), 3, json.dumps([[2, 16], "float32"]), batch_size, digest=digest)


def test_a_digest_stands_for_weights_bins_batch_size_and_what_is_frozen() -> None:
    def digest(spec: Any, **changes: Any) -> str:
        trainer = make_trainer(wire_task(spec, **changes))
        assert isinstance(trainer, TorchTrainer)
        return trainer.digest

    one = digest("tests.api.plant:signals")
    assert one == digest("tests.api.plant:signals")
    assert one != digest("tests.api.plant:signals", batch_size=6)
    assert one != digest({"model": "tests.api.plant:Net", "options": {"width": 7}})
    assert one == digest({"model": "tests.api.plant:Net"})
    make_trainer(wire_task("tests.api.plant:signals", one))
    with pytest.raises(ConfigError, match=rf"digest {one}\) than at the station \(0123456789abcdef\)"):
        make_trainer(wire_task("tests.api.plant:signals", "0123456789abcdef"))
    with pytest.raises(ConfigError, match="module 'nowhere' cannot be imported"):
        make_trainer(wire_task("nowhere:task"))
