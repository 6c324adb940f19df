"""The heart: a park and the simulator are the same algorithm; test_park.py holds real processes against it."""

import asyncio
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from fedgs.config import load_settings
from fedgs.data import build_federation
from fedgs.data.user_data import from_arrays
from fedgs.deploy.proto import fedgs_wire_pb2 as pb
from fedgs.deploy.sources import open_source
from fedgs.deploy.torch_trainer import TorchTrainer
from fedgs.deploy.trainers import Trainer, make_trainer
from fedgs.errors import ConfigError
from fedgs.simulation.exported import load_model
from fedgs.simulation.folder import create_run
from fedgs.simulation.run import execute
from fedgs.simulation.selection_plan import SelectionPlan
from tests.api import plant
from tests.deploy.devices import agent, run_top, running, train
from tests.deploy.processes import Park
from tests.simulation.small import SMALL, small_set, small_settings

TRICKS = ["training.calibration=1", "server.class_wise=true"]
OWN = ["data.normalise=per-channel", "training.optimizer=adam", "training.learning_rate=0.002"]
COVERAGE = ["selection.coverage.weight=0.5", "selection.coverage.share=turns"]


@pytest.mark.parametrize("more", [[], [*TRICKS, "training.clip=0.1", *COVERAGE], [*TRICKS, *OWN]])
async def test_a_park_ends_with_the_simulators_teams_and_weights(park: Park, tmp_path: Path, more: list[str]) -> None:
    """2 stations × 5 devices, T=5, R=3, over mTLS; the oracle is the simulator's per-device path."""
    options = [
        "task.model=compact", "federation.devices=10", "federation.factories=2", "training.iterations=5",
        "training.rounds=3", "training.engine=per-device", *more,
    ]  # fmt: skip
    settings = small_settings(*options)
    federation = build_federation(small_set(10), 2, seed=settings.seed)
    create_run(tmp_path / "simulated", settings)
    execute(settings, federation, folder=tmp_path / "simulated")
    plan = SelectionPlan(federation, settings)
    expected: list[list[list[str]]] = [[], []]
    for _ in range(3):
        devices = plan.next_round().devices
        for factory in range(2):
            expected[factory] += [[federation.device_names[device] for device in row] for row in devices[:, factory]]
    real = await train(park, federation, small_set(10), [*SMALL, *options])
    lines = park.log("s0", "iteration")  # of both stations
    for selected in expected:
        here = {name for team in selected for name in team}
        assert [line["selected"] for line in lines if here.issuperset(line["selected"])] == selected
    assert all(line["used"] == 3 for line in lines)
    simulated = load_file(tmp_path / "simulated" / "model.safetensors")
    assert set(real) == set(simulated)
    for name, weight in simulated.items():
        torch.testing.assert_close(real[name], weight, rtol=0, atol=1e-5)
    lines = park.rounds()
    assert [(line["round"], line.get("stations")) for line in lines] == [(0, None), (1, 2), (2, 2), (3, 2)]
    if "mean_0" in real:
        pixels = federation.inputs[federation.train.flat] / 255.0  # of all devices, and of nothing else
        facts = load_model(park.folder / "state" / "model.safetensors").facts
        assert facts.normalisation["mean_0"] == pytest.approx([pixels.mean()], rel=1e-6)
        assert facts.normalisation["deviation_0"] == pytest.approx([pixels.std()], rel=1e-6)
        assert facts.normalisation == load_model(tmp_path / "simulated").facts.normalisation


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
async def test_a_park_with_batch_normalisation_is_the_simulator(
    park: Park, task: str, devices: int, more: list[str]
) -> None:
    options = [*COMMON, f"federation.devices={devices}", f"task=my_plant:{task}", *more]
    settings = load_settings(overrides=options)
    federation = build_federation(data_set(devices), 2, seed=settings.seed)
    expected = execute(settings, federation)
    real = await train(park, federation, data_set(devices), options)
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
async def test_a_regression_with_known_bins_is_deployed(park: Park) -> None:
    _, labels, _ = plant.arrays()
    data = data_set(4, labels + 0.1)
    options = [*COMMON, "federation.devices=4", "task=my_plant:wear", "training.learning_rate=0.02"]
    settings = load_settings(overrides=options)
    expected = execute(settings, build_federation(data, 2, seed=settings.seed))
    bound = expected.finished.task.federation  # type: ignore[union-attr]
    real = await train(park, bound, data, options)
    for name, weight in real.items():
        torch.testing.assert_close(weight, expected.weights[name], rtol=0, atol=1e-5)
    assert set(park.rounds()[-1]) >= {"mae", "rmse", "loss"}


async def test_a_source_of_ones_own_and_a_device_whose_network_is_another(park: Park) -> None:
    """One device imports a wider network: it refuses the task, both digests in the line; the others train."""

    def wider(task: pb.Task) -> Trainer:
        other = pb.Task.FromString(task.SerializeToString())
        other.spec = json.dumps({"model": "tests.api.plant:Net", "options": {"width": 7}})
        return make_trainer(other)

    station = await park.serve("s0", min_devices=2, gather=60)
    sources = {name: open_source("tests.api.plant:Stream", name) for name in "abc"}
    good = [agent(park, station, name, sources[name]).run() for name in "ab"]
    task = ["task=tests.api.plant:signals", "federation.devices=2", "federation.factories=1", "selection.cap=true"]

    def reasons() -> list[str]:
        return [line["reason"] for line in park.log("s0", "not connected") if "another network here" in line["reason"]]

    async with running(agent(park, station, "c", sources["c"], make=wider).run()):
        run = asyncio.ensure_future(run_top(park, [station], [*COMMON, *task], classes=3))
        while not reasons() and not run.done():  # the others come when this one has been refused
            await asyncio.sleep(0.05)
        async with running(*good):
            await run
    refused = reasons()[0]
    mine, theirs = refused.split("digest ")[1].split(")")[0], refused.split("station (")[1].split(")")[0]
    assert len(mine) == len(theirs) == 16
    assert mine != theirs
    last = park.rounds()[-1]
    assert last["round"] == 3
    assert last["train_loss"] < 1.2


def wire_task(spec: Any, digest: str = "", batch_size: int = 5) -> pb.Task:
    described = {"spec": json.dumps(spec), "inputs": json.dumps([[2, 16], "float32"])}
    return pb.Task(run="r", classes=3, batch_size=batch_size, digest=digest, **described)


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
