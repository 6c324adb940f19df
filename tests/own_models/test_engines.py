"""Every engine equals the device-by-device oracle, for eight networks as users bring them and four algorithms."""

from functools import cache
from typing import Any

import numpy as np
import pytest
import torch

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
from tests.own_models.networks import CASES, Case

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
    rounds, settings = made.bind(context), context.settings
    if algorithm == "fedgs":
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
