"""Strategies of Flower over super nodes: the paper's uniform mean as one of them, and any other as a server rule.

    ω ← (1/M) Σ_m ω^m      (eq. external-aggr): Flower's FedAvg with every weight 1.0

A strategy keeps its moments in itself. :class:`StrategyRule` makes it a pure function from state to state: a new
strategy for every round gets what the one before remembered. So a run over Flower is checkpointed and resumed as any
other.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp import strategy as flower
from flwr.serverapp.exception import AppExitException
from torch import Tensor

from fedgs.algorithms import RULES, ServerRule, State, Upload, Weights
from fedgs.algorithms.upload import check_uploads
from fedgs.deploy.top import make_rule
from fedgs.errors import AlgorithmError, ConfigError, suggestion
from fedgs.flower.client import ARRAYS, METRICS, WEIGHT
from fedgs.imports import is_import_path, load_object
from fedgs.settings import ServerSettings

STRATEGIES = (
    "FedAvg", "FedAvgM", "FedAdagrad", "FedAdam", "FedYogi", "FedMedian", "FedTrimmedAvg", "Krum", "MultiKrum",
    "Bulyan",
)  # fmt: skip
"""Flower's strategies that ask no more of a client than its weights; the others want clients to train in their way."""
_LIST = "[]"  # marks an attribute that is a list of arrays, not a dict
_EVERYBODY = {"min_train_nodes": 1, "min_available_nodes": 1, "weighted_by_key": WEIGHT}


class UniformMean(flower.FedAvg):
    """FedAvg in which every super node that trained counts alike, whatever it says of its samples."""

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Average the replies with the weight 1.0 each."""
        counted = []
        for reply in replies:
            if not reply.has_error():
                records = list(reply.content.metric_records.values())
                if any(record.get("iterations") == 0 for record in records):
                    continue  # no device trained there
                for record in records:
                    record[self.weighted_by_key] = 1.0
            counted.append(reply)
        result: tuple[ArrayRecord | None, MetricRecord | None] = super().aggregate_train(server_round, counted)
        return result


class StrategyRule:
    """A strategy of Flower as a server rule: ``init`` and ``update`` without memory of their own."""

    def __init__(self, make: Callable[[], Any]) -> None:
        self._make = make

    def init(self, weights: Weights) -> State:
        """Return what the rule remembers before the first round."""
        return {"round": 0}

    def update(self, state: State, weights: Weights, uploads: Sequence[Upload]) -> tuple[dict[str, Tensor], State]:
        """Return the next weights and what to remember."""
        check_uploads(weights, uploads)
        done = state["round"]
        assert isinstance(done, int)
        strategy = self._make()
        _remind(strategy, state)
        asked = strategy.configure_train(done + 1, _record(weights), ConfigRecord(), _Answered(len(uploads)))
        by_node = {message.metadata.dst_node_id: message for message in asked}
        replies = [
            Message(_content(upload), reply_to=by_node[node])
            for node, upload in enumerate(uploads, start=1)
            if node in by_node  # a strategy may leave some out
        ]
        try:
            arrays, _ = strategy.aggregate_train(done + 1, replies)
        except (AppExitException, ValueError, KeyError, ArithmeticError) as error:
            raise AlgorithmError(f"{type(strategy).__name__}: {' '.join(str(error).split())}") from None
        if arrays is None or arrays.keys() != weights.keys():
            raise AlgorithmError(f"{type(strategy).__name__} gave no weights for {len(replies)} stations")
        return _tensors(arrays, weights), _remembered(strategy) | {"round": done + 1}


def flower_rule(settings: ServerSettings) -> ServerRule:
    """Return the server rule of a run over Flower.

    ``mean`` is :class:`UniformMean`. Flower's class names (``FedAdam``) and ``module:Class`` are strategies of Flower;
    the lower-case names (``fedadam``) are fedgs's own rules, as everywhere else.
    """
    name, options = settings.rule, settings.options
    if name in RULES:
        return make_rule(settings)
    if name == "mean":
        make_rule(settings)  # refuses options
        return StrategyRule(lambda: UniformMean(**_EVERYBODY))
    kind = getattr(flower, name, None) if name in STRATEGIES else None
    if is_import_path(name):
        kind = load_object(name, "server.rule")
    if kind is None:
        hint = suggestion(name, ["mean", *STRATEGIES, *RULES, "module:Class"])
        raise ConfigError(f"server.rule={name!r} is no strategy that can run over stations; {hint}")

    def make() -> Any:
        try:
            return kind(**(_EVERYBODY | options))
        except (TypeError, ValueError) as error:
            raise ConfigError(f"server.rule={name!r} with server.options={options}: {error}") from None

    make()  # so that bad options are found before the first round
    return StrategyRule(make)


class _Answered(Grid):
    """What a strategy sees of the grid: the stations that have answered, numbered from 1."""

    def __init__(self, count: int) -> None:
        self._count = count

    def get_node_ids(self) -> Iterable[int]:
        """Return the numbers of the stations."""
        return range(1, self._count + 1)

    @property
    def run(self) -> Any:
        """Not for strategies."""
        raise NotImplementedError

    def _none(self, *_: Any, **__: Any) -> Any:
        raise NotImplementedError("the messages are sent by fedgs.flower.server")

    set_run = create_message = push_messages = pull_messages = send_and_receive = _none


def _record(weights: Mapping[str, Tensor]) -> ArrayRecord:
    return ArrayRecord({name: Array(tensor.detach().numpy()) for name, tensor in weights.items()})


def _content(upload: Upload) -> RecordDict:
    metrics = MetricRecord({WEIGHT: 1.0, "num-examples": float(upload.num_samples)})
    return RecordDict({ARRAYS: _record(upload.weights), METRICS: metrics})


def _tensors(arrays: ArrayRecord, weights: Weights) -> dict[str, Tensor]:
    found = {}
    for name, weight in weights.items():
        values = arrays[name].numpy()
        if values.shape != tuple(weight.shape):
            raise AlgorithmError(f"{name!r} has become {values.shape}, it was {tuple(weight.shape)}")
        found[name] = torch.from_numpy(np.array(values)).to(weight.dtype)
    return found


def _remembered(strategy: Any) -> State:
    """Return the arrays a strategy keeps: its moments, whatever they are called."""
    state: State = {}
    for name, value in vars(strategy).items():
        if name == "current_arrays":  # the global weights, given anew each round
            continue
        if isinstance(value, list) and value and all(isinstance(one, np.ndarray) for one in value):
            state[name + _LIST] = {str(place): torch.from_numpy(one) for place, one in enumerate(value)}
        elif isinstance(value, dict) and value and all(isinstance(one, np.ndarray) for one in value.values()):
            state[name] = {key: torch.from_numpy(np.asarray(one)) for key, one in value.items()}
    return state


def _remind(strategy: Any, state: State) -> None:
    for name, group in state.items():
        if isinstance(group, dict):
            arrays = {key: tensor.numpy().copy() for key, tensor in group.items()}
            if name.endswith(_LIST):
                setattr(strategy, name.removesuffix(_LIST), [arrays[str(place)] for place in range(len(arrays))])
            else:
                setattr(strategy, name, arrays)
