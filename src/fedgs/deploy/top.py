"""The top server: rounds over all stations, external synchronisation, evaluation, a checkpoint after each round.

    ω ← (1/M) Σ_m ω^m      (eq. external-aggr), or any server rule of ``fedgs.algorithms``

With ``server.class_wise`` the classifier is averaged class by class (:mod:`fedgs.algorithms.class_wise`).

A station that does not answer is asked again until enough others have answered and ``linger`` seconds more have
passed; then the stations that answered are averaged. With fewer than ``min_stations`` answers the server waits. A round
in which no station had a device to train is not counted, and is tried again.

state/checkpoint.safetensors   weights, memory of the server rule, round, run, target; never half written
state/metrics.jsonl            a line a round, cut back to the checkpoint when the server starts again
state/model.safetensors        the global model after the last round
"""

import asyncio
import json
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedgs.algorithms import ServerRule, State, Upload, join_state, server_rule, split_state
from fedgs.algorithms.class_wise import ClassRows, row_weights
from fedgs.algorithms.server import rule_of
from fedgs.deploy.logs import OnceEach, log
from fedgs.deploy.metrics import TopMetrics
from fedgs.deploy.round_messages import RoundOrder, RoundResult
from fedgs.deploy.run_spec import RunSpec
from fedgs.deploy.settings import TopSettings
from fedgs.deploy.tensors import Shapes
from fedgs.deploy.transport import Transport
from fedgs.errors import (
    AlgorithmError,
    CheckpointError,
    ConfigError,
    IdentityError,
    PeerError,
    TrainingError,
    WireError,
)  # fmt: skip
from fedgs.files import write_bytes, write_text
from fedgs.settings import ServerSettings, Settings

Evaluate = Callable[[Mapping[str, Tensor]], Mapping[str, float]]
"""Metrics and loss of weights on the held-out set, by name."""
AGAIN = 0.5
"""Seconds before a station that did not answer is asked again; doubled up to ``LONGEST``."""
LONGEST = 5.0
CHECKPOINT, METRICS, MODEL = "checkpoint.safetensors", "metrics.jsonl", "model.safetensors"
_FORMAT = 2


@dataclass(frozen=True)
class TopState:
    """Everything that decides how a run goes on."""

    run: str
    round: int
    """Rounds done."""
    weights: Mapping[str, Tensor]
    server: State
    target: NDArray[np.float64] | None = None
    """P_real as known now; None: not yet."""
    metrics: Sequence[Mapping[str, Any]] = field(default_factory=tuple)
    """One line a round, from round 0 on."""


def settings_digest(settings: Settings, network: str, stations: int) -> str:
    """Return the digest of a run: a checkpoint is resumed by the same run only. More rounds are the same run."""
    values = settings.model_dump(
        exclude={"training": {"rounds"}, "eval": True, "checkpoint": True, "tensorboard": True}
    )
    text = json.dumps([values, network, stations], sort_keys=True)
    return blake2b(text.encode(), digest_size=16).hexdigest()


def save_state(folder: Path, state: TopState, digest: str) -> None:
    """Write the checkpoint, then the line of its round."""
    from safetensors.torch import save

    tensors, numbers = split_state(state.server)
    named = {f"weights/{name}": value.contiguous() for name, value in state.weights.items()}
    named |= {f"server/{name}": value.contiguous() for name, value in tensors.items()}
    facts = {
        "format": _FORMAT,
        "digest": digest,
        "run": state.run,
        "round": state.round,
        "names": list(state.weights),
        "server": numbers,
        "target": None if state.target is None else state.target.tolist(),
        "metrics": list(state.metrics),
    }
    write_bytes(folder / CHECKPOINT, save(named, {"fedgs": json.dumps(facts)}), durable=True)
    write_text(folder / METRICS, "".join(json.dumps(line) + "\n" for line in state.metrics))


def load_state(folder: Path, digest: str) -> TopState | None:
    """Read the checkpoint; None where there is none."""
    from safetensors import SafetensorError, safe_open

    path = folder / CHECKPOINT
    if not path.exists():
        return None
    try:
        with safe_open(path, "pt") as file:
            facts = json.loads((file.metadata() or {})["fedgs"])
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118  (not a dict)
        if facts["format"] != _FORMAT:
            raise CheckpointError(
                f"{path}: written by another version of fedgs (format {facts['format']}, this one reads {_FORMAT}); "
                "choose another --state, or go on with the version that wrote it"
            )
        if facts["digest"] != digest:
            raise CheckpointError(f"{path}: belongs to a run with other settings or stations; choose another --state")
        server = {name.removeprefix("server/"): value for name, value in tensors.items() if name.startswith("server/")}
        return TopState(
            facts["run"],
            facts["round"],
            {name: tensors[f"weights/{name}"] for name in facts["names"]},  # in the model's order, not the file's
            join_state(server, facts["server"]),
            None if facts["target"] is None else np.array(facts["target"]),
            tuple(facts["metrics"]),
        )
    except CheckpointError:
        raise
    except (OSError, KeyError, TypeError, ValueError, SafetensorError) as error:
        raise CheckpointError(f"{path}: cannot be read ({error}); move it away to begin anew") from None


def save_model(folder: Path, state: TopState) -> Path:
    """Write the global model."""
    from safetensors.torch import save

    content = save({name: value.contiguous() for name, value in state.weights.items()})
    return write_bytes(folder / MODEL, content, durable=True)


def shown_score(line: Mapping[str, Any]) -> str:
    """Return the score of a round's line as people read it; "" where the model was not tested."""
    if "loss" not in line:
        return ""
    name, value = next((key, value) for key, value in line.items() if key != "round")  # the score comes first
    return f"{name} {value:.2%}" if name == "accuracy" else f"{name} {value:.4g}"


class Top:
    """Runs rounds over stations; ``advance`` is a function from state to state."""

    def __init__(
        self,
        run_spec: RunSpec,
        transports: Sequence[Transport],
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
        self.run_spec, self.transports, self.settings, self.metrics = run_spec, transports, settings, metrics
        self._evaluate, self._target = evaluate, target
        self._rule = make_rule(run_spec.settings.server) if rule is None else rule
        self._by_class = run_spec.settings.server.class_wise
        self._once = OnceEach(60.0)
        self._needed = settings.min_stations or len(transports)
        if self._needed > len(transports):
            raise ConfigError(f"--min-stations {self._needed} of {len(transports)} stations; lower it")

    async def begin(self, run: str, weights: Mapping[str, Tensor]) -> TopState:
        """Return the state before the first round: P_real is known and the untrained model is tested."""
        if self._by_class:  # a model without a classifier is refused before any station is asked
            self._rows(self._shapes_of(weights))
        state = TopState(run, 0, weights, self._rule.init(self._trained(weights)), self._target)
        if self._target is None:
            results = await self._collect(self._orders(state, 0))
            state = replace(state, target=pooled(results))
        return replace(state, metrics=({"round": 0, **self._tested(state, due=True)},))

    async def advance(self, state: TopState) -> TopState:
        """Return the state after one more round."""
        number = state.round + 1
        began = time.perf_counter()
        while True:
            results = await self._collect(self._orders(state, number))
            trained = [results[factory] for factory in sorted(results) if results[factory].iterations]
            if trained:
                break
            self._once.warning("no station has a device; the round is tried again", round=number)
            await asyncio.sleep(1.0)
        weights, memory = self._synchronised(state, trained, number)
        target = self._target if self._target is not None else pooled(results)
        new = replace(
            state, round=number, weights=weights, server=memory, target=state.target if target is None else target
        )
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
        events = sum((Counter(result.events) for result in results.values()), Counter())
        if events:
            line["events"] = dict(sorted(events.items()))
        self._show(line, len(self.transports) - len(trained), seconds)
        return replace(new, metrics=(*state.metrics, line))

    def _orders(self, state: TopState, number: int) -> list[RoundOrder]:
        shapes = self._shapes_of(state.weights)
        flat = shapes.flatten({name: value.numpy() for name, value in state.weights.items()})
        return [
            self.run_spec.order(number, factory, shapes, flat, state.target) for factory in range(len(self.transports))
        ]

    def _shapes_of(self, weights: Mapping[str, Tensor]) -> Shapes:
        return self._shapes or Shapes.of(weights)

    def _trained(self, weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return the trained ones of weights and buffers: what a server rule sees."""
        return dict(list(weights.items())[: self._shapes_of(weights).trained])

    def _rows(self, shapes: Shapes) -> ClassRows:
        return ClassRows(shapes, self.run_spec.head, self.run_spec.classes)

    async def _collect(self, orders: Sequence[RoundOrder]) -> dict[int, RoundResult]:
        """Return the answers by factory: enough of them, and those that came soon after."""
        tasks = {
            asyncio.ensure_future(self._ask(transport, order)): factory
            for factory, (transport, order) in enumerate(zip(self.transports, orders, strict=True))
        }
        waiting = set(tasks)
        found: dict[int, RoundResult] = {}
        try:
            while waiting:
                enough = len(found) >= self._needed
                done, waiting = await asyncio.wait(
                    waiting,
                    timeout=self.settings.linger if enough else None,
                    return_when=asyncio.ALL_COMPLETED if enough else asyncio.FIRST_COMPLETED,
                )
                found |= {tasks[task]: task.result() for task in done}
                if enough:
                    break
        finally:
            for task in tasks:
                task.cancel()
        for factory in sorted(set(range(len(orders))) - set(found)):
            self.metrics.missing.inc()
            log.warning("station missing", station=self.transports[factory].name, round=orders[factory].round)
        return found

    async def _ask(self, transport: Transport, order: RoundOrder) -> RoundResult:
        wait = AGAIN
        while True:
            try:
                return await transport.run_round(order)
            except (PeerError, WireError, IdentityError) as error:  # the last: a bundle in the middle of a renewal
                self._once.warning("station does not answer", reason=str(error))
            await asyncio.sleep(wait)
            wait = min(LONGEST, 2 * wait)

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
            weights, memory = self._rule.update(state.server, before, uploads)
        except AlgorithmError as error:
            raise TrainingError(f"round {number}: the server rule cannot go on: {error}") from None
        if self._by_class:
            weights = {**weights, **classifier(trained, self._rows(trained[0].shapes), self.run_spec.head)}
        weights |= mean_buffers(stations, trained[0].shapes)
        if not all(bool(torch.isfinite(value).all()) for value in weights.values()):
            raise TrainingError(f"round {number}: the global model is not finite; lower the learning rates")
        return {name: weights[name] for name in state.weights}, memory

    def _tested(self, state: TopState, due: bool) -> dict[str, float]:
        if self._evaluate is None or not due:
            return {}
        found = {name: float(value) for name, value in self._evaluate(state.weights).items()}
        self.metrics.score.set(found[self._score])
        self.metrics.loss.set(found["loss"])
        return {self._score: found[self._score], **found}

    def _show(self, line: Mapping[str, Any], missing: int, seconds: float) -> None:
        self.metrics.round.set(line["round"])
        self.metrics.stations.set(line["stations"])
        self.metrics.divergence.set(line["divergence"])
        self.metrics.duration.observe(seconds)
        shown = {key: round(line[key], 4) for key in (self._score, "train_loss", "divergence") if key in line}
        log.info("round", round=line["round"], **shown, stations=line["stations"], seconds=line["seconds"])


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
