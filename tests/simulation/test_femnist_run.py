"""The paper's preset on real FEMNIST; its path is in the environment variable FEDGS_FEMNIST."""

import math
import os
from pathlib import Path

import pytest

from fedgs.config import load_settings
from fedgs.simulation.federations import load_federation
from fedgs.simulation.simulator import Simulator

FEMNIST = os.environ.get("FEDGS_FEMNIST", "")


@pytest.mark.skipif(not Path(FEMNIST).is_file(), reason="FEDGS_FEMNIST names no file with real FEMNIST")
def test_the_untrained_model_knows_nothing_and_selection_is_as_good_as_the_papers() -> None:
    overrides = [f"data.name='{FEMNIST}'", "training.rounds=1", "training.iterations=2"]
    settings = load_settings(preset="paper", overrides=overrides)
    federation = load_federation(settings)
    assert federation.factory_sizes.tolist() == [35] * 10
    with Simulator(settings, federation) as simulator:
        state = simulator.begin()
        first, second = state.metrics[0], next(iter(simulator.rounds(state))).metrics[1]
    assert first["loss"] == pytest.approx(math.log(62), abs=0.1)
    assert first["accuracy"] < 0.08
    assert second["divergence"] == pytest.approx(0.036, abs=0.006)  # paper: GBP-CS 0.036, random 0.083
