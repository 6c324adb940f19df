"""Runs that several commands read."""

from pathlib import Path

import pytest
import torch

from fedgs.config import load_settings
from fedgs.simulation.launch import launch, planned_runs
from tests.simulation.small import small_config


@pytest.fixture(scope="session")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with a small run of FedGS, ``a``, and one of FedAvg, ``a-fedavg``; they have no pictures."""
    folder = tmp_path_factory.mktemp("runs")
    clock = ("clock.step_seconds=0.5", "clock.selection_seconds=0.25", "clock.external.up.rate=1e6")
    options = small_config(folder, *clock, "eval.target=0.01", "baseline=['algorithm.name=fedavg']")[1::2]
    planned = planned_runs(folder / "a", load_settings(overrides=options))
    launch(planned, torch.device("cpu"), True, lambda run: (), lambda run, history: None)
    return folder
