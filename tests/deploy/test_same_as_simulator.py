"""The heart: a park of real processes and the simulator are the same algorithm."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from fedgs.data import build_federation
from fedgs.simulation.folder import create_run
from fedgs.simulation.run import execute
from fedgs.simulation.selection_plan import SelectionPlan
from tests.deploy.processes import Park
from tests.simulation.small import SMALL, small_set, small_settings


@pytest.mark.parametrize("more", [[], ["training.calibration=1", "server.class_wise=true", "training.clip=0.1"]])
def test_a_park_ends_with_the_simulators_selections_and_weights(park: Park, tmp_path: Path, more: list[str]) -> None:
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
    real = park.train(federation, small_set(10), [*SMALL, *options])
    for factory in range(2):
        lines = park.log(f"s{factory}", "iteration")
        assert [line["selected"] for line in lines] == expected[factory]
        assert all(line["used"] == 3 for line in lines)
    simulated = load_file(tmp_path / "simulated" / "model.safetensors")
    assert set(real) == set(simulated)
    for name, weight in simulated.items():
        torch.testing.assert_close(real[name], weight, rtol=0, atol=1e-5)
    assert [(line["round"], line.get("stations")) for line in park.rounds()] == [(0, None), (1, 2), (2, 2), (3, 2)]
