"""One iteration of selection (Algorithm 1, client selection), in the simulator and at a real station.

In iteration t factory m puts its devices into the random order of the stream (seed, "presample", t, m). The first L_rnd
of them are in the team (Algorithm 2, line 1) and their counts are b; the solver picks the other L − L_rnd. With
coverage it also sees a bonus for devices that are behind their fair share of turns (:mod:`fedgs.selection.coverage`).

The simulator's compiled loop over whole rounds (:mod:`fedgs.simulation.compiled_rounds`) gives the same teams.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from fedgs import rng
from fedgs.selection.batch import solve_batch
from fedgs.selection.coverage import typical_batch
from fedgs.selection.problem import MOST_DIVERGENCE, Floats, Indices, SelectionProblem
from fedgs.selection.solve import Solver, auto, solver_options


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
) -> list[Team]:
    """Select a team in every factory; all problems are solved together.

    Args:
        rule: how to select.
        iteration: of the run, from 0.
        counts: (devices, classes) of every device's next mini-batch.
        factories: the devices of each that can be selected now, rows of ``counts`` in the order of their names.
        queue: (devices,) turns each device is behind, with coverage.
        sizes: (devices,) samples each device has, for solvers that go by them; None: those of its mini-batch.
    """
    batches, target = counts.astype(np.float64), rule.target.copy()
    sizes = batches.sum(axis=1) if sizes is None else sizes
    first_seed = rng.key(rule.seed, "select", iteration) + rule.factory
    teams: list[Team | None] = [None] * len(factories)
    asked: list[tuple[int, Indices, Indices]] = []
    problems: list[SelectionProblem] = []
    for number, devices in enumerate(factories):
        order = rng.stream(rule.seed, "presample", iteration, rule.factory + number).permutation(devices)
        if len(order) <= rule.pick:  # all there are
            teams[number] = Team(np.sort(order), _divergence(batches[order], target), 0.0)
            continue
        drawn, others = order[: rule.presample], order[rule.presample :]
        bonus = np.zeros(len(others))
        if rule.coverage and queue is not None:
            bonus = rule.coverage * typical_batch(batches, target, order) * queue[others]
        base = batches[drawn].sum(axis=0)
        asked.append((number, drawn, others))
        problems.append(
            SelectionProblem.trusted(batches[others], target, rule.pick - len(drawn), base, bonus, sizes[others])
        )
    if isinstance(rule.solver, str) and ":" not in rule.solver:
        for name in {auto(problem) if rule.solver == "auto" else rule.solver for problem in problems}:
            _warm_up(name, tuple(rule.options.items()))
    answers = solve_batch(problems, rule.solver, [first_seed + number for number, *_ in asked], **rule.options)
    for (number, drawn, others), answer in zip(asked, answers, strict=True):
        chosen = np.sort(np.concatenate([drawn, others[answer.chosen]]))
        teams[number] = Team(chosen, answer.divergence, answer.seconds)
    return [team for team in teams if team is not None]


def _divergence(counts: Floats, target: Floats) -> float:
    """Return ‖P − P_real‖₂ of all these batches together."""
    if not len(counts):
        return float("nan")
    pooled = counts.sum(axis=0)
    total = pooled.sum()
    return float(np.linalg.norm(pooled / total - target)) if total else MOST_DIVERGENCE


@cache
def _warm_up(solver: str, options: tuple[tuple[str, Any], ...]) -> None:
    """Compile or load the kernels of a solver once, so that the time of its first selection is its own."""
    if solver != "bayesian":  # which has none
        solve_batch([SelectionProblem(np.eye(3), np.full(3, 1 / 3), 1)], solver, **dict(options))
