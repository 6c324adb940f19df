"""A round at a station (Algorithm 1, the inner loop): T times select, let train, average.

    ω_t^m = ω_{t−1}^m + Σ_k (n^{m,k} / n^m) Δ^{m,k}      (eq. internal-aggr, with Δ^{m,k} = ω_t^{m,k} − ω_{t−1}^m)

over the selected devices whose update arrived and was good, in the order of their names and in float64. Buffers
(running statistics) are averaged likewise; of whole numbers the greatest counts. Where the order names an optimiser
other than plain SGD, the station takes what its team moved by for the mean gradient, ḡ = −Σ_k (n^{m,k} / n^m) Δ^{m,k} /
η, and makes the optimiser's step with it, as the simulator does (:mod:`fedgs.training.optimizers`).

**Calibration** (:mod:`fedgs.training.calibration`): the team trains from a shifted bias of the last layer. With s_t the
shift and b that bias,

    z(ω with b + s_t) = z(ω) + s_t ,   so   Δ^{m,k} = −η ∇L(z + s_t)

A device sends back what its step moved the weights by, never weights, and the station adds that to the weights without
the shift. So devices train the calibrated loss without knowing of it. As in the simulator the mix counts every device
that was selected, whether or not its update arrived. The mix is kept in memory only: a restarted station begins it
anew. What else is kept: :mod:`fedgs.deploy.round_state`.
"""

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np

from fedgs.deploy.logs import log
from fedgs.deploy.membership import Member
from fedgs.deploy.proto import fedgs_wire_pb2 as pb
from fedgs.deploy.round_messages import RoundOrder, RoundResult
from fedgs.deploy.round_state import PartialRound, StationCalibration, StationOptimizer, StationQueues
from fedgs.deploy.screening import Screen
from fedgs.deploy.station import Station
from fedgs.deploy.streams import Answer
from fedgs.deploy.tensors import Flat, Shapes, norm
from fedgs.deploy.wire import StepMessages
from fedgs.errors import PeerError
from fedgs.selection.coverage import fair_shares, queues_after
from fedgs.selection.team import TeamRule, select_teams

_BLOCK = 1 << 16


@dataclass
class RoundTrainer:
    """Carries out rounds with the devices of a station."""

    station: Station
    progress: pb.StationStatus = field(default_factory=pb.StationStatus)
    """Of the round that is under way."""
    calibration: StationCalibration = field(default_factory=StationCalibration)
    queues: StationQueues = field(default_factory=StationQueues)
    optimizer: StationOptimizer = field(default_factory=StationOptimizer)
    screen: Screen = field(default_factory=Screen)
    part: PartialRound | None = None
    """Of the round that is under way: after its last whole iteration."""
    draining: bool = False
    """Whether the station is about to stop: no iteration begins any more."""
    _expected: int | None = None
    """How many devices it is worth waiting for: as many as there have been lately."""

    async def carry_out(self, order: RoundOrder, part: PartialRound | None = None) -> RoundResult:
        """Train one round, or the rest of it after a ``part``."""
        station, progress = self.station, self.progress
        done = self.part = part or PartialRound.of(order)
        station.events.clear()
        station.events.update(done.events)
        sent, received = station.sent - done.sent, station.received - done.received
        progress.run, progress.round = order.run, order.round
        progress.iteration, progress.iterations = done.iteration, len(order.rates)
        station.leave_to_others(order.elsewhere)
        await station.tell(order.task)
        self.calibration.begin(order)
        self.queues.begin(order)
        self.queues.now.update(done.queues)
        self.optimizer.begin(order)
        if done.optimizer:
            self.optimizer.now = dict(done.optimizer)
        self.screen.begin(order.run)
        if not len(order.rates):
            await self._gather(order.wanted.pick)
        wanted = self._with_target(order.wanted)
        for row, rate in list(enumerate(order.rates.tolist()))[done.iteration :]:
            began = time.perf_counter()
            members = await self._gather(order.wanted.pick)
            if not members:
                station.idle(len(order.rates) - row)
                break
            station.pace.waited(time.perf_counter() - began)
            began = time.perf_counter()
            station.passed_over(station.pace.slow(members))
            members = station.pace.eligible(members, wanted.pick, station.settings.most_turns)
            if not len(wanted.target):
                wanted = self._with_target(order.wanted)
            if len(members) < wanted.pick:
                station.events["short"] += 1
            team, used, divergence = await self._iterate(order, wanted, members, row, rate, done.weights)
            if wanted.coverage:
                done.queues |= {member.name: self.queues.now[member.name] for member in members}
            answers = list(used.values())
            progress.iteration = row + 1
            if not answers:
                station.events["lost"] += 1
                done.iteration, done.events = row + 1, dict(station.events)
                continue
            # A large model takes a while: in a thread, so that messages of devices are read meanwhile.
            step = partial(self._synchronised, order, done.weights, answers, rate)
            done.weights = await asyncio.to_thread(step) if len(done.weights) > _BLOCK else step()
            sizes = sum(answer.num_samples for answer in answers)
            loss = sum(answer.num_samples / sizes * answer.loss for answer in answers)
            done.iteration, done.events, done.optimizer = row + 1, dict(station.events), dict(self.optimizer.now)
            mix = np.sum([answer.counts for answer in answers], axis=0)
            done.seen = done.seen + mix
            progress.mix[:] = mix.tolist()
            done.losses.append(loss)
            done.divergences.append(divergence)
            done.turns |= {name: done.turns.get(name, 0) + 1 for name in used}
            done.team, done.mix = list(used), mix.tolist()
            done.sent, done.received = station.sent - sent, station.received - received
            self._note(order, row, team, len(answers), loss, divergence, time.perf_counter() - began)
        station.metrics.rounds.inc()
        announced, devices = station.roster.distribution()
        took_part = sorted(done.turns)
        return RoundResult(
            order.run, order.round, order.shapes, done.weights, len(done.losses), int(done.seen.sum()),
            float(np.mean(done.losses)) if done.losses else 0.0,
            float(np.mean(done.divergences)) if done.divergences else 0.0,
            devices, announced, {name: count for name, count in sorted(station.events.items()) if count},
            done.seen if order.class_wise else np.empty(0, np.int64),  # only what was asked for leaves the station
            took_part, [done.turns[name] for name in took_part], done.team, done.mix, station.sent - sent,
            station.received - received, sorted(member.name for member in station.roster.online),
            station.roster.moments(), done.queues,
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
        """Wait for enough devices to be ready, for a while; return those that are.

        Where the station is about to stop, there is no next iteration.
        """
        roster, settings, pace = self.station.roster, self.station.settings, self.station.pace
        wanted, began = settings.min_devices or pick, time.monotonic()
        while True:
            if self.draining:
                raise PeerError("the station stops; it goes on with this round when it is started again")
            roster.changed.clear()
            wished = min(wanted, max(wanted, len(roster.members)) - roster.unavailable)
            there = roster.candidates()
            expected = wished if self._expected is None else min(wished, max(self._expected, len(there)))
            longest = min(settings.gather, pace.patience) if there else settings.gather
            left = began + longest - time.monotonic()
            deserted = self._expected == 0 and not roster.online  # it has waited for a device before, in vain
            if len(there) >= max(1, expected) or left <= 0 or deserted:
                # A device that did not come in time is not waited for again until it has been back.
                self._expected = min(wished, len(there))
                if len(there) < expected and longest < settings.gather:
                    awaited = [one.name for one in roster.online if roster.state(one) in ("waiting", "late")]
                    self.station.passed_over(awaited)
                return there
            try:
                await asyncio.wait_for(roster.changed.wait(), min(left, 1.0))
            except TimeoutError:
                continue

    def _with_target(self, wanted: TeamRule) -> TeamRule:
        if len(wanted.target):
            return wanted
        estimate, _ = self.station.roster.distribution()
        return replace(wanted, target=estimate)

    async def _iterate(
        self, order: RoundOrder, wanted: TeamRule, members: list[Member], row: int, rate: float, weights: Flat
    ) -> tuple[list[Member], dict[str, Answer], float]:
        """Select a team and let it train; return it, the answers that are used by name, and its divergence."""
        announced = [(member, member.ready) for member in members if member.ready is not None]
        counts = np.stack([ready.counts for _, ready in announced])
        began = time.perf_counter()
        # In a thread of its own, so that messages of devices are read meanwhile.
        queue = np.array([self.queues.now.get(member.name, 0.0) for member, _ in announced])
        everyone = [np.arange(len(counts))]
        iteration = order.first_iteration + row
        (selected,) = await asyncio.to_thread(select_teams, wanted, iteration, counts, everyone, queue)
        rows, divergence = selected.devices, selected.divergence
        if wanted.coverage:
            after = queues_after(queue, fair_shares(np.ones(len(queue)), wanted.pick), rows)
            self.queues.now.update(zip([member.name for member, _ in announced], after.tolist(), strict=True))
        self.station.metrics.selecting.observe(time.perf_counter() - began)
        bias = order.shapes.places.get(f"{order.head}.bias") if order.calibration else None
        start = weights if bias is None else self.calibration.shifted(weights, counts[rows], wanted.target, bias)
        messages = StepMessages(rate, order.shapes, start, order.task.wire)
        asked = [announced[index] for index in rows.tolist()]
        began = time.perf_counter()
        self.station.pace.begin_team(len(asked))
        answers = await asyncio.gather(
            *(self.station.ask(member, ready, messages, order.shapes) for member, ready in asked)
        )
        team = [member for member, _ in asked]
        self.station.pace.iterated([member.name for member in team], time.perf_counter() - began)
        valid = [(member, answer) for member, answer in zip(team, answers, strict=True) if answer is not None]
        return team, self._accepted(valid, weights, rate, order.shapes.trained_size), divergence

    def _accepted(
        self, valid: Sequence[tuple[Member, Answer]], weights: Flat, rate: float, trained: int
    ) -> dict[str, Answer]:
        """Return the answers that go into the mean, by device; the first ``trained`` of the weights are trained."""
        station, accepted = self.station, {}
        norms = {member.name: answer.norm for member, answer in valid}
        verdict = self.screen.judge(norms, norm(weights[:trained]), rate, station.settings.largest_move)
        for member, answer in valid:
            lengths = f"norm {answer.norm:.3g}; {verdict.longest:.3g} is the most"
            if member.name in verdict.rejected:
                station.failed(member, "rejected", f"most of its changes are too long, this one of {lengths}")
                continue
            if answer.norm > verdict.longest:
                station.events["shortened"] += 1
                log.info("a long update is shortened", device=member.name, reason=lengths)
                answer = answer.shortened(verdict.longest, trained)
            station.used(member)
            accepted[member.name] = answer
        return accepted

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
