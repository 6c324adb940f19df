"""Own tasks in a park of real processes: imported by name on every device, the simulator's weights in the end."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

import fedgs
from fedgs.config import load_settings
from fedgs.data import Federation, build_federation
from fedgs.data.npz import save_npz
from fedgs.data.user_data import from_arrays
from fedgs.deploy import pki
from fedgs.deploy.contract import RoundOrder
from fedgs.deploy.station_optimizer import StationOptimizer
from fedgs.deploy.torch_trainer import TorchTrainer
from fedgs.deploy.trainers import make_trainer
from fedgs.deploy.wire import Task
from fedgs.errors import ConfigError
from fedgs.simulation.run import execute
from fedgs.training.optimizers import Optimizer
from tests.api import plant
from tests.deploy.processes import Park, order, park_in, wait_for, write_device

COMMON = [
    "federation.devices=8", "federation.factories=2", "selection.pick=2", "selection.presample=1", "training.rounds=3",
    "training.iterations=4", "training.batch_size=5", "training.learning_rate=0.1", "data.min_samples=0",
    "training.engine=per-device",
]  # fmt: skip


def data_set(devices: int = 8, targets: Any = None) -> Any:
    waves, labels, _ = plant.arrays()
    return from_arrays(waves, labels if targets is None else targets, np.arange(180) % devices)


def run_park(
    park: Park, federation: Federation, data: Any, options: list[str], wait: float = 240
) -> dict[str, torch.Tensor]:
    """Carry a run out with real processes and return its model."""
    folder = park.folder
    shutil.copy(plant.__file__, folder / "my_plant.py")
    (folder / "target.json").write_text(json.dumps(federation.p_real().tolist()))
    save_npz(data, folder / "held-out.npz")
    stations = [
        park.station(f"s{factory}", "--min-devices", str(len(federation) // 2), "--gather", "200")
        for factory in range(2)
    ]
    for device, name in enumerate(federation.device_names):
        path = write_device(federation, device, folder / f"{name}.npz")
        park.device(name, stations[federation.factory_of[device]], source=f"npz:{path}")
    pki.issue(park.pki, "top", "top")
    overrides = [part for option in options for part in ("--set", option)]
    top = park.start(
        "top", "top", "--stations", ",".join(station.top for station in stations), "--state", "top-state", "--target",
        "target.json", "--held-out", "held-out.npz", *overrides,
    )  # fmt: skip
    assert top.wait(timeout=wait) == 0, park.text("top")
    found: dict[str, torch.Tensor] = load_file(folder / "top-state" / "model.safetensors")
    return found


BOTH = ["training.optimizer=adamw", "training.weight_decay=0.05", "training.learning_rate=0.02",
        "training.calibration=1", "server.class_wise=true", "training.clip=0.5"]  # fmt: skip


@pytest.mark.parametrize(
    ("task", "devices", "more"), [("signals", 8, BOTH), ("local_norms", 4, ["training.momentum=0.5"])]
)
def test_a_park_with_batch_normalisation_is_the_simulator(
    tmp_path: Path, task: str, devices: int, more: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    shutil.copy(plant.__file__, tmp_path / "my_plant.py")
    monkeypatch.syspath_prepend(str(tmp_path))
    options = [*COMMON, f"federation.devices={devices}", f"task=my_plant:{task}", *more]
    settings = load_settings(overrides=options)
    federation = build_federation(data_set(devices), 2, seed=settings.seed)
    expected = execute(settings, federation)
    with park_in(tmp_path) as park:
        real = run_park(park, federation, data_set(devices), options)
    kept = {"body.1.weight", "body.1.bias", "body.1.running_mean", "body.1.running_var", "body.1.num_batches_tracked"}
    local = kept if task == "local_norms" else set()
    assert set(real) == set(expected.weights) - local
    for name, weight in real.items():
        torch.testing.assert_close(weight, expected.weights[name].float(), rtol=0, atol=1e-5)
    assert not torch.allclose(real["fc.weight"], expected.finished.task.module.get_parameter("fc.weight"), atol=1e-3)  # type: ignore[union-attr]
    lines = [json.loads(line) for line in (tmp_path / "top-state/metrics.jsonl").read_text().splitlines()]
    if local:
        assert all("accuracy" not in line for line in lines)  # a part of the model is on the devices alone
    else:
        assert int(real["body.1.num_batches_tracked"]) == 12
        assert lines[-1]["loss"] < lines[0]["loss"]


def test_a_regression_with_known_bins_is_deployed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    shutil.copy(plant.__file__, tmp_path / "my_plant.py")
    monkeypatch.syspath_prepend(str(tmp_path))
    _, labels, _ = plant.arrays()
    data = data_set(4, labels + 0.1)
    options = [*COMMON, "federation.devices=4", "task=my_plant:wear", "training.learning_rate=0.02"]
    settings = load_settings(overrides=options)
    federation = build_federation(data, 2, seed=settings.seed)
    expected = execute(settings, federation)
    bound = expected.finished.task.federation  # type: ignore[union-attr]
    with park_in(tmp_path) as park:
        (tmp_path / "target.json").write_text("[]")
        real = run_park(park, bound, data, options)
    for name, weight in real.items():
        torch.testing.assert_close(weight, expected.weights[name], rtol=0, atol=1e-5)
    last = json.loads((tmp_path / "top-state/metrics.jsonl").read_text().splitlines()[-1])
    assert set(last) >= {"mae", "rmse", "loss"}


def test_a_source_of_ones_own_and_a_device_whose_network_is_another(tmp_path: Path) -> None:
    """One device imports a wider network: it refuses the task, both digests in the line; the others train."""
    text = Path(plant.__file__).read_text()
    for folder, width in (("good", 6), ("odd", 7)):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "my_plant.py").write_text(text.replace("width: int = 6", f"width: int = {width}"))
    options = [*COMMON, "task=my_plant:signals", "federation.devices=2", "federation.factories=1", "selection.cap=true"]
    with park_in(tmp_path) as park:
        station = park.station("s0", "--min-devices", "2", "--gather", "20")
        pki.issue(park.pki, "top", "top")
        for name, folder in (("a", "good"), ("b", "good"), ("c", "odd")):
            pki.issue(park.pki, "device", name)
            bundle = str(tmp_path / "pki" / "device" / name)
            park.start(
                name, "-c",
                f"import os, sys; os.chdir({str(tmp_path / folder)!r}); sys.argv = ['fedgs', 'device', '--station', "
                f"{station.devices!r}, '--id', {name!r}, '--source', 'my_plant:Stream', '--longest-wait', '0.5', "
                f"'--log-json', '--certificates', {bundle!r}]; from fedgs.cli import main; main()",
                module=None,
            )  # fmt: skip
        (tmp_path / "my_plant.py").write_text(text)
        overrides = [part for option in options for part in ("--set", option)]
        top = park.start("top", "top", "--stations", station.top, "--state", "top-state", "--classes", "3", *overrides)
        assert top.wait(timeout=120) == 0, park.text("top")
        lines = [line["reason"] for line in park.log("c", "not connected")]
        refused = next(line for line in lines if "another network here" in line)
        mine, theirs = refused.split("digest ")[1].split(")")[0], refused.split("station (")[1].split(")")[0]
        assert len(mine) == len(theirs) == 16
        assert mine != theirs
    last = json.loads((tmp_path / "top-state/metrics.jsonl").read_text().splitlines()[-1])
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


def test_a_stations_optimiser_survives_a_restart_and_counts_no_round_twice(tmp_path: Path) -> None:
    adam = Optimizer("adam")
    weights = np.linspace(-1, 1, 260, dtype=np.float32)

    def play(optimizer: StationOptimizer, number: int, start: np.ndarray) -> np.ndarray:
        asked: RoundOrder = order(number, 3, optimizer=adam, weights=start)
        optimizer.begin(asked)
        now = start
        for step in range(3):
            change = np.float32(-0.1) * np.sin(now + step + number).astype(np.float32)
            now = optimizer.step(now, now + change, change, 0.1)
        return now

    whole = StationOptimizer(tmp_path)
    first = play(whole, 1, weights)
    whole.keep()
    second = play(whole, 2, first)
    whole.keep()
    third = play(whole, 3, second)
    restarted = StationOptimizer(tmp_path)
    assert np.array_equal(play(restarted, 3, second), third)
    again = StationOptimizer(tmp_path)
    assert np.array_equal(play(again, 2, first), second)  # asked for once more, it begins where it began
    fresh = StationOptimizer()
    assert not np.array_equal(play(fresh, 3, second), third)
    (tmp_path / "optimizer.npz").write_bytes(b"torn")
    torn = StationOptimizer(tmp_path)
    assert np.array_equal(play(torn, 3, second), play(StationOptimizer(), 3, second))


def test_what_only_a_simulation_can_do_is_refused() -> None:
    from fedgs.deploy.run_spec import check_deployable

    for option in ("data.normalise=per-channel", "algorithm.objective=fedprox"):
        with pytest.raises(ConfigError, match="is for simulations"):
            check_deployable(load_settings(overrides=[option]))
    check_deployable(load_settings(overrides=["training.optimizer=adam", "training.momentum=0.5"]))
    assert wait_for(lambda: True)
    assert fedgs.__version__
