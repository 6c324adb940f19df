"""One iteration of selection (Algorithm 1, client selection), in the simulator and at a real station.

In iteration t factory m puts its devices into the random order of the stream (seed, "presample", t, m). The first L_rnd
of them are in the team (Algorithm 2, line 1) and their counts are b; the solver picks the other L − L_rnd. With
coverage it also sees a bonus for devices that are behind their fair share of turns (:mod:`fedgs.selection.coverage`).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from time import thread_time
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from fedgs import rng
from fedgs.compiled import WhereItPays
from fedgs.selection.batch import cores, side_by_side, solve_batch
from fedgs.selection.coverage import typical_batch
from fedgs.selection.feedback import Feedback
from fedgs.selection.problem import MOST_DIVERGENCE, Floats, Indices, SelectionProblem
from fedgs.selection.solve import SOLVERS, Solver, auto, solver_key, solver_options
from fedgs.selection.stations import METHODS, PIECES, Stations, pieces_of, select_stations


@dataclass(frozen=True)
class TeamRule:
    """How stations select in every iteration of a run."""

    pick: int
    """Devices of a team (L); a factory with fewer takes all it has."""
    presample: int
    """Of these, drawn at random beforehand (L_rnd)."""
    solver: str | Solver
    """A name, package.module:name of one that is installed, or a solver."""
    options: Mapping[str, Any]
    """Of the solver."""
    target: Floats
    """P_real."""
    seed: int
    factory: int = 0
    """The number of the (first) factory that is selected for."""
    coverage: float = 0.0
    """V of :mod:`fedgs.selection.coverage`; 0: off."""

    @classmethod
    def of(cls, selection: Any, target: Floats, seed: int, solver: str | Solver, factory: int = 0) -> Self:
        """Return the rule of the section ``selection`` of some settings."""
        options = solver_options(selection)
        return cls(
            selection.pick, selection.presample, solver, options, target, seed, factory, selection.coverage.weight
        )


class Team(NamedTuple):
    """Who was selected in a factory."""

    devices: Indices
    """Sorted."""
    divergence: float
    """From the target; NaN where there is nobody."""
    seconds: float
    """Of the solver."""


def select_teams(
    rule: TeamRule,
    iteration: int,
    counts: NDArray[np.integer],
    factories: Sequence[Indices],
    queue: Floats | None = None,
    sizes: Floats | None = None,
    feedback: Feedback | None = None,
) -> list[Team]:
    """Select a team in every factory; all problems are solved together.

    Args:
        rule: how to select.
        iteration: of the run, from 0.
        counts: (devices, classes) of every device's next mini-batch.
        factories: the devices of each that can be selected now, rows of ``counts`` in the order of their names.
        queue: (devices,) turns each device is behind, with coverage.
        sizes: (devices,) samples each device has, for solvers that go by them; None: those of its mini-batch.
        feedback: of all devices, for solvers that learn; None: nothing is known.
    """
    batches, target = counts.astype(np.float64), rule.target.copy()
    sizes = batches.sum(axis=1) if sizes is None else sizes
    draws = rng.Restarts()
    orders = [
        draws.stream(rule.seed, "presample", iteration, rule.factory + number).permutation(devices)
        for number, devices in enumerate(factories)
    ]
    asked = [number for number, order in enumerate(orders) if len(order) > rule.pick]
    candidates = [orders[number] for number in asked]
    drawn, names = rule.presample, [rule.solver] * len(asked)
    if rule.solver == "auto":
        behind = np.zeros(len(batches)) if queue is None or not rule.coverage else queue
        names = [auto(len(order) - drawn, bool(behind[order[drawn:]].any())) for order in candidates]
    first_seed = rng.key(rule.seed, "select", iteration) + rule.factory
    seeds = [first_seed + number for number in asked]
    problem = _Iteration(
        rule, batches, sizes, target, queue, feedback, candidates, seeds, [str(name) for name in names]
    )
    known = bool(names) and all(isinstance(name, str) and name in METHODS for name in names)
    if known and rule.options.get("start", "mpinv") == "mpinv" and drawn < rule.pick:
        with WhereItPays(problem.work, problem.load) as compiled:
            found = problem.in_one_kernel() if compiled else problem.one_by_one()
    else:
        found = problem.one_by_one()
    teams = [Team(order, _divergence(batches[order], target), 0.0) for order in orders if len(order) <= rule.pick]
    for number, team in zip(asked, found, strict=True):
        teams.insert(number, team)
    return [team._replace(devices=np.sort(team.devices)) for team in teams]


_last_seconds: dict[str, float] = {}


@dataclass
class _Iteration:
    """The stations of an iteration that have a choice."""

    rule: TeamRule
    batches: Floats
    sizes: Floats
    target: Floats
    queue: Floats | None
    feedback: Feedback | None
    orders: list[Indices]
    seeds: list[int]
    names: list[str]
    """Of each station's solver."""

    @property
    def work(self) -> str:
        """What is compiled for these solvers together."""
        return "-".join(["stations", *sorted({PIECES[name] for name in self.names})])

    def bonus(self) -> Floats:
        """(devices,) for those who are behind their share of turns."""
        found = np.zeros(len(self.batches))
        if self.rule.coverage and self.queue is not None:
            for order in self.orders:
                unit = self.rule.coverage * typical_batch(self.batches, self.target, order)
                found[order] = unit * self.queue[order]
        return found

    def one_by_one(self) -> list[Team]:
        """Make an object of every problem and solve them."""
        rule, drawn, bonus = self.rule, self.rule.presample, self.bonus()
        problems = []
        for order in self.orders:
            base, others = self.batches[order[:drawn]].sum(axis=0), order[drawn:]
            known = None if self.feedback is None else self.feedback.of(others)
            problem = SelectionProblem.trusted(
                self.batches[others], self.target, rule.pick - drawn, base, bonus[others], self.sizes[others], known
            )
            problems.append(problem)
        answers = solve_batch(problems, rule.solver, self.seeds, **rule.options)
        return [
            Team(np.append(order[:drawn], order[drawn:][answer.chosen]), answer.divergence, answer.seconds)
            for order, answer in zip(self.orders, answers, strict=True)
        ]

    def in_one_kernel(self) -> list[Team]:
        """Solve all in one kernel, in one thread more for every two milliseconds that it took the last time."""
        stations, number, pieces = self._stations(), len(self.names), pieces_of(self.names)
        teams, divergence = np.empty((number, self.rule.pick), np.int64), np.empty(number)
        threads = min(cores(), number, 1 + int(number * _last_seconds.get(self.work, 0.0) / 0.002))

        def select(first: int) -> float:
            began = thread_time()
            select_stations(stations, first, threads, teams, divergence, *pieces)
            return thread_time() - began

        seconds = _last_seconds[self.work] = sum(side_by_side(select, threads, threads)) / number
        return [Team(team, float(apart), seconds) for team, apart in zip(teams, divergence, strict=True)]

    def load(self) -> None:
        """Load or compile the kernel by selecting for no station."""
        stations, pieces = self._stations(), pieces_of(self.names)
        select_stations(stations, len(self.names), 1, np.empty((0, 1), np.int64), np.empty(0), *pieces)

    def _stations(self) -> Stations:
        options = [{**SOLVERS[name].options, **self.rule.options} for name in self.names]
        return Stations(
            self.batches, self.sizes.astype(np.float64), self.bonus(), self.target,
            np.concatenate([np.empty(0, np.int64), *self.orders]),
            np.cumsum([0, *map(len, self.orders)]),
            np.array([METHODS.index(name) for name in self.names], np.int64),
            np.array([own.get("starts", 0) for own in options], np.int64),
            np.array([own.get("budget", 0) for own in options], np.int64),
            np.array([_key(*own) for own in zip(self.seeds, self.names, strict=True)], np.uint64),
            self.rule.presample, self.rule.pick,
        )  # fmt: skip


def _key(seed: int, name: str) -> np.uint64:
    return np.uint64(0) if name == "gbp-cs" else solver_key(seed, name)  # it draws nothing


def _divergence(counts: Floats, target: Floats) -> float:
    """Return ‖P − P_real‖₂ of all these batches together."""
    if not len(counts):
        return float("nan")
    pooled = counts.sum(axis=0)
    total = pooled.sum()
    return float(np.linalg.norm(pooled / total - target)) if total else MOST_DIVERGENCE
