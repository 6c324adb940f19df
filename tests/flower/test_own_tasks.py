"""A task of one's own over Flower: batch normalisation, an optimiser at the station, the simulator's weights."""

import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

pytest.importorskip("flwr")

from fedgs.config import load_settings
from fedgs.data.npz import save_npz
from fedgs.data.user_data import from_arrays
from fedgs.deploy.park import running
from fedgs.flower.park import FlowerPark
from fedgs.simulation.federations import load_federation
from fedgs.simulation.run import execute
from tests.api import plant
from tests.deploy.processes import wait_for
from tests.deploy.test_own_tasks import COMMON


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
