"""Every baseline learns: four digits of glyphs, dealt to eight devices, are read far better after a few rounds."""

import numpy as np
import pytest

from fedgs.algorithms import BASELINES
from fedgs.data import DataSet, Federation, build_federation
from fedgs.data.glyphs import load_glyphs
from fedgs.simulation.simulator import Simulator
from tests.simulation.small import small_settings

DEVICES, CLASSES, ROUNDS = 8, 4, 5
COMMON = [
    f"federation.devices={DEVICES}", "federation.factories=2", f"training.rounds={ROUNDS}", f"eval.every={ROUNDS}",
    "training.batch_size=16", "training.learning_rate=0.02", "training.momentum=0.9", "algorithm.local_epochs=3",
    "algorithm.devices_per_round=4",
]  # fmt: skip
OPTIONS = {
    "fedavgm": ["client_lr=0.02", "server_lr=0.5"],
    "fedadagrad": ["client_lr=0.02", "server_lr=0.02"],
    "fedadam": ["client_lr=0.02", "server_lr=0.01"],
    "fedyogi": ["client_lr=0.02", "server_lr=0.01"],
    "fedmmd": ["gamma=0.02"],
    "moon": ["mu=0.1"],
    "cgau": ["pretrain_rounds=4", "units=32"],
    "cgau-2x": ["pretrain_rounds=4", "units=32"],
}


@pytest.fixture(scope="module")
def digits() -> Federation:
    glyphs = load_glyphs(48, 100, seed=0)
    few = np.random.default_rng(0).permutation(np.flatnonzero(glyphs.labels < CLASSES))
    few = few[: len(few) // DEVICES * DEVICES]
    clients = np.repeat(np.arange(DEVICES, dtype=np.int32), len(few) // DEVICES)
    names = tuple(f"device-{number}" for number in range(DEVICES))
    chosen = DataSet("digits", glyphs.inputs[few], glyphs.labels[few], clients, names, glyphs.classes[:CLASSES])
    return build_federation(chosen, 2, seed=0)


@pytest.mark.parametrize("name", [name for name in BASELINES if name != "fedbn"])  # nothing to normalise here
def test_it_learns(digits: Federation, name: str) -> None:
    options = [f"algorithm.options.{option}" for option in OPTIONS.get(name, [])]
    if name == "scaffold":  # plain SGD alone, hence longer steps
        options = ["training.momentum=0", "training.learning_rate=0.2"]
    with Simulator(small_settings(*COMMON, f"algorithm.name={name}", *options), digits) as simulator:
        begun = simulator.begin()
        last = list(simulator.rounds(begun))[-1].metrics[-1]
    first = begun.metrics[0]
    assert last["accuracy"] > first["accuracy"] + 0.12
    assert last["loss"] < first["loss"] - 0.12
