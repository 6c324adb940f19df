"""The top server: rounds over all stations, external synchronisation, evaluation, a checkpoint after each round.

    ω ← (1/M) Σ_m ω^m      (eq. external-aggr), or any server rule of ``fedgs.algorithms``

With ``server.class_wise`` the classifier is averaged class by class (:mod:`fedgs.algorithms.class_wise`).

How stations are asked: :mod:`fedgs.deploy.station_calls`. Those that answered are averaged. A round in which no station
had a device to train is not counted, and is tried again.

What is on disk: :mod:`fedgs.deploy.top_state`.
"""

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedgs.algorithms import ServerRule, Upload, server_rule, split_state
from fedgs.algorithms.class_wise import ClassRows, row_weights
from fedgs.algorithms.rule import update_by
from fedgs.algorithms.server import rule_of
from fedgs.deploy.logs import OnceEach, log
from fedgs.deploy.metrics import TopMetrics
from fedgs.deploy.round_messages import MOST_DEVICES, RoundOrder, RoundResult
from fedgs.deploy.run_spec import RunSpec
from fedgs.deploy.settings import TopSettings
from fedgs.deploy.station_calls import Orders, StationCalls
from fedgs.deploy.station_list import StationList
from fedgs.deploy.team_file import parts_of
from fedgs.deploy.tensors import Shapes
from fedgs.deploy.top_state import TopState
from fedgs.errors import AlgorithmError, CollapseError, ConfigError, TrainingError
from fedgs.settings import ServerSettings
from fedgs.tasks.prepare import statistics_from

Evaluate = Callable[[Mapping[str, Tensor]], Mapping[str, Any]]
"""Metrics and loss of weights on the held-out set, by name."""
COLLAPSES, LEAST_FALL = 4.0, 0.1
"""An accuracy of a quarter of the best so far, and of ten points less, has collapsed."""


class Top:
    """Runs rounds over stations; ``advance`` is a function from state to state."""

    def __init__(
        self,
        run_spec: RunSpec,
        stations: StationList,
        settings: TopSettings,
        metrics: TopMetrics,
        evaluate: Evaluate | None = None,
        target: NDArray[np.float64] | None = None,
        rule: ServerRule | None = None,
        shapes: Shapes | None = None,
        score: str = "accuracy",
    ) -> None:
        """``target`` None: P_real is estimated from what the devices announce, anew after each round.

        ``rule`` None: the one the settings name. ``shapes``: which of the weights are buffers; None: none of them.
        ``score``: the metric that is shown.
        """
        self._shapes, self._score = shapes, score
        self.run_spec, self.settings, self.metrics = run_spec, settings, metrics
        self._evaluate, self._target = evaluate, target
        self._rule = make_rule(run_spec.settings.server) if rule is None else rule
        self._by_class = run_spec.settings.server.class_wise
        self._once = OnceEach(60.0)
        self._active: dict[str, int] = {}
        """At which factory each device is active: the first one that has reported it."""
        self._doubtful: set[str] = set()
        """Those that another one has reported too, in the last round: a device that moves, or a copy."""
        self._twice: dict[str, int] = {}
        """The factory of those that were reported twice in two rounds in a row, as long as it still has them."""
        self.stations, self._calls = stations, StationCalls(stations, settings, metrics)

    async def begin(self, run: str, weights: Mapping[str, Tensor]) -> TopState:
        """Return the state before the first round: P_real and the statistics of inputs are known, the model is tested.

        Statistics come from the devices that are there now; those that join later train with them.
        """
        if self._by_class:  # a model without a classifier is refused before any station is asked
            self._rows(self._shapes_of(weights))
        state = TopState(run, 0, weights, self._rule.init(self._trained(weights)), self._target)
        channels = self.run_spec.channels
        while self._target is None or channels:
            results = await self._collect(self._orders(state, 0), 0)
            state = replace(state, target=pooled(results) if self._target is None else self._target)
            told = [result.moments for _, result in sorted(results.items()) if len(result.moments)]
            if told or not channels:
                found = statistics_from(np.sum(told, axis=0).reshape(3, -1), weights) if channels else {}
                state = replace(state, weights={**weights, **found})
                break
            self._once.warning("no device tells the sums that normalise inputs; they are asked again")
            await asyncio.sleep(1.0)
        tested = await asyncio.to_thread(self._tested, state, due=True)  # meanwhile operators are answered
        return replace(state, metrics=({"round": 0, **tested},))

    async def advance(self, state: TopState) -> TopState:
        """Return the state after one more round; a round that ruins the model is discarded and tried again."""
        number, reason, devices = state.round + 1, "", ""
        for attempt in range(self.settings.collapses):
            began = time.perf_counter()
            results = await self._trained_results(state, attempt)
            try:
                new = await asyncio.to_thread(self._after, state, results, attempt, began)
                reason = collapse(new.metrics, self._score, self.settings.largest_rise)
            except CollapseError as error:
                reason = str(error)
            if not reason:
                self._show(new.metrics[-1])
                return new
            self.metrics.discarded.inc()
            devices = ", ".join(sorted({name for result in results.values() for name in result.took_part}))
            log.error("round is discarded", round=number, reason=reason, devices=devices)
        raise CollapseError(
            f"round {number} has ruined the model {self.settings.collapses} times in a row ({reason}); the checkpoint "
            f"of round {state.round} is kept; lower training.learning_rate, or look at the devices that took part: "
            f"{devices}"
        )

    async def _trained_results(self, state: TopState, attempt: int) -> dict[int, RoundResult]:
        """Return the stations' answers, by factory, once at least one of them has trained."""
        number = state.round + 1
        while True:
            results = await self._collect(self._orders(state, number, attempt), number)
            if any(result.iterations for result in results.values()):
                return results
            self._once.warning("no station has a device; the round is tried again", round=number)
            await asyncio.sleep(1.0)

    def _after(self, state: TopState, results: Mapping[int, RoundResult], attempt: int, began: float) -> TopState:
        """Return the state after a round with these answers, which ``began`` then."""
        number = state.round + 1
        trained = [results[factory] for factory in sorted(results) if results[factory].iterations]
        weights, memory = self._synchronised(state, trained, number)
        target = self._target if self._target is not None else pooled(results)
        new = replace(
            state, round=number, weights=weights, server=memory, target=state.target if target is None else target,
            queues=merged_queues(state.queues, results), parts=parts_of(results),
        )  # fmt: skip
        seconds = time.perf_counter() - began
        rounds = self.run_spec.settings.training.rounds
        due = number % self.run_spec.settings.eval.every == 0 or number == rounds
        line: dict[str, Any] = {
            "round": number,
            **self._tested(new, due),
            "train_loss": float(np.mean([result.loss for result in trained])),
            "divergence": float(np.mean([result.divergence for result in trained])),
            "stations": len(trained),
            "devices": sum(result.devices for result in results.values()),
            "samples": sum(result.samples for result in trained),
            "seconds": round(seconds, 3),
        }
        events = sum((Counter(result.events) for result in results.values()), Counter(discarded=attempt))
        if events.total():
            line["events"] = {name: count for name, count in sorted(events.items()) if count}
        return replace(new, metrics=(*state.metrics, line))

    def _orders(self, state: TopState, number: int, attempt: int = 0) -> Orders:
        shapes = self._shapes_of(state.weights)
        flat = shapes.flatten({name: value.numpy() for name, value in state.weights.items()})

        def order(factory: int) -> RoundOrder:
            elsewhere = sorted(name for name, other in self._twice.items() if other != factory)
            return self.run_spec.order(
                number, factory, shapes, flat, state.target, attempt, elsewhere, state.queues
            )  # fmt: skip

        return order

    def _arbitrate(self, results: Mapping[int, RoundResult], names: Mapping[int, str]) -> None:
        """Find devices that are at several stations: a certificate that was copied. The first station keeps them.

        A device that moves is reported by both only once. A station that does not answer has lost its devices.
        """
        online = {factory: set(result.online) for factory, result in sorted(results.items())}
        self._active = {name: factory for name, factory in self._active.items() if name in online.get(factory, ())}
        self._twice = {name: factory for name, factory in self._twice.items() if self._active.get(name) == factory}
        before, self._doubtful = self._doubtful, set()
        for factory, devices in online.items():
            for name in devices:
                first = self._active.setdefault(name, factory)
                if first != factory:
                    self._doubtful.add(name)
                    if name in before:
                        self._twice[name] = first
                        stations = [names[one] for one in (first, factory)]
                        log.error("a device is at two stations; the first one keeps it", device=name, stations=stations)

    def _shapes_of(self, weights: Mapping[str, Tensor]) -> Shapes:
        return self._shapes or Shapes.of(weights)

    def _trained(self, weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return the trained ones of weights and buffers: what a server rule sees."""
        return dict(list(weights.items())[: self._shapes_of(weights).trained])

    def _rows(self, shapes: Shapes) -> ClassRows:
        return ClassRows(shapes, self.run_spec.head, self.run_spec.classes)

    async def _collect(self, orders: Orders, number: int) -> dict[int, RoundResult]:
        """Return the answers by factory, of as many stations as a round needs."""
        answers = await self._calls.collect(orders, number)
        found = {factory: result for factory, (_, result) in answers.items()}
        self._arbitrate(found, {factory: station.name for factory, (station, _) in answers.items()})
        return found

    def _synchronised(
        self, state: TopState, trained: Sequence[RoundResult], number: int
    ) -> tuple[dict[str, Tensor], Any]:
        stations = [
            {name: torch.from_numpy(np.array(view)) for name, view in result.shapes.views(result.weights).items()}
            for result in trained
        ]
        before = self._trained(state.weights)
        uploads = [Upload({name: station[name] for name in before}, 1) for station in stations]
        try:
            weights, memory = update_by(self._rule, state.server, before, uploads)
        except AlgorithmError as error:
            raise TrainingError(f"round {number}: the server rule cannot go on: {error}") from None
        if self._by_class:
            weights = {**weights, **classifier(trained, self._rows(trained[0].shapes), self.run_spec.head)}
        weights |= mean_buffers(stations, trained[0].shapes)
        if not all(
            bool(torch.isfinite(value).all()) for value in (*weights.values(), *split_state(memory)[0].values())
        ):
            raise CollapseError("the global model is not finite; are the learning rates too high?")
        return {name: weights[name] for name in state.weights}, memory

    def _tested(self, state: TopState, due: bool) -> dict[str, Any]:
        if self._evaluate is None or not due:
            return {}
        found = self._evaluate(state.weights)
        self.metrics.score.set(found[self._score])
        self.metrics.loss.set(found["loss"])
        return {self._score: found[self._score], **found}

    def _show(self, line: Mapping[str, Any]) -> None:
        self.metrics.round.set(line["round"])
        self.metrics.stations.set(line["stations"])
        self.metrics.divergence.set(line["divergence"])
        self.metrics.duration.observe(line["seconds"])
        shown = {key: round(line[key], 4) for key in (self._score, "train_loss", "divergence") if key in line}
        log.info("round", round=line["round"], **shown, stations=line["stations"], seconds=line["seconds"])


def collapse(lines: Sequence[Mapping[str, Any]], score: str, largest_rise: float) -> str:
    """Return how the newest of these rounds has ruined the model, compared with those before; "" where it has not.

    A loss explodes where it is ``largest_rise`` times the last one and above the first one, or, in several steps,
    ``largest_rise`` squared times the first one. A model that has learnt its data has a loss near 0, which a single
    hard sample multiplies.
    """
    *before, now = lines
    for key in ("loss",) if "loss" in now else ("train_loss",):  # what devices say counts where nothing was measured
        known = [line[key] for line in before if key in line]
        if key in now and known:
            most = max(known[0], _times(largest_rise, known[-1]))
            most = min(most, _times(largest_rise**2, known[0]))
            if not now[key] <= most:  # nor NaN
                return f"{key} {now[key]:.4g}; it was {known[-1]:.4g}, and {known[0]:.4g} at the beginning"
    best = max((line[score] for line in before if score in line), default=0.0)
    if score == "accuracy" and score in now and now[score] < min(best / COLLAPSES, best - LEAST_FALL):
        return f"accuracy {now[score]:.2%}; it was {best:.2%}"
    return ""


def _times(factor: float, loss: float) -> float:
    """Return a loss that is so many times as bad; it may be below 0."""
    return loss + (factor - 1) * abs(loss)


def make_rule(settings: ServerSettings) -> ServerRule:
    """Return the server rule; ``mean`` is the paper's, every station alike."""
    if "intrac" in settings.rule or settings.options.get("intrac"):
        raise ConfigError(f"server.rule={settings.rule!r} needs training accuracies, which stations do not report")
    return rule_of(settings) or server_rule("fedavg", weighting="uniform")


def classifier(trained: Sequence[RoundResult], rows: ClassRows, head: str) -> dict[str, Tensor]:
    """Return the last layer averaged class by class, by what the stations' teams have seen."""
    stations = torch.from_numpy(np.stack([result.weights for result in trained]))
    seen = np.stack([result.seen for result in trained])
    flat = stations[0].clone()
    rows.put(rows.average(stations, row_weights(seen, np.ones(len(trained), np.bool_))), flat)
    views = trained[0].shapes.views(flat.numpy())
    return {name: torch.from_numpy(views[name].copy()) for name in (f"{head}.weight", f"{head}.bias")}


def mean_buffers(stations: Sequence[Mapping[str, Tensor]], shapes: Shapes) -> dict[str, Tensor]:
    """Return the mean of the stations' buffers; of whole numbers the greatest."""
    found = {}
    for number, name in enumerate(shapes.names[shapes.trained :], start=1):
        values = torch.stack([station[name] for station in stations])
        whole = number > shapes.buffers - shapes.integers
        found[name] = values.amax(0) if whole else values.double().mean(0).float()
    return found


def pooled(results: Mapping[int, RoundResult]) -> NDArray[np.float64] | None:
    """Return P_real from the announcements of all devices, each with the same weight; None: there are none."""
    known = [result for result in results.values() if result.devices and len(result.announced)]
    if not known:
        return None
    total = sum(result.devices * result.announced for result in known)
    return np.asarray(total / np.sum(total), dtype=np.float64)


def merged_queues(before: Mapping[str, float], results: Mapping[int, RoundResult]) -> dict[str, float]:
    """Return the queues of coverage after a round; a device that was at two stations has changed by the sum of both."""
    told: dict[str, list[float]] = {}
    for _, result in sorted(results.items()):
        for name, behind in result.queues.items():
            told.setdefault(name, []).append(behind)
    new = {name: behind for name, behind in before.items() if name not in told}
    for name, (first, *others) in told.items():
        new[name] = first + sum(other - before.get(name, 0.0) for other in others)
    return dict(list(new.items())[-MOST_DEVICES:])  # an order holds no more; those that were seen last stay
