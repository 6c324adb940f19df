"""The selection of a whole run (Algorithm 1, client selection; Algorithm 2, line 1), without a model.

What a station selects follows from the class counts of its devices' next mini-batches, never from the model. So the
plan of a round is made before the round is trained, and ahead of the training (:mod:`fedgs.simulation.prefetch`).

In iteration t every factory m draws L_rnd devices at random from the stream (seed, "presample", t, m); their counts
are b; the solver picks the other L − L_rnd. All factories are solved together by ``solve_batch``.

With coverage (off for the paper's presets) the solver also sees a bonus for devices that are behind their fair share
of turns (:mod:`fedgs.simulation.coverage`).
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedgs.data import DeviceStreams, Drift, Federation
from fedgs.errors import DataError
from fedgs.selection import SelectionProblem, solve_batch
from fedgs.selection.presample import random_order, solver_seed
from fedgs.selection.problem import MOST_DIVERGENCE
from fedgs.selection.solve import Solver, auto, resolve_solver, solver_options
from fedgs.settings import Settings, StreamSettings
from fedgs.simulation.coverage import Coverage
from fedgs.simulation.dynamics import Dynamics
from fedgs.simulation.round_statistics import count_classes, view_round
from fedgs.simulation.station_round import Schedule, Tally, make_rules, play_round
from fedgs.training.calibration import ClassMix
from fedgs.training.round_plan import RoundPlan

Devices = NDArray[np.int64]


class SelectionPlan:
    """Makes the plans of the rounds, one after the other."""

    def __init__(
        self,
        federation: Federation,
        settings: Settings,
        *,
        compiled: bool = True,
        solver: Solver | None = None,
        smallest_batch: int = 1,
    ) -> None:
        """``compiled``: play whole rounds in compiled loops where that is possible; the plans are the same without.

        ``solver``: one of the user's own instead of the settings'. ``smallest_batch``: samples a step needs at least;
        who gets fewer done in an iteration counts as lost.
        """
        self.federation, self.settings = federation, settings
        self.target = federation.p_real()
        self.target.flags.writeable = False  # like a problem's
        self._everybody = [federation.devices_of(factory) for factory in range(federation.factories)]
        self.streams = make_streams(federation, settings.training.batch_size, settings.seed, settings.streams)
        self.dynamics = Dynamics(federation, settings.dynamics, settings.seed)
        self.round = 0
        devices = len(federation)
        self.selected = np.zeros(devices, np.int64)
        """(devices,) how often each was selected."""
        self.last = np.zeros(devices, np.int64)
        """(devices,) the iteration (from 1) in which each was last selected; 0: never."""
        self.longest_wait = np.zeros(devices, np.int64)
        """(devices,) the most iterations between two selections, those before the first and after the last too."""
        self.coverage = Coverage(federation, settings.selection)
        training = settings.training
        self.mix = ClassMix(federation.factories, self.target, training.iterations, training.calibration)
        self._train_sizes = federation.train.sizes.astype(np.float64)
        self._solver_options = solver_options(settings.selection)
        self._solver = solver or resolve_solver(settings.selection.solver)
        self._smallest = smallest_batch
        self._warm: set[str] = set()
        sizes = federation.train.sizes, federation.factory_sizes
        self._rules = make_rules(settings, self.target, *sizes) if compiled and solver is None else None
        if settings.selection.cap or settings.dynamics.active:
            return
        smallest = int(federation.factory_sizes.min())
        if settings.selection.pick > smallest:
            raise DataError(
                f"selection.pick={settings.selection.pick} is more than the {smallest} devices of the smallest factory "
                "of this federation; lower it, or set selection.cap=true to take all of them"
            )

    def next_round(self) -> RoundPlan:
        """Select for the T iterations of the next round."""
        seconds = 0.0
        training, places = self.settings.training, self.settings.selection.pick
        factories = self.federation.factories
        shape = (training.iterations, factories, places)
        devices = np.full(shape, -1, np.int32)
        samples = np.full((*shape, training.batch_size), -1, np.int32)
        sizes = np.zeros(shape, np.int32)
        divergence = np.full(shape[:2], np.nan)
        if self._rules is not None:
            tally = Tally(
                self.selected,
                self.last,
                self.longest_wait,
                self.coverage.queue,
                self.coverage.shares(self._everybody, self.streams),
            )
            schedule = Schedule(devices, samples, divergence)
            seconds = play_round(self._rules, self.streams, tally, schedule, self._everybody, self.settings.seed)
            sizes[:] = training.batch_size
        for row in range(training.iterations if self._rules is None else 0):
            iteration = self.streams.iteration
            self.dynamics.begin(iteration)
            there = self._there()
            chosen, divergence[row], took = self._select(iteration, there)
            seconds += took
            everyone = np.concatenate(chosen) if chosen else np.empty(0, np.int64)
            batches = self.streams.next_indices(everyone)
            shares = self.dynamics.shares(iteration, everyone)
            first = 0
            for factory, mine in enumerate(chosen):
                last = first + len(mine)
                devices[row, factory, : len(mine)] = mine
                samples[row, factory, : len(mine)] = batches[first:last]
                done = np.floor(shares[first:last] * training.batch_size + 1e-9)
                sizes[row, factory, : len(mine)] = np.where(done < self._smallest, 0, done)
                first = last
            self._count(everyone, iteration + 1)
            self.coverage.end(there, self.streams, everyone)
            self.streams.advance(everyone)
        self.round += 1
        events = self.dynamics.take_events()
        counts = count_classes(samples, self.federation.labels, len(self.target))
        view = view_round(counts, self.target)
        shifts = self.mix.follow(counts) if self.mix.strength else None
        seen = counts
        if (sizes < training.batch_size).any():  # who dropped out, and what a straggler left, was not trained on
            counting = np.arange(training.batch_size) < sizes[..., None]
            seen = count_classes(np.where(counting, samples, np.int32(-1)), self.federation.labels, len(self.target))
        return RoundPlan(
            self.round,
            devices,
            samples,
            sizes,
            divergence,
            events,
            self.state_dict(),
            seconds,
            view.window_divergence,
            view.missing_classes,
            shifts,
            seen.sum(axis=0),
        )

    def _select(self, iteration: int, everybody: list[Devices]) -> tuple[list[Devices], NDArray[np.float64], float]:
        """Return the devices of every factory, their divergences, and the seconds of the solver, one after another."""
        pick, presample, seed = self.settings.selection.pick, self.settings.selection.presample, self.settings.seed
        counts, factories = self.streams.counts.astype(np.float64), self.federation.factories
        drawn: list[Devices] = []
        candidates: list[Devices] = []
        problems: list[SelectionProblem] = []
        seeds: list[int] = []
        asked: list[int] = []
        first_seed = solver_seed(seed, iteration)
        for factory, there in enumerate(everybody):
            order = random_order(there, seed, iteration, factory)
            take = min(pick, len(order))
            if take < pick:
                self.dynamics.events["idle" if take == 0 else "short"] += 1
            if take == len(order):  # all there are
                drawn.append(order)
                candidates.append(order[:0])
                continue
            beforehand = min(presample, take)
            drawn.append(order[:beforehand])
            candidates.append(order[beforehand:])
            asked.append(factory)
            bonus = self.coverage.bonus(counts, self.target, order, candidates[-1])
            weights = self._train_sizes[candidates[-1]]
            base = counts[drawn[-1]].sum(axis=0)
            problems.append(
                SelectionProblem.trusted(counts[candidates[-1]], self.target, take - beforehand, base, bonus, weights)
            )
            seeds.append(first_seed + factory)
        self._warm_up(problems)
        answers = solve_batch(problems, self._solver, seeds, **self._solver_options)
        divergence = np.full(factories, np.nan)
        chosen = drawn
        for factory, answer in zip(asked, answers, strict=True):
            chosen[factory] = np.sort(np.concatenate([drawn[factory], candidates[factory][answer.chosen]]))
            divergence[factory] = answer.divergence
        for factory in sorted(set(range(factories)) - set(asked)):
            chosen[factory] = np.sort(drawn[factory])
            divergence[factory] = self._divergence(chosen[factory])
        return chosen, divergence, sum(answer.seconds for answer in answers)

    def _warm_up(self, problems: list[SelectionProblem]) -> None:
        """Compile or load the kernels of solvers not met so far, so that the time of the first round is its own."""
        if not isinstance(self._solver, str):  # of the user's own: there is nothing to compile
            return
        wanted = self._solver
        for name in {auto(problem) if wanted == "auto" else wanted for problem in problems} - self._warm:
            self._warm.add(name)
            if name != "bayesian":  # which has none
                tiny = SelectionProblem(np.eye(3), np.full(3, 1 / 3), 1)
                solve_batch([tiny], name, 0, **self._solver_options)

    def _there(self) -> list[Devices]:
        """Return the devices of every factory that can be selected now."""
        able = self.streams.ready & self.dynamics.online
        if able.all() and np.array_equal(self.dynamics.factory_of, self.federation.factory_of):
            return self._everybody
        return [
            np.flatnonzero(able & (self.dynamics.factory_of == factory)) for factory in range(self.federation.factories)
        ]

    def _divergence(self, devices: Devices) -> float:
        if not len(devices):
            return float("nan")
        counts = self.streams.counts[devices].sum(axis=0)
        total = counts.sum()
        return float(np.linalg.norm(counts / total - self.target)) if total else MOST_DIVERGENCE

    def _count(self, everyone: Devices, iteration: int) -> None:
        self.selected[everyone] += 1
        self.longest_wait[everyone] = np.maximum(self.longest_wait[everyone], iteration - self.last[everyone])
        self.last[everyone] = iteration

    def state_dict(self) -> dict[str, Any]:
        """Return all that is needed to go on later, in plain numbers, lists and text."""
        return {
            "round": self.round,
            "streams": self.streams.state_dict(),
            "dynamics": self.dynamics.state_dict(),
            "selected": self.selected.tolist(),
            "last": self.last.tolist(),
            "longest_wait": self.longest_wait.tolist(),
            "queue": self.coverage.queue.tolist(),
            "mix": {"shares": self.mix.shares.tolist(), "steps": self.mix.steps.tolist()} if self.mix.strength else {},
        }

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Go on from a saved state."""
        self.round = int(state["round"])
        self.streams.load_state(state["streams"])
        self.dynamics.load_state(state["dynamics"])
        self.selected, self.last, self.longest_wait = (
            np.asarray(state[key], dtype=np.int64) for key in ("selected", "last", "longest_wait")
        )
        self.coverage.queue = np.asarray(state["queue"], dtype=np.float64)
        if state.get("mix"):
            self.mix.shares = np.asarray(state["mix"]["shares"], dtype=np.float64)
            self.mix.steps = np.asarray(state["mix"]["steps"], dtype=np.int64)


def make_streams(federation: Federation, batch_size: int, seed: int, settings: StreamSettings) -> DeviceStreams:
    """Return the device streams the settings ask for."""
    drift = settings.drift
    wanted = None
    if drift.kind != "none":
        wanted = Drift(drift.kind, drift.start, drift.length, drift.alpha, drift.spread)
    return DeviceStreams(
        federation,
        batch_size,
        seed,
        settings.mode,
        capacity=settings.capacity,
        arrival=settings.arrival,
        drift=wanted,
    )
