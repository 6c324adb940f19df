"""Flat approaches in whole rounds: the stack against one device after the other, the same devices for all, learning."""

import numpy as np
import pytest

from fedgs.algorithms import APPROACHES
from fedgs.simulation.simulator import Simulator
from fedgs.simulation.state import RunState
from tests.simulation.small import small_federation, small_settings

FEDERATION = small_federation()
EXTRA = {
    "cgau": ["algorithm.options.pretrain_rounds=1"],
    "cgau-2x": ["algorithm.options.pretrain_rounds=1"],
    # A kernel of width 10⁻⁶ blows up rounding errors a thousandfold a step: within a round nothing is seen of it yet.
    "fedmmd": ["training.rounds=1"],
}


def flat_settings(name: str, *overrides: str):
    common = ["algorithm.local_epochs=2", "algorithm.devices_per_round=10", "training.learning_rate=0.05"]
    return small_settings(f"algorithm.name={name}", *common, *EXTRA.get(name, []), *overrides)


def run(name: str, *overrides: str) -> RunState:
    with Simulator(flat_settings(name, *overrides), FEDERATION) as simulator:
        return list(simulator.rounds(simulator.begin()))[-1]


@pytest.mark.parametrize("name", APPROACHES)
def test_the_stack_equals_one_device_after_the_other(name: str) -> None:
    """Three rounds, so that what the server remembers has come round; buckets of unequal devices, short batches."""
    together, alone = run(name), run(name, "training.engine=per-device")
    assert np.allclose(together.weights.numpy(), alone.weights.numpy(), atol=2e-5)
    for fast, slow in zip(together.metrics[1:], alone.metrics[1:], strict=True):
        assert fast["train_loss"] == pytest.approx(slow["train_loss"], rel=1e-4)
