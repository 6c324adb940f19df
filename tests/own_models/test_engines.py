"""Every engine equals the device-by-device oracle, for eight networks as users bring them and four algorithms."""

from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import fedgs
from fedgs.algorithms.algorithm import Context
from fedgs.algorithms.fedgs import StationRounds
from fedgs.algorithms.run_state import RunState
from fedgs.errors import ConfigError
from fedgs.simulation.components import resolve
from fedgs.simulation.participants import ParticipantPlan
from fedgs.simulation.process_group import ProcessGroup
from fedgs.simulation.run import settings_for
from fedgs.simulation.selection_plan import SelectionPlan
from fedgs.tasks.bind import BoundTask, bind
from fedgs.training.clients import Sequential
from fedgs.training.engine import Setup, why_not_fused
from fedgs.training.fused import FactoryThreads
from fedgs.training.graph import GraphEngine
from fedgs.training.layout import Layout
from fedgs.training.per_device import PerDeviceEngine
from fedgs.training.slots import SlotTraining
from fedgs.training.store import SampleStore
from tests.own_models.networks import CASES, CLASSES, Case

BATCH_NORM = "1-D CNN with BatchNorm"
GPU = pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"))
STATION_ENGINES = {
    "clients": lambda setup: FactoryThreads(setup, union=False),
    "fused": lambda setup: FactoryThreads(setup, union=True),
    "graph": lambda setup: GraphEngine(setup, union=True),
    "clients in a graph": lambda setup: GraphEngine(setup, union=False),
}
CLIENT_ENGINES = {
    "threads": lambda setup: Sequential(setup, threads=3),
    "slots": lambda setup: SlotTraining(setup, slots=3),
}
ROUNDS = 2


def settings_of(case: Case, algorithm: str, **training: Any) -> Any:
    values = {
        "training": {"rounds": ROUNDS, "iterations": 3, "batch_size": 4, "learning_rate": 0.05, "precision": "float32"}
        | training,
        "algorithm": {"name": algorithm, "local_epochs": 2}
        | ({} if algorithm == "fedgs" else {"devices_per_round": 5}),
        "selection": {"pick": 2, "presample": 1},
    }
    return settings_for(case.federation(), values, {})


@cache
def bound(name: str) -> BoundTask:
    return bind(CASES[name].task, CASES[name].federation(), 0)


def context_of(name: str, algorithm: str, device: str = "cpu", **training: Any) -> tuple[Context, Any]:
    """Return what an algorithm is given, and the algorithm."""
    settings, components = resolve(settings_of(CASES[name], algorithm, **training), task=CASES[name].task)
    store = SampleStore(bound(name), torch.device(device))
    return Context(settings, bound(name), store, ProcessGroup()), components.algorithm


def rounds_with(name: str, algorithm: str, engine: str | None, device: str, **training: Any) -> Any:
    """Return what runs the rounds, with this engine in the place of its own; None: the oracle."""
    context, made = context_of(name, algorithm, device, **training)
    return with_engine(made.bind(context), engine)


def with_engine(rounds: Any, engine: str | None) -> Any:
    """Put an engine in the place of its own; None: the oracle."""
    settings = rounds.settings
    if isinstance(rounds, StationRounds):
        setup = Setup(rounds.network, rounds.store, settings.training, rounds.objective, rounds.traits, settings.seed)
        rounds.engine = PerDeviceEngine(setup) if engine is None else STATION_ENGINES[engine](setup)
    else:
        setup = rounds.trainer.setup
        rounds.trainer = Sequential(setup, threads=1) if engine is None else CLIENT_ENGINES[engine](setup)
    return rounds


def trained(rounds: Any) -> tuple[RunState, list[float]]:
    """Return the state after some rounds, and the training losses."""
    federation, settings = rounds.task.federation, rounds.settings
    plan: Any
    if isinstance(rounds, StationRounds):
        plan = SelectionPlan(federation, settings, smallest_batch=rounds.smallest_batch)
    else:
        plan = ParticipantPlan(federation, settings, smallest_batch=rounds.smallest_batch)
    weights = rounds.first_weights(None)
    state = RunState(0, weights, plan.state_dict(), rounds.begin(weights))
    losses = []
    for number in range(1, ROUNDS + 1):
        outcome = rounds.run_round(state, plan.next_round(), None)
        state = RunState(number, outcome.weights, {}, outcome.server, outcome.stations)
        losses.append(outcome.line["train_loss"])
    rounds.close()
    return state, losses


@cache
def oracle(name: str, algorithm: str, *training: tuple[str, Any]) -> tuple[RunState, list[float]]:
    return trained(rounds_with(name, algorithm, None, "cpu", **dict(training)))


def agree(name: str, algorithm: str, engine: str, device: str, *training: tuple[str, Any]) -> None:
    expected, expected_losses = oracle(name, algorithm, *training)
    found, losses = trained(rounds_with(name, algorithm, engine, device, **dict(training)))
    scale = 1.0 if device == "cpu" else 10.0
    torch.testing.assert_close(found.weights.cpu(), expected.weights, rtol=scale * 1e-4, atol=scale * 5e-6)
    np.testing.assert_allclose(losses, expected_losses, rtol=scale * 1e-4)
    for entry, value in expected.stations.items():
        torch.testing.assert_close(found.stations[entry].cpu(), value, rtol=scale * 1e-3, atol=scale * 1e-4)


def engines_for(name: str, algorithm: str) -> list[str]:
    """Return the engines that can train a network; a team's union batch is not for batch normalisation, see below."""
    if algorithm != "fedgs":
        return list(CLIENT_ENGINES)
    return [engine for engine in STATION_ENGINES if name != BATCH_NORM or "clients" in engine]


@pytest.mark.parametrize("device", ["cpu", GPU])
@pytest.mark.parametrize("algorithm", ["fedgs", "fedavg", "fedprox", "fedadam"])
@pytest.mark.parametrize("name", CASES)
def test_every_engine_equals_the_oracle(name: str, algorithm: str, device: str) -> None:
    first = bound(name).module
    (state, _), layout = oracle(name, algorithm), Layout.of(first)
    assert not torch.allclose(state.weights, layout.of_module(first), atol=1e-4)  # something was learnt
    for engine in engines_for(name, algorithm):
        agree(name, algorithm, engine, device)


@pytest.mark.parametrize("device", ["cpu", GPU])
@pytest.mark.parametrize(
    "training", [("optimizer", "adam"), ("optimizer", "adamw"), ("optimizer", "momentum"), ("clip", 0.1)]
)
@pytest.mark.parametrize("name", ["mlp on tables", BATCH_NORM])
def test_optimisers_and_clipping_in_every_engine(name: str, training: tuple[str, Any], device: str) -> None:
    for algorithm in ("fedgs", "fedprox"):
        for engine in engines_for(name, algorithm):
            agree(name, algorithm, engine, device, training, ("weight_decay", 0.1))


@pytest.mark.parametrize("device", ["cpu", GPU])
@pytest.mark.parametrize("algorithm", ["scaffold", "feddyn", "moon"])
def test_clients_that_remember_in_every_engine(algorithm: str, device: str) -> None:
    for engine in CLIENT_ENGINES:
        agree(BATCH_NORM, algorithm, engine, device)


@pytest.mark.parametrize("name", CASES)
def test_the_engine_that_is_chosen_is_fused_wherever_that_is_exact(name: str) -> None:
    context, algorithm = context_of(name, "fedgs")
    rounds = algorithm.bind(context)
    assert isinstance(rounds.engine, FactoryThreads)
    assert bool(why_not_fused(rounds.engine.setup)) == (name == BATCH_NORM)
    if name == BATCH_NORM:
        context, algorithm = context_of(name, "fedgs", engine="fused")
        words = r"engine='fused' .* layer 'body.1' normalises over the batch; use 'auto'"
        with pytest.raises(ConfigError, match=words):
            algorithm.bind(context)


@pytest.mark.parametrize("device", ["cpu", GPU])
def test_a_round_of_few_steps(device: str) -> None:
    """Fewer than the steps that come before the capture of a graph."""
    agree("mlp on tables", "fedavg", "slots", device, ("batch_size", 32))


def test_short_batches_are_filled_up_with_samples_of_the_client() -> None:
    """The loss of sample 0, which nobody trains on, is NaN."""
    draws = np.random.default_rng(0)
    values = draws.random(60)
    values[0] = -1.0
    federation = fedgs.Federation.from_arrays(
        draws.normal(size=(60, 6)), values, devices=np.arange(60) % 8, factories=2, test=np.arange(60) < 8
    )
    task = bind(fedgs.Task(lambda: nn.Linear(6, 1), loss=lambda o, t: (o[:, 0] - t.sqrt()) ** 2), federation)
    settings = settings_of(CASES["mlp on tables"], "fedavg")
    for engine in CLIENT_ENGINES:
        rounds = fedgs.Baseline().bind(Context(settings, task, SampleStore(task, torch.device("cpu")), ProcessGroup()))
        assert np.isfinite(trained(with_engine(rounds, engine))[1]).all()


class Growing(fedgs.Baseline):
    """The loss of a later round counts more: its objective reads a number of the server's memory."""

    def init(self, weights: Any) -> Any:
        return {"round": 1}

    def update(self, state: Any, weights: Any, uploads: Any) -> Any:
        return super().update({}, weights, uploads)[0], {"round": state["round"] + 1}

    def objective(self, network: Any, weights: Any, sent: Any, batch: Any) -> Any:
        loss, outputs = super().objective(network, weights, sent, batch)
        return loss * sent.memory["round"], outputs


@pytest.mark.parametrize("device", ["cpu", GPU])
def test_an_objective_reads_the_numbers_of_its_round(device: str) -> None:
    found = []
    for engine in (None, *CLIENT_ENGINES):
        context, _ = context_of("mlp on tables", "fedavg", device if engine else "cpu")
        found.append(trained(with_engine(Growing().bind(context), engine))[0].weights.cpu())
    for weights in found[1:]:
        torch.testing.assert_close(weights, found[0], rtol=1e-3, atol=1e-5)
    assert not torch.allclose(found[0], oracle("mlp on tables", "fedavg")[0].weights, atol=1e-4)


class Odd(nn.Module):
    """Weights that share a gradient, a layer that every second step leaves out, and a counter from below zero."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 4, 3, bias=False)  # of a bias the gradient is zero but for rounding
        self.norm, self.now_and_then = nn.BatchNorm2d(4), nn.Linear(4, 4)
        self.one, self.other = (nn.Parameter(torch.randn(CLASSES, 4)) for _ in range(2))
        self.count: Tensor
        self.register_buffer("count", torch.tensor(-9))

    def forward(self, images: Tensor) -> Tensor:
        hidden = torch.tanh(self.norm(self.stem(images))).mean((2, 3))
        if self.training:
            self.count += 1
        if int(self.count) % 2:
            hidden = hidden + torch.tanh(self.now_and_then(hidden))
        return nn.functional.linear(hidden, self.one + self.other)


@pytest.mark.parametrize("device", ["cpu", GPU])
@pytest.mark.parametrize("optimizer", ["sgd", "momentum", "adam"])
def test_odd_networks_and_objectives_in_every_engine(optimizer: str, device: str) -> None:
    case = Case(Odd, (8, 8, 3), "uint8")
    task = bind(case.task, case.federation(), 0)
    for algorithm, engines in (
        (fedgs.FedGS(objective=fedgs.FedMMD(gamma=5.0, kernel="adaptive5", floor=0.0)), STATION_ENGINES),
        (fedgs.FedGS(objective=fedgs.FedProx(mu=2.0)), STATION_ENGINES),
        (fedgs.FedProx(mu=2.0), CLIENT_ENGINES),
        (fedgs.Baseline(), CLIENT_ENGINES),
    ):
        found = []
        for engine in (None, *(one for one in engines if one not in ("fused", "graph"))):
            settings = settings_of(
                case, "fedavg" if engines is CLIENT_ENGINES else "fedgs", optimizer=optimizer, epsilon=1e-3
            )
            store = SampleStore(task, torch.device(device if engine else "cpu"))
            rounds: Any = algorithm.bind(Context(settings, task, store, ProcessGroup()))
            with_engine(rounds, engine)
            found.append(trained(rounds)[0].weights.cpu())
        for weights in found[1:]:
            scale = 1.0 if device == "cpu" else 10.0
            torch.testing.assert_close(weights, found[0], rtol=scale * 1e-4, atol=scale * 1e-5)
