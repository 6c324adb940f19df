"""The top server's policy, with stations that are plain objects."""

import asyncio
import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import cast

import numpy as np
import pytest
import torch

from fedgs.algorithms.class_wise import FLOOR
from fedgs.config import load_settings
from fedgs.deploy.metrics import TopMetrics
from fedgs.deploy.round_messages import RoundOrder, RoundResult
from fedgs.deploy.run_spec import RunSpec, check_deployable
from fedgs.deploy.settings import TopSettings
from fedgs.deploy.station_list import StationList
from fedgs.deploy.top import Top, make_rule, pooled
from fedgs.deploy.top_state import TopState
from fedgs.deploy.transport import Transport, checked_result
from fedgs.errors import ConfigError, IdentityError, PeerError, TrainingError
from fedgs.settings import Settings
from fedgs.training.optimizers import Optimizer

SETTINGS = load_settings(
    overrides=["training.rounds=2", "training.iterations=3", "federation.devices=10", "federation.factories=1"]
)


class Numbered:
    """A station with a number."""

    factory = 0

    async def find(self) -> int:
        return self.factory


class Fake(Numbered):
    """A station that moves the weights by a fixed amount; ``deeds`` happen before it answers, one a call."""

    def __init__(self, name: str, move: float, *deeds: Callable[[], object], iterations: int = 3) -> None:
        self.name, self.move, self.iterations = name, move, iterations
        self.deeds = list(deeds)
        self.orders: list[RoundOrder] = []

    async def run_round(self, order: RoundOrder) -> RoundResult:
        self.orders.append(order)
        if self.deeds:
            done = self.deeds.pop(0)()
            if asyncio.iscoroutine(done):
                await done
        announced = np.array([min(self.move, 1e9), 1.0]) / (min(self.move, 1e9) + 1.0)
        return RoundResult(
            order.run, order.round, order.shapes, order.weights + np.float32(self.move), self.iterations, 30, 0.5, 0.1,
            3, announced, {"late": 1},
        )  # fmt: skip


def gone() -> None:
    raise PeerError("nobody answers")


def renewing() -> None:
    raise IdentityError("cert.pem cannot be read")


async def hangs() -> None:
    await asyncio.sleep(3600)


def top(*stations: Numbered, settings: Settings = SETTINGS, target: bool = True, **policy: object) -> Top:
    run_spec = RunSpec(settings, "run", 2, json.dumps([[8, 8], "uint8"]), "0123456789abcdef", "last")
    wanted = np.array([0.5, 0.5]) if target else None
    for number, station in enumerate(stations):
        station.factory = number
    return Top(
        run_spec,
        StationList(cast(Sequence[Transport], stations)),
        TopSettings.model_validate(policy),
        TopMetrics(),
        None,
        wanted,
    )


def play(server: Top, rounds: int = 1, **weights: torch.Tensor) -> TopState:
    """Return the state after some rounds from these weights; names with a dot are written with two underscores."""

    async def run() -> TopState:
        state = await server.begin("run", {name.replace("__", "."): value for name, value in weights.items()})
        for _ in range(rounds):
            state = await server.advance(state)
        return state

    return asyncio.run(run())


def advance(server: Top, rounds: int = 1, name: str = "w") -> list[float]:
    state = play(server, rounds, **{name: torch.tensor([1.0, 2.0])})
    assert [line["round"] for line in state.metrics] == list(range(rounds + 1))
    return [float(value) for value in state.weights[name]]


def test_a_round_is_the_plain_mean_of_the_stations() -> None:
    assert advance(top(Fake("a", 1.0), Fake("b", 3.0))) == [3.0, 4.0]


def test_a_station_that_does_not_answer_is_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedgs.deploy.station_calls.AGAIN", 0.01)
    late = Fake("b", 3.0, gone, renewing, gone)
    assert advance(top(Fake("a", 1.0), late)) == [3.0, 4.0]
    assert len(late.orders) == 4


def test_survivors_are_averaged_once_there_are_enough() -> None:
    stations = Fake("a", 1.0), Fake("b", 3.0), Fake("c", 50.0, hangs)
    server = top(*stations, min_stations=2, linger=0.05)
    assert advance(server) == [3.0, 4.0]
    assert server.metrics.missing._value.get() == 1


def test_those_who_come_soon_after_are_in() -> None:
    async def soon() -> None:
        await asyncio.sleep(0.05)

    assert advance(top(Fake("a", 1.0), Fake("b", 3.0, soon), min_stations=1, linger=10)) == [3.0, 4.0]


def test_a_station_where_nobody_trained_is_left_out_and_a_round_of_nobody_is_not_counted() -> None:
    idle = Fake("b", 9.0, iterations=0)
    assert advance(top(Fake("a", 1.0), idle)) == [2.0, 3.0]
    waking = Fake("a", 1.0, iterations=0)
    waking.deeds = [lambda: None, lambda: setattr(waking, "iterations", 3)]
    assert advance(top(waking)) == [2.0, 3.0]
    assert [order.round for order in waking.orders] == [1, 1]


def test_the_target_is_estimated_from_what_all_devices_announced() -> None:
    """Three devices each: (1/2, 1/2) and (3/4, 1/4) give (5/8, 3/8), from the roll call on."""
    stations = Fake("a", 1.0), Fake("b", 3.0)
    advance(top(*stations, target=False), rounds=2)
    assert [order.round for order in stations[0].orders] == [0, 1, 2]
    assert [len(order.rates) for order in stations[0].orders] == [0, 3, 3]
    assert stations[0].orders[0].wanted.target.tolist() == []
    assert stations[1].orders[1].wanted.target.tolist() == [0.625, 0.375]
    assert [order.first_iteration for order in stations[0].orders] == [0, 0, 3]
    assert [order.wanted.factory for order in (stations[0].orders[0], stations[1].orders[0])] == [0, 1]
    assert pooled({}) is None


def test_calibration_clipping_and_the_optimiser_go_into_every_order() -> None:
    station = Fake("a", 1.0)
    overrides = ["training.calibration=0.5", "training.clip=2.0", "training.rounds=1", "training.momentum=0.5"]
    advance(top(station, settings=load_settings(overrides=overrides)), name="last.bias")
    assert [(order.calibration, order.clip, order.head) for order in station.orders] == [(0.5, 2.0, "last")]
    assert [order.optimizer for order in station.orders] == [Optimizer("momentum", 0.5)]


class Seeing(Numbered):
    """A station whose weights are all ``value`` after the round, and whose teams have seen some classes."""

    def __init__(self, name: str, value: float, *seen: int) -> None:
        self.name, self.value, self.seen = name, value, np.array(seen)
        self.orders: list[RoundOrder] = []

    async def run_round(self, order: RoundOrder) -> RoundResult:
        self.orders.append(order)
        samples = int(self.seen.sum())
        return checked_result(
            RoundResult(
                order.run, order.round, order.shapes, np.full(order.shapes.size, self.value, np.float32),
                1 if samples else 0, samples, 0.5, 0.1, 3, np.empty(0), seen=self.seen,
            ),
            order, self.name,
        )  # fmt: skip


BY_CLASS = load_settings(overrides=["training.rounds=1", "selection.pick=10", "server.class_wise=true"])


def test_the_classifier_is_averaged_by_who_saw_a_class_and_the_rest_is_the_plain_mean() -> None:
    """Weights of 0, 10 and 90 after the round; the last one did not train and has no say.

    Shares of the first class ¾ and ¼, of the second ¼ and ¾, their means ½: π = (¾ + ε/2) / (1 + ε) and the like.
    """
    stations = Seeing("a", 0.0, 6, 2), Seeing("b", 10.0, 1, 3), Seeing("c", 90.0, 0, 0)
    server = top(*stations, settings=BY_CLASS)
    state = play(server, first=torch.ones(2, 2), last__weight=torch.ones(2, 3), last__bias=torch.ones(2))
    assert [order.class_wise for order in stations[0].orders] == [True]
    rows = [10 * (0.25 + FLOOR / 2) / (1 + FLOOR), 10 * (0.75 + FLOOR / 2) / (1 + FLOOR)]
    assert list(state.weights) == ["first", "last.weight", "last.bias"]
    torch.testing.assert_close(state.weights["first"], torch.full((2, 2), 5.0))
    torch.testing.assert_close(state.weights["last.bias"], torch.tensor(rows))
    torch.testing.assert_close(state.weights["last.weight"], torch.tensor(rows)[:, None].expand(2, 3))


def test_by_class_needs_a_dense_last_layer_and_says_so_before_anybody_is_asked() -> None:
    station = Fake("a", 1.0)
    reason = r"last layer that is dense with a bias a class; .*set server\.class_wise=false"
    with pytest.raises(ConfigError, match=reason) as error:
        advance(top(station, settings=BY_CLASS, target=False))
    assert "\n" not in str(error.value)
    assert not station.orders


def test_a_station_that_says_nothing_of_classes_is_asked_again_and_never_averaged(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("fedgs.deploy.station_calls.AGAIN", 0.01)
    silent = Seeing("b", 10.0, 1, 3)
    server = top(Seeing("a", 0.0, 6, 2), silent, settings=BY_CLASS)
    told = silent.run_round

    async def old(order: RoundOrder) -> RoundResult:
        result = await told(order)
        if len(silent.orders) < 3:
            return checked_result(replace(result, seen=np.empty(0, np.int64)), order, silent.name)
        return result

    monkeypatch.setattr(silent, "run_round", old)
    with caplog.at_level("WARNING", logger="fedgs"):
        state = play(server, last__weight=torch.ones(2, 3), last__bias=torch.ones(2))
    assert len(silent.orders) == 3
    assert state.metrics[-1]["stations"] == 2
    (reason,) = [vars(record)["reason"] for record in caplog.records]
    assert reason.startswith("station b: does not say which classes it trained on")


def test_a_server_rule_takes_the_means_place() -> None:
    """FedAvgM: momentum 0.5 on updates of 2 each: 1 + 2 = 3, then 3 + (0.5·2 + 2) = 6."""
    options = ["server.rule=fedavgm", "server.options.beta=0.5", "server.options.server_lr=1.0"]
    settings = load_settings(overrides=["training.rounds=2", *options])
    assert advance(top(Fake("a", 1.0), Fake("b", 3.0), settings=settings), 2)[0] == pytest.approx(6.0)


def test_weights_beyond_measure_end_the_run() -> None:
    with pytest.raises(TrainingError, match="round 1"):
        advance(top(Fake("a", float("inf"))))


def test_settings_only_a_simulation_can_follow_are_refused() -> None:
    check_deployable(SETTINGS)
    check_deployable(load_settings(overrides=["training.momentum=0.5"]))  # a station's own optimiser
    check_deployable(load_settings(preset="quick"))  # its baseline is another run
    for override in ("eval.ema=0.5", "dynamics.leave=0.1", "streams.mode=fresh", "algorithm.name=fedavg"):
        with pytest.raises(ConfigError, match="is for simulations"):
            check_deployable(load_settings(overrides=[override]))
    with pytest.raises(ConfigError, match=r"coverage\.share='data' depends on how much data a device has"):
        check_deployable(load_settings(overrides=["selection.coverage.weight=0.3"]))
    with pytest.raises(ConfigError, match="use 'random'"):
        check_deployable(load_settings(overrides=["selection.solver=random-by-data"]))
    with pytest.raises(ConfigError, match="which stations do not keep"):
        check_deployable(load_settings(overrides=["selection.solver=oort"]))
    with pytest.raises(ConfigError, match="--min-stations 2 of 1 stations"):
        top(Fake("a", 1.0), min_stations=2)
    with pytest.raises(ConfigError, match="needs training accuracies"):
        make_rule(load_settings(overrides=["server.rule=ida+intrac"]).server)
