"""Every engine equals the device-by-device oracle, for eight networks as users bring them and four algorithms."""

from functools import cache
from typing import Any

import numpy as np
import pytest
import torch

from fedgs.algorithms.algorithm import Context
from fedgs.algorithms.client_server import ClientServer
from fedgs.algorithms.fedgs import StationRounds
from fedgs.algorithms.run_state import RunState
from fedgs.errors import ConfigError
from fedgs.simulation.components import resolve
from fedgs.simulation.participants import ParticipantPlan
from fedgs.simulation.process_group import ProcessGroup
from fedgs.simulation.run import settings_for
from fedgs.simulation.selection_plan import SelectionPlan
from fedgs.tasks.bind import BoundTask, bind, sample_inputs
from fedgs.training.clients import ClientSetup
from fedgs.training.engine import Setup, why_not_fused
from fedgs.training.fused import FactoryThreads
from fedgs.training.graph import GraphEngine
from fedgs.training.per_device import PerDeviceEngine
from fedgs.training.probe import probe
from fedgs.training.sequential import Sequential
from fedgs.training.slots import SlotTraining
from fedgs.training.store import SampleStore
from tests.own_models.networks import CASES, Case

ALGORITHMS = ("fedgs", "fedavg", "fedprox", "fedadam")
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


def rounds_with(name: str, algorithm: str, engine: str | None, device: str, **training: Any) -> Any:
    """Return what runs the rounds, with this engine in the place of its own; None: the oracle."""
    settings = settings_of(CASES[name], algorithm, **training)
    settings, components = resolve(settings, task=CASES[name].task)
    task = bound(name)
    store = SampleStore(task, torch.device(device))
    rounds: Any = components.algorithm.bind(Context(settings, task, store, ProcessGroup()))
    traits = probe(task, *sample_inputs(task, 4))
    if isinstance(rounds, StationRounds):
        setup = Setup(rounds.network, store, settings.training, rounds.objective, traits, settings.seed)
        rounds.engine = PerDeviceEngine(setup) if engine is None else STATION_ENGINES[engine](setup)
    else:
        assert isinstance(rounds, ClientServer)
        client = ClientSetup(rounds.network, rounds.baseline, store, rounds.client_ids, settings.training, traits)
        rounds.trainer = Sequential(client, threads=1) if engine is None else CLIENT_ENGINES[engine](client)
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


@pytest.mark.parametrize("device", ["cpu", GPU])
@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("name", CASES)
def test_every_engine_equals_the_oracle(name: str, algorithm: str, device: str) -> None:
    engines: Any = CLIENT_ENGINES if algorithm != "fedgs" else STATION_ENGINES
    first = rounds_with(name, algorithm, None, "cpu").first_weights(None)
    assert not torch.allclose(oracle(name, algorithm)[0].weights, first, atol=1e-4)  # something was learnt
    for engine in engines:
        if engine in ("fused", "graph") and bound(name).module.state_dict().keys() != _trained_names(name):
            continue  # batch normalisation: refused, see below
        agree(name, algorithm, engine, device)


def _trained_names(name: str) -> set[str]:
    module = bound(name).module
    return {key for key, _ in module.named_parameters()}


@pytest.mark.parametrize("device", ["cpu", GPU])
@pytest.mark.parametrize(
    "training", [("optimizer", "adam"), ("optimizer", "adamw"), ("optimizer", "momentum"), ("clip", 0.1)]
)
@pytest.mark.parametrize("name", ["mlp on tables", "1-D CNN with BatchNorm"])
def test_optimisers_and_clipping_in_every_engine(name: str, training: tuple[str, Any], device: str) -> None:
    decay = ("weight_decay", 0.1)
    for engine in STATION_ENGINES:
        if engine in ("fused", "graph") and name != "mlp on tables":
            continue
        agree(name, "fedgs", engine, device, training, decay)
    for engine in CLIENT_ENGINES:
        agree(name, "fedprox", engine, device, training, decay)


def test_batch_normalisation_is_found_and_a_fused_engine_refused() -> None:
    name = "1-D CNN with BatchNorm"
    settings = settings_of(CASES[name], "fedgs", engine="fused")
    settings, components = resolve(settings, task=CASES[name].task)
    context = Context(settings, bound(name), SampleStore(bound(name), torch.device("cpu")), ProcessGroup())
    with pytest.raises(ConfigError, match=r"engine='fused' .* layer 'body.1' normalises over the batch; use 'auto'"):
        components.algorithm.bind(context)


@pytest.mark.parametrize("name", CASES)
def test_the_engine_that_is_chosen_is_fused_wherever_that_is_exact(name: str) -> None:
    settings = settings_of(CASES[name], "fedgs")
    settings, components = resolve(settings, task=CASES[name].task)
    rounds = components.algorithm.bind(
        Context(settings, bound(name), SampleStore(bound(name), torch.device("cpu")), ProcessGroup())
    )
    assert isinstance(rounds, StationRounds)
    mixes = name == "1-D CNN with BatchNorm"
    setup = Setup(
        rounds.network,
        rounds.store,
        settings.training,
        rounds.objective,
        probe(bound(name), *sample_inputs(bound(name), 4)),
    )
    assert bool(why_not_fused(setup)) == mixes
