"""Strategies of Flower as server rules: hand-worked numbers; the oracle is a strategy that was never taken apart."""

from typing import Any

import numpy as np
import pytest
import torch

pytest.importorskip("flwr")

from flwr.app import Array, ArrayRecord, Message, MetricRecord, RecordDict
from flwr.serverapp import strategy as flower

from fedgs.algorithms import Upload, join_state, split_state
from fedgs.errors import AlgorithmError, ConfigError
from fedgs.flower import strategies
from fedgs.flower.strategies import STRATEGIES, StrategyRule, UniformMean, flower_rule
from fedgs.settings import ServerSettings

START = {"w": torch.tensor([1.0, 2.0]), "b": torch.tensor([[0.5]])}


def uploads(*values: float, samples: int = 1) -> list[Upload]:
    return [Upload({name: torch.full_like(one, value) for name, one in START.items()}, samples) for value in values]


def rule(name: str, **options: Any) -> Any:
    return flower_rule(ServerSettings(rule=name, options=options))


def test_the_mean_counts_every_station_alike() -> None:
    weights, state = rule("mean").update({"round": 0}, START, [*uploads(1.0, samples=999), *uploads(4.0)])
    assert weights["w"].tolist() == [2.5, 2.5]
    assert weights["b"].tolist() == [[2.5]]
    assert weights["w"].dtype == torch.float32
    assert state == {"round": 1}


def reply(value: float, **metrics: float) -> Message:
    asked = Message(RecordDict(), dst_node_id=1, message_type="train")
    content = RecordDict(
        {"arrays": ArrayRecord({"w": Array(np.full(2, value))}), "metrics": MetricRecord(metrics)}  # type: ignore[arg-type]
    )
    return Message(content, reply_to=asked)


def test_the_strategy_alone_does_not_believe_weights_and_leaves_out_who_did_not_train() -> None:
    mean = UniformMean(weighted_by_key="weight")
    arrays, metrics = mean.aggregate_train(
        1,
        [reply(1.0, weight=1e9, iterations=5, loss=1.0), reply(4.0, weight=0.1, iterations=5, loss=3.0),
         reply(50.0, weight=1.0, iterations=0, loss=0.0)],
    )  # fmt: skip
    assert arrays is not None
    assert metrics is not None
    assert arrays["w"].numpy().tolist() == [2.5, 2.5]
    assert metrics["loss"] == 2.0


def test_adam_by_hand() -> None:
    """Flower's FedAdam, η=0.1, β₁=0.9, β₂=0.99, τ=1e-3: Δ=1, m=0.1, v=0.01, η'=η√(1−β₂²)/(1−β₁²)."""
    start = {"w": torch.tensor([1.0])}
    weights, state = rule("FedAdam", eta=0.1, tau=1e-3).update(
        {"round": 0}, start, [Upload({"w": torch.tensor([2.0])}, 1)]
    )
    step = 0.1 * np.sqrt(1 - 0.99**2) / (1 - 0.9**2) * 0.1 / (0.1 + 1e-3)
    assert weights["w"].item() == pytest.approx(1 + step, rel=1e-6)
    assert state["m_t"]["w"].item() == pytest.approx(0.1)
    assert state["v_t"]["w"].item() == pytest.approx(0.01)


OPTIONS: dict[str, dict[str, Any]] = {
    "FedAvgM": {"server_momentum": 0.9, "server_learning_rate": 0.5},
    "FedAdam": {"eta": 0.03},
    "Krum": {"num_malicious_nodes": 1},
    "MultiKrum": {"num_malicious_nodes": 1, "num_nodes_to_select": 3},
    "Bulyan": {"num_malicious_nodes": 0},
}


@pytest.mark.parametrize("name", STRATEGIES)
def test_three_rounds_through_checkpoints_equal_one_strategy_that_lives_on(name: str) -> None:
    options = OPTIONS.get(name, {})
    taken_apart = rule(name, **options)
    alive = getattr(flower, name)(min_train_nodes=1, min_available_nodes=1, weighted_by_key="weight", **options)
    living = StrategyRule(lambda: alive)
    weights = expected = START
    state = oracle = taken_apart.init(START)
    draws = np.random.default_rng(0)
    for _ in range(1 if name == "Bulyan" else 3):  # Bulyan remembers nothing, and collects garbage at every array
        answers = [
            Upload(
                {key: torch.from_numpy(draws.normal(size=one.shape).astype(np.float32)) for key, one in START.items()},
                1,
            )
            for _ in range(5)
        ]
        tensors, numbers = split_state(state)
        weights, state = taken_apart.update(join_state(tensors, numbers), weights, answers)
        expected, oracle = living.update({"round": oracle["round"]}, expected, answers)
        for key in START:
            torch.testing.assert_close(weights[key], expected[key], rtol=0, atol=0)


def test_the_order_of_stations_is_kept_although_flower_draws_them() -> None:
    class First(flower.FedAvg):
        def aggregate_train(self, server_round: int, replies: Any) -> Any:
            return next(iter(replies)).content["arrays"], None

    weights, _ = StrategyRule(lambda: First(**strategies._EVERYBODY)).update(
        {"round": 0}, START, uploads(1, 2, 3, 4, 5, 6)
    )
    assert weights["b"].item() == 1.0


def test_fedgs_own_rules_work_too() -> None:
    assert type(rule("fedadam")).__module__ == "fedgs.algorithms.fedopt"


class Refuses(flower.FedAvg):
    def aggregate_train(self, server_round: int, replies: Any) -> Any:
        return None, None


def test_a_strategy_of_ones_own_and_one_that_gives_nothing() -> None:
    own = rule(f"{__name__}:Refuses")
    with pytest.raises(AlgorithmError, match="Refuses gave no weights for 2 stations"):
        own.update(own.init(START), START, uploads(1, 2))


@pytest.mark.parametrize(
    ("name", "options", "reason"),
    [
        ("mean", {"eta": 1.0}, "has no meaning with server.rule='mean'"),
        ("FedAdm", {}, "did you mean 'FedAdam'?"),
        ("FedProx", {}, "no strategy that can run over stations"),
        ("FedAdam", {"etta": 1.0}, "unexpected keyword argument 'etta'"),
        ("FedTrimmedAvg", {"beta": 0.7}, "must be in the range"),
        ("nowhere:Class", {}, "cannot be imported"),
        ("fedadam", {"etta": 1.0}, "server.rule='fedadam'"),
    ],
)
def test_a_rule_that_cannot_be_is_one_line(name: str, options: dict[str, Any], reason: str) -> None:
    with pytest.raises(ConfigError) as caught:
        rule(name, **options)
    assert reason in str(caught.value)
    assert "\n" not in str(caught.value)
