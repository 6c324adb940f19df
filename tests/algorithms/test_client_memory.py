"""SCAFFOLD, FedDyn, MOON and FedBN: updates by hand, and what they refuse."""

from math import e, log

import numpy as np
import pytest
import torch
from torch import nn

import fedgs
from fedgs.algorithms import Batch, Upload, make_baseline
from fedgs.algorithms.client_memory import rows_of
from fedgs.algorithms.moon import contrasts
from fedgs.errors import AlgorithmError, ConfigError
from tests.simulation.small import resumed, small_states

from .rounds import vector

WEIGHTS = {"w": vector(1.0)}


def uploads(*devices: int) -> list[Upload]:
    """Two clients that ended at 0.8 and 1.4 after two steps of length 0.1, with 10 and 30 samples."""
    return [
        Upload({"w": vector(end)}, samples, {"device": device, "steps": 2, "rate": 0.1})
        for device, end, samples in zip(devices, (0.8, 1.4), (10, 30), strict=True)
    ]


def column(*values: float) -> dict[str, torch.Tensor]:
    return {"w": torch.tensor(values, dtype=torch.float64)[:, None]}


@pytest.mark.parametrize(
    ("weighting", "server_lr", "server", "control"),
    [
        ("uniform", 1.0, 1.1, 0.0),  # mean change −1, of 2 clients of 4: 0.5 − 0.5
        ("uniform", 0.5, 1.05, 0.0),
        ("samples", 1.0, 1.25, -0.375),  # mean change 0.25·0.5 − 0.75·2.5 = −1.75: 0.5 − 0.875
    ],
)
def test_scaffold_by_hand(weighting: str, server_lr: float, server: float, control: float) -> None:
    baseline = make_baseline("scaffold", weighting=weighting, server_lr=server_lr)
    state = {"control": {"w": vector(0.5)}, "controls": column(1, 0, 0, 7)}
    # c_i⁺ = c_i − c + (x − y)/(2·0.1): of client 0 1 − 0.5 + 1 = 1.5, of client 2 0 − 0.5 − 2 = −2.5
    new, memory = baseline.update(state, WEIGHTS, uploads(0, 2))
    assert new["w"].item() == pytest.approx(server)
    assert memory["control"]["w"].item() == pytest.approx(control)
    assert memory["controls"]["w"].flatten().tolist() == pytest.approx([1.5, 0, -2.5, 7])
    assert state["controls"]["w"].flatten().tolist() == [1, 0, 0, 7]  # what was given stays as it is


def test_feddyn_by_hand() -> None:
    baseline = make_baseline("feddyn", alpha=0.5, weighting="uniform")
    assert baseline.pull == 0.5
    state = {"drift": {"w": vector(0.1)}, "gradients": column(0.2, 0, 0, 7)}
    # g: 0.2 + 0.5·0.2, 0 − 0.5·0.4; h: 0.1 − 0.5·(2/4)·(0.1); θ: 1.1 − 0.075/0.5
    new, memory = baseline.update(state, WEIGHTS, uploads(0, 2))
    assert memory["gradients"]["w"].flatten().tolist() == pytest.approx([0.3, 0, -0.2, 7])
    assert memory["drift"]["w"].item() == pytest.approx(0.075)
    assert new["w"].item() == pytest.approx(0.95)


def test_moon_by_hand() -> None:
    right, up = torch.tensor([[[1.0, 0.0]]]), torch.tensor([[[0.0, 3.0]]])
    # sim 1 with the global view, 0 with the last one, τ = ½: −log(e² / (e² + 1))
    assert contrasts(right, right, up, 0.5).item() == pytest.approx(log(1 + e**-2))
    assert contrasts(right, up, right, 0.5).item() == pytest.approx(log(1 + e**2))
    assert contrasts(right, up, up, 0.5).item() == pytest.approx(log(2))
    baseline = make_baseline("moon")
    state = baseline.init_clients(WEIGHTS, 3)
    assert state["previous"]["w"].flatten().tolist() == [1, 1, 1]
    new, memory = baseline.update(state, WEIGHTS, uploads(2, 0))
    assert memory["previous"]["w"].flatten().tolist() == pytest.approx([1.4, 1, 0.8])
    assert new["w"].item() == pytest.approx(1.25)


def test_rows_lie_in_memory_as_a_gpu_reads_weights() -> None:
    memory = {"conv": torch.rand(5, 4, 3, 2, 2), "bias": torch.rand(5, 4)}
    labels = torch.zeros(2, 3, dtype=torch.int64)
    found = rows_of(memory, Batch(None, labels, labels.float(), torch.tensor([[4] * 3, [1] * 3]), labels[:, 0]))
    assert all(torch.equal(found[name], memory[name][[4, 1]]) for name in memory)
    assert found["conv"].permute(0, 1, 3, 4, 2).is_contiguous()


@pytest.mark.parametrize("name", ["scaffold", "feddyn", "moon"])
def test_a_resumed_run_remembers(name: str) -> None:
    options = (f"algorithm.name={name}", "algorithm.devices_per_round=7", "algorithm.local_epochs=1")
    states = small_states(*options)
    assert torch.equal(resumed(states[1], *options).weights, states[-1].weights)


class Normalised(nn.Sequential):
    def __init__(self) -> None:
        super().__init__(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Linear(4, 2))


def test_fedbn_is_fedavg_with_local_normalisation() -> None:
    random = np.random.default_rng(0)
    inputs, machines = random.normal(size=(96, 3)).astype("float32"), np.arange(96) % 4
    inputs += 3.0 * machines[:, None]
    federation = fedgs.Federation.from_arrays(inputs, (inputs[:, 0] > 4).astype(int), devices=machines, factories=2)
    short = {"rounds": 2, "batch_size": 8, "pick": 1, "device": "cpu", "seed": 1}
    plain = fedgs.classification(Normalised, 2)
    local = fedgs.classification(Normalised, 2, keep_local=["1.*"])
    ours = fedgs.run(plain, federation, algorithm="fedbn", **short)
    theirs = fedgs.run(local, federation, algorithm="fedavg", **short)
    other = fedgs.run(plain, federation, algorithm="fedavg", **short)
    assert [line["loss"] for line in ours.metrics] == [line["loss"] for line in theirs.metrics]
    assert [line["loss"] for line in ours.metrics] != [line["loss"] for line in other.metrics]
    with pytest.raises(ConfigError, match="this network has none"):
        fedgs.run(fedgs.classification(lambda: nn.Linear(3, 2), 2), federation, algorithm="fedbn", **short)


def test_what_does_not_fit_is_refused() -> None:
    for name in ("scaffold", "feddyn", "moon"):
        with pytest.raises(ConfigError, match="what each client remembers"):
            fedgs.FedGS(make_baseline(name))
        state = make_baseline(name).init_clients(WEIGHTS, 2)
        with pytest.raises(AlgorithmError, match=r"uploads\[1\]\.metrics\['device'\]"):
            make_baseline(name).update(state, WEIGHTS, uploads(0, 2))
    with pytest.raises(ConfigError, match="plain SGD steps"):
        small_states("algorithm.name=scaffold", "training.momentum=0.5")
