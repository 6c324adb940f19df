"""A round at a station (Algorithm 1, the inner loop): T times select, let train, average.

    ω_t^m = ω_{t−1}^m + Σ_k (n^{m,k} / n^m) Δ^{m,k}      (eq. internal-aggr, with Δ^{m,k} = ω_t^{m,k} − ω_{t−1}^m)

over the selected devices whose update arrived and was good, in the order of their names and in float64. Buffers
(running statistics) are averaged likewise; of whole numbers the greatest counts. Where the order names an optimiser
other than plain SGD, the station takes what its team moved by for the mean gradient, ḡ = −Σ_k (n^{m,k} / n^m) Δ^{m,k} /
η, and makes the optimiser's step with it, as the simulator does (:mod:`fedgs.training.optimizers`).

From round to round a station keeps the class mix of its teams, for calibration, and its optimizer's state. A round that
is asked for again begins where it began, so that no step counts twice.

**Calibration** (:mod:`fedgs.training.calibration`): the team trains from a shifted bias of the last layer. With s_t the
shift and b that bias,

    z(ω with b + s_t) = z(ω) + s_t ,   so   Δ^{m,k} = −η ∇L(z + s_t)

A device sends back what its step moved the weights by, never weights, and the station adds that to the weights without
the shift. So devices train the calibrated loss without knowing of it. As in the simulator the mix counts every device
that was selected, whether or not its update arrived. The mix is kept in memory only, as are the queues of coverage: a
restarted station begins them anew.

**The optimizer's state** is on disk too, before and after the newest round: a restarted station goes on with it.
"""

import asyncio
import io
import time
import zipfile
from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from fedgs.deploy.logs import log
from fedgs.deploy.membership import Member
from fedgs.deploy.proto import fedgs_wire_pb2 as pb
from fedgs.deploy.round_messages import RoundOrder, RoundResult
from fedgs.deploy.station import Answer, Station
from fedgs.deploy.tensors import Flat, Shapes, norm
from fedgs.deploy.wire import StepMessages
from fedgs.errors import OutputError
from fedgs.files import write_bytes
from fedgs.selection.coverage import fair_shares, queues_after
from fedgs.selection.team import TeamRule, select_teams
from fedgs.training.calibration import ClassMix
from fedgs.training.optimizers import Optimizer

_BLOCK = 1 << 16
FILE = "optimizer.npz"
State = TypeVar("State")


class RoundState(Generic[State]):
    """The state before the newest round, and after as much of it as there was."""

    def __init__(self, state: State) -> None:
        self.key: Any = None
        self.round = 0
        self.before = self.now = state

    def begin_round(self, key: Any, number: int, fresh: Callable[[], State]) -> None:
        """Go on from the round before; another key, or an earlier round, begins with a fresh state."""
        if key != self.key or number < self.round:
            self.before = fresh()
        elif number > self.round:
            self.before = self.now
        self.key, self.round = key, number
        self.now = deepcopy(self.before)


class StationCalibration(RoundState[ClassMix]):
    """The class mix of a station's teams, as long as the task is the same."""

    def __init__(self) -> None:
        super().__init__(ClassMix(1, np.zeros(0), 1, 0.0))

    def begin(self, order: RoundOrder) -> None:
        """Go on from the round before."""
        if order.calibration and len(order.rates):
            self.begin_round(order.task, order.round, lambda: ClassMix(1, np.zeros(order.task.classes), 1, 0.0))
            self.now.memory, self.now.strength = len(order.rates), order.calibration

    def shifted(self, weights: Flat, counts: NDArray[np.int64], target: NDArray[np.float64], bias: slice) -> Flat:
        """Take in the class counts (devices, classes) of a team; return the weights it trains from.

        ``target`` is P_real as it is known now, ``bias`` the place of the last layer's bias.
        """
        self.now.target = target
        shift = self.now.step(counts.sum(axis=0, keepdims=True))[0]
        result = weights.copy()
        result[bias] += shift.astype(np.float32)
        return result


class StationOptimizer(RoundState[dict[str, NDArray[Any]]]):
    """The state of a station's optimizer, as long as the run is the same."""

    def __init__(self, folder: Path | None = None) -> None:
        """``folder``: of the station's state; None: in memory only."""
        super().__init__({})
        self._file = None if folder is None else folder / FILE
        self._size = 0
        self._optimizer = Optimizer()

    def begin(self, order: RoundOrder) -> None:
        """Go on from the round before."""
        if not len(order.rates):
            return
        self._optimizer = order.optimizer
        if order.optimizer.plain:
            return
        size = self._size = order.shapes.trained_size
        if self.key is None:
            self._load()
        zeros = {entry: np.zeros(size, np.float32) for entry in order.optimizer.entries}
        fits = all(self.now.get(entry, np.empty(0)).shape == (size,) for entry in zeros)
        fresh = zeros | {"steps": np.zeros((), np.float32)}
        self.begin_round(order.run, order.round if fits else -1, lambda: fresh)
        self.round = order.round

    def step(self, weights: Flat, average: Flat, change: Flat, rate: float) -> Flat:
        """Return the weights after the optimizer's step, instead of the average of a team with this mean ``change``."""
        optimizer = self._optimizer
        if optimizer.plain or not rate:
            return average
        trained = slice(0, self._size)
        gradient = change[trained] / np.float32(-rate)
        self.now["steps"] = self.now["steps"] + 1
        direction, new = optimizer.direction(gradient, weights[trained], self.now, float(self.now["steps"]))
        self.now.update({entry: np.asarray(value, np.float32) for entry, value in new.items()})
        result = average.copy()
        result[trained] = weights[trained] - np.float32(rate) * np.asarray(direction, np.float32)
        return result

    def save(self) -> None:
        """Write the state to the disk, at the end of a round."""
        if self._file is None or self._optimizer.plain or self.key is None:
            return
        content = io.BytesIO()
        arrays: dict[str, Any] = {f"before_{entry}": value for entry, value in self.before.items()}
        arrays |= {f"now_{entry}": value for entry, value in self.now.items()}
        np.savez(content, run=np.array(self.key), round=np.array(self.round), **arrays)
        try:
            write_bytes(self._file, content.getvalue(), durable=True)
        except OutputError as error:
            log.error("optimizer state is not on disk; a restart would reset it", reason=str(error))

    def _load(self) -> None:
        if self._file is None or not self._file.exists():
            return
        try:
            with np.load(self._file, allow_pickle=False) as stored:
                arrays = {name: stored[name] for name in stored.files}
            self.key, self.round = str(arrays["run"]), int(arrays["round"])
        except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile) as error:
            log.warning("optimizer state cannot be read; it is reset", reason=str(error))
            return
        self.before = {key[7:]: value for key, value in arrays.items() if key.startswith("before_")}
        self.now = {key[4:]: value for key, value in arrays.items() if key.startswith("now_")}


@dataclass
class RoundTrainer:
    """Carries out rounds with the devices of a station."""

    station: Station
    progress: pb.StationStatus = field(default_factory=pb.StationStatus)
    """Of the round that is under way."""
    calibration: StationCalibration = field(default_factory=StationCalibration)
    optimizer: StationOptimizer = field(default_factory=StationOptimizer)
    _expected: int | None = None
    """How many devices it is worth waiting for: as many as there have been lately."""

    async def carry_out(self, order: RoundOrder) -> RoundResult:
        """Train one round."""
        station, progress = self.station, self.progress
        station.events.clear()
        progress.run, progress.round = order.run, order.round
        progress.iteration, progress.iterations = 0, len(order.rates)
        await station.tell(order.task)
        self.calibration.begin(order)
        self.optimizer.begin(order)
        weights = order.weights
        seen = np.zeros(order.task.classes, np.int64)
        losses, divergences = [], []
        if not len(order.rates):
            await self._gather(order.wanted.pick)
        wanted = self._with_target(order.wanted)
        for row, rate in enumerate(order.rates.tolist()):
            members = await self._gather(order.wanted.pick)
            if not members:
                station.events["idle"] += len(order.rates) - row
                log.warning("no device is online; the round ends early", round=order.round, iteration=row)
                break
            began = time.perf_counter()
            if not len(wanted.target):
                wanted = self._with_target(order.wanted)
            if len(members) < wanted.pick:
                station.events["short"] += 1
            team, answers, divergence = await self._iterate(order, wanted, members, row, rate, weights)
            progress.iteration = row + 1
            if not answers:
                station.events["lost"] += 1
                continue
            # A large model takes a while: in a thread, so that messages of devices are read meanwhile.
            step = partial(self._synchronised, order, weights, answers, rate)
            weights = await asyncio.to_thread(step) if len(weights) > _BLOCK else step()
            sizes = sum(answer.num_samples for answer in answers)
            loss = sum(answer.num_samples / sizes * answer.loss for answer in answers)
            seen += np.sum([answer.counts for answer in answers], axis=0)
            losses.append(loss)
            divergences.append(divergence)
            self._note(order, row, team, len(answers), loss, divergence, time.perf_counter() - began)
        station.metrics.rounds.inc()
        announced, devices = station.roster.distribution()
        return RoundResult(
            order.run, order.round, order.shapes, weights, len(losses), int(seen.sum()),
            float(np.mean(losses)) if losses else 0.0,
            float(np.mean(divergences)) if divergences else 0.0,
            devices, announced, {name: count for name, count in sorted(station.events.items()) if count},
            seen if order.class_wise else np.empty(0, np.int64),  # only what was asked for leaves the station
        )  # fmt: skip

    def _synchronised(self, order: RoundOrder, weights: Flat, answers: Sequence[Answer], rate: float) -> Flat:
        """Return the weights after an internal synchronisation."""
        longest = None if order.clip is None else rate * order.clip
        if order.optimizer.plain:
            return averaged(weights, answers, order.shapes, longest)
        # What devices moved by, not where they came to: the difference of two weights has lost digits.
        change = averaged(np.zeros_like(weights), answers, order.shapes, longest)
        return self.optimizer.step(weights, averaged(weights, answers, order.shapes), change, rate)

    async def _gather(self, pick: int) -> list[Member]:
        """Wait for enough devices to be ready, for a while; return those that are."""
        roster, settings = self.station.roster, self.station.settings
        wished = settings.min_devices or pick
        until = time.monotonic() + settings.gather
        while True:
            roster.changed.clear()
            there = roster.candidates()
            expected = wished if self._expected is None else min(wished, max(self._expected, len(there)))
            left = until - time.monotonic()
            if len(there) >= max(1, expected) or left <= 0:
                # A device that did not come in time is not waited for again until it has been back.
                self._expected = min(wished, len(there))
                return there
            try:
                await asyncio.wait_for(roster.changed.wait(), left)
            except TimeoutError:
                continue

    def _with_target(self, wanted: TeamRule) -> TeamRule:
        if len(wanted.target):
            return wanted
        estimate, _ = self.station.roster.distribution()
        return replace(wanted, target=estimate)

    async def _iterate(
        self, order: RoundOrder, wanted: TeamRule, members: list[Member], row: int, rate: float, weights: Flat
    ) -> tuple[list[Member], list[Answer], float]:
        announced = [(member, member.ready) for member in members if member.ready is not None]
        counts = np.stack([ready.counts for _, ready in announced])
        began = time.perf_counter()
        # In a thread of its own, so that messages of devices are read meanwhile.
        queue = np.array([member.queue for member, _ in announced])
        everyone = [np.arange(len(counts))]
        iteration = order.first_iteration + row
        (selected,) = await asyncio.to_thread(select_teams, wanted, iteration, counts, everyone, queue)
        rows, divergence = selected.devices, selected.divergence
        if wanted.coverage:
            after = queues_after(queue, fair_shares(np.ones(len(queue)), wanted.pick), rows)
            for (member, _), behind in zip(announced, after.tolist(), strict=True):
                member.queue = behind
        self.station.metrics.selecting.observe(time.perf_counter() - began)
        bias = order.shapes.places.get(f"{order.head}.bias") if order.calibration else None
        start = weights if bias is None else self.calibration.shifted(weights, counts[rows], wanted.target, bias)
        messages = StepMessages(rate, order.shapes, start, order.task.wire)
        largest = self.station.settings.largest_move * max(1.0, norm(weights[: order.shapes.trained_size]))
        team = [announced[index] for index in rows.tolist()]
        answers = await asyncio.gather(
            *(self.station.ask(member, ready, messages, order.shapes, largest) for member, ready in team)
        )
        return [member for member, _ in team], [answer for answer in answers if answer is not None], divergence

    def _note(
        self, order: RoundOrder, row: int, team: list[Member], used: int, loss: float, divergence: float, seconds: float
    ) -> None:
        progress, metrics = self.progress, self.station.metrics
        progress.loss, progress.divergence = loss, divergence
        pace = progress.iterations_per_second  # a running mean
        progress.iterations_per_second = 0.9 * pace + 0.1 / seconds if pace else 1 / seconds
        metrics.iterations.inc()
        metrics.iterating.observe(seconds)
        metrics.loss.set(loss)
        metrics.divergence.set(divergence)
        log.debug(
            "iteration", round=order.round, iteration=order.first_iteration + row,
            selected=[member.name for member in team], used=used, divergence=divergence, loss=loss,
            seconds=round(seconds, 6),
        )  # fmt: skip


def averaged(weights: Flat, answers: Sequence[Answer], shapes: Shapes, longest: float | None = None) -> Flat:
    """Return the mean of the devices' weights and buffers; trained weights move by ``longest`` at most."""
    sizes = [answer.num_samples for answer in answers]
    total = sum(sizes)
    result = np.empty_like(weights)
    for first in range(0, len(weights), _BLOCK):  # a block at a time stays in the processor's cache
        block = slice(first, first + _BLOCK)
        moved = weights[block].astype(np.float64)
        for answer, size in zip(answers, sizes, strict=True):
            moved += np.multiply(answer.change[block], size / total, dtype=np.float64)
        result[block] = moved
    if shapes.integers:
        whole = slice(shapes.float_size, None)
        result[whole] = np.max([weights[whole] + answer.change[whole] for answer in answers], axis=0)
    if longest is not None:
        trained = slice(0, shapes.trained_size)
        change = result[trained] - weights[trained]
        length = norm(change)
        if length > longest:
            result[trained] = weights[trained] + change * np.float32(longest / length)
    return result
