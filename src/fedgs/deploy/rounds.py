"""A round at a station (Algorithm 1, the inner loop): T times select, let train, average.

    ω_t^m = ω_{t−1}^m + Σ_k (n^{m,k} / n^m) Δ^{m,k}      (eq. internal-aggr, with Δ^{m,k} = ω_t^{m,k} − ω_{t−1}^m)

over the selected devices whose update arrived and was good, in the order of their names and in float64. Buffers
(running statistics) are averaged likewise; of whole numbers the greatest counts. Where the order names an optimiser
other than plain SGD, the station takes what its team moved by for the mean gradient, ḡ = −Σ_k (n^{m,k} / n^m) Δ^{m,k} /
η, and makes the optimiser's step with it, as the simulator does (:mod:`fedgs.training.optimizers`).
"""

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np

from fedgs.deploy.logs import log
from fedgs.deploy.membership import Member
from fedgs.deploy.round_messages import RoundOrder, RoundResult
from fedgs.deploy.station import Answer, Station
from fedgs.deploy.station_state import StationCalibration, StationOptimizer
from fedgs.deploy.tensors import Flat, Shapes, norm
from fedgs.deploy.wire import StepMessages
from fedgs.selection.coverage import fair_shares, queues_after
from fedgs.selection.team import TeamRule, select_teams

_BLOCK = 1 << 16


@dataclass
class Progress:
    """The progress of a station; for its status."""

    run: str = ""
    round: int = 0
    iteration: int = 0
    """Done in this round."""
    iterations: int = 0
    """Of this round."""
    divergence: float = 0.0
    loss: float = 0.0
    pace: float = 0.0
    """Iterations a second, a running mean."""


@dataclass
class RoundTrainer:
    """Carries out rounds with the devices of a station."""

    station: Station
    progress: Progress = field(default_factory=Progress)
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
                log.warning("no device is online; the round ends early", extra={"round": order.round, "iteration": row})
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
        progress.pace = 0.9 * progress.pace + 0.1 / seconds if progress.pace else 1 / seconds
        metrics.iterations.inc()
        metrics.iterating.observe(seconds)
        metrics.loss.set(loss)
        metrics.divergence.set(divergence)
        if log.isEnabledFor(10):
            log.debug(
                "iteration",
                extra={
                    "round": order.round,
                    "iteration": order.first_iteration + row,
                    "selected": [member.name for member in team],
                    "used": used,
                    "divergence": divergence,
                    "loss": loss,
                    "seconds": round(seconds, 6),
                },
            )


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
