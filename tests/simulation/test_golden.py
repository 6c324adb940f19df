"""Golden runs: the built-in network gives what it gave before the core took any network.

The losses were recorded by ``fedgs run --preset quick`` at this size by the last version for images alone. On one
machine they are equal bit for bit; another processor may add up in another order, hence the tolerance. FedGS has a low
learning rate here: at the preset's own rate the third round turns such differences into 0.01 of the loss.
"""

import pytest

from fedgs.config import load_settings
from fedgs.data import Federation
from fedgs.simulation.federations import load_federation
from fedgs.simulation.run import execute

SIZE = [
    "federation.devices=24", "federation.factories=3", "data.samples_per_device=80", "selection.pick=4",
    "training.rounds=3", "training.iterations=6", "training.batch_size=16", "baseline=[]",
]  # fmt: skip
BASELINE = ["algorithm.local_epochs=1", "algorithm.devices_per_round=9"]
FEDGS = ["training.learning_rate=0.05"]
BEGIN = 4.157843861213097
GOLDEN = {
    "fedgs": [BEGIN, 4.123718349750225, 4.08441962706737, 4.026676516655164],
    "fedavg": [BEGIN, 4.128079750599006, 3.9879285017649333, 3.951668164668939],
    "fedprox": [BEGIN, 4.129108557334313, 3.9855658176617745, 3.9575021315843633],
    "fedadam": [BEGIN, 4.155482418109209, 4.149319312511346, 4.141135113055889],
}


@pytest.fixture(scope="module")
def glyphs() -> Federation:
    return load_federation(load_settings(preset="quick", overrides=SIZE))


@pytest.mark.parametrize("name", GOLDEN)
def test_results_of_the_built_in_network_stay(name: str, glyphs: Federation) -> None:
    more = FEDGS if name == "fedgs" else [*BASELINE, f"algorithm.name={name}"]
    history = execute(load_settings(preset="quick", overrides=[*SIZE, *more]), glyphs)
    assert [line["loss"] for line in history.metrics] == pytest.approx(GOLDEN[name], rel=1e-5)
