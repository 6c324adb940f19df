"""SCAFFOLD, FedDyn, MOON and FedBN: updates by hand, and what they refuse."""

import copy
from collections.abc import Callable
from math import e, log

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

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
        ("samples", 1.0, 1.25, -0.375),  # if asked for: mean change 0.25·0.5 − 0.75·2.5 = −1.75: 0.5 − 0.875
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


@pytest.mark.parametrize(
    ("name", "server", "clients"), [("scaffold", "control", "controls"), ("feddyn", "drift", "gradients")]
)
def test_what_the_server_remembers_is_the_mean_of_what_clients_remember(name: str, server: str, clients: str) -> None:
    """Whoever takes part, with however many samples: the papers' proofs need it."""
    baseline = make_baseline(name)
    state, draws = baseline.init_clients(WEIGHTS, 6), np.random.default_rng(0)
    for _ in range(5):
        given = [
            Upload(
                {"w": vector(float(draws.normal()))},
                int(draws.integers(1, 90)),
                {"device": device, "steps": 3, "rate": 0.1},
            )
            for device in draws.permutation(6)[:2].tolist()
        ]
        _, state = baseline.update(state, WEIGHTS, given)
    assert state[server]["w"].item() == pytest.approx(state[clients]["w"].mean().item())
    assert abs(state[server]["w"].item()) > 1e-3


@pytest.mark.parametrize("name", ["scaffold", "feddyn"])
def test_clients_with_a_memory_come_to_rest_at_the_optimum(name: str) -> None:
    """Clients of different sizes and losses ½ (w − a_k)², two of five a round: FedAvg stays beside the mean of a_k."""
    optima, sizes = np.array([1.0, -2.0, 4.0, 0.5, 9.0]), (10, 90, 40, 5, 70)
    baseline, draws = make_baseline(name), np.random.default_rng(0)
    weights, rate, steps = {"w": vector(0.0)}, 0.1, 20
    state = baseline.init_clients(weights, 5)
    for _ in range(3000):
        given = []
        for device in draws.permutation(5)[:2].tolist():
            start = own = weights["w"].item()
            for _ in range(steps):
                gradient = own - optima[device]
                if name == "scaffold":
                    gradient += state["control"]["w"].item() - state["controls"]["w"][device].item()
                else:
                    gradient += baseline.pull * (own - start) - state["gradients"]["w"][device].item()
                own -= rate * gradient
            given.append(Upload({"w": vector(own)}, sizes[device], {"device": device, "steps": steps, "rate": rate}))
        weights, state = baseline.update(state, weights, given)
    assert weights["w"].item() == pytest.approx(optima.mean(), abs=1e-3)


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


@pytest.mark.parametrize("norm", [nn.BatchNorm1d, nn.LayerNorm, lambda size: nn.GroupNorm(2, size)])
def test_fedbn_by_hand(norm: Callable[[int], nn.Module]) -> None:
    """One step of two clients: a mean by data of all but the normalisation, with which each is tested as its own."""

    def network() -> nn.Module:
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(3, 4), norm(4), nn.ReLU(), nn.Linear(4, 2))

    random = np.random.default_rng(0)
    inputs, machines = random.normal(size=(40, 3)).astype("float32"), (np.arange(40) >= 25).astype(int)
    labels = (inputs[:, 0] > 0).astype(int)
    inputs += 3.0 * machines[:, None]
    federation = fedgs.Federation.from_arrays(inputs, labels, devices=machines, factories=1)
    settings = {"algorithm": {"local_epochs": 1, "devices_per_round": 2}, "training": {"learning_rate": 0.5}}
    task, sizes = fedgs.classification(network, 2), {"rounds": 1, "batch_size": 64, "pick": 2}
    run = fedgs.run(task, federation, settings=settings, algorithm="fedbn", device="cpu", **sizes)
    clients, counts = [], [len(federation.train_indices(device)) for device in (0, 1)]
    for device in (0, 1):
        client = network().train()
        own = federation.train_indices(device)
        loss = cross_entropy(
            client(torch.from_numpy(federation.inputs[own])), torch.from_numpy(federation.labels[own]).long()
        )
        loss.backward()
        torch.optim.SGD(client.parameters(), lr=0.5).step()
        clients.append(client.eval())
    states = [copy.deepcopy(client.state_dict()) for client in clients]
    shares = [count / sum(counts) for count in counts]
    losses = []
    for device, client in enumerate(clients):
        mean = {name: shares[0] * states[0][name] + shares[1] * states[1][name] for name in states[0]}
        client.load_state_dict(
            {name: own if name.startswith("1.") else mean[name] for name, own in states[device].items()}
        )
        tested = federation.test_indices(device)
        outputs = client(torch.from_numpy(federation.inputs[tested]))
        losses += cross_entropy(outputs, torch.from_numpy(federation.labels[tested]).long(), reduction="none").tolist()
    assert run.metrics[-1]["loss"] == pytest.approx(np.mean(losses), rel=1e-4)


def test_what_does_not_fit_is_refused() -> None:
    for name in ("scaffold", "feddyn", "moon"):
        with pytest.raises(ConfigError, match="what each client remembers"):
            fedgs.FedGS(make_baseline(name))
        state = make_baseline(name).init_clients(WEIGHTS, 2)
        with pytest.raises(AlgorithmError, match=r"uploads\[1\]\.metrics\['device'\]"):
            make_baseline(name).update(state, WEIGHTS, uploads(0, 2))
    for wrong in ("training.momentum=0.5", "training.clip=0.1"):
        with pytest.raises(ConfigError, match="plain SGD steps"):
            small_states("algorithm.name=scaffold", wrong)
    for which in ("algorithm.name=moon", "algorithm.name=fedmmd", "algorithm.objective=fedmmd"):
        with pytest.raises(ConfigError, match="keep_local there is no whole one"):
            small_states(which, "task.keep_local=['dense1.*']")
