"""One selection at a station (Algorithm 1, client selection): the class counts of who is ready in, a team out."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedgs.selection import SelectionProblem, solve
from fedgs.selection.coverage import fair_shares, typical_batch
from fedgs.selection.presample import random_order, solver_seed
from fedgs.selection.problem import MOST_DIVERGENCE


@dataclass(frozen=True)
class Wanted:
    """What the top server wants a station to select."""

    pick: int
    presample: int
    solver: str
    """A name, or package.module:name of one that is installed at the station."""
    options: Mapping[str, Any]
    """Of the solver."""
    target: NDArray[np.float64]
    seed: int
    factory: int
    coverage: float = 0.0
    """V of :mod:`fedgs.selection.coverage`, every device with the same share of turns; 0: off."""


def select_team(
    counts: NDArray[np.int64], wanted: Wanted, iteration: int, queue: NDArray[np.float64] | None = None
) -> tuple[NDArray[np.int64], float]:
    """Return the rows that are selected, sorted, and their divergence from the target.

    ``counts`` (devices, classes) in the order of the devices' names: the same devices with the same batches give the
    same team as in the simulator. ``queue``: turns each device is behind, with coverage.
    """
    numbers = counts.astype(np.float64)
    order = random_order(np.arange(len(counts)), wanted.seed, iteration, wanted.factory)
    if len(order) <= wanted.pick:  # all there are
        chosen = np.sort(order)
        total = numbers[chosen].sum(axis=0)
        size = total.sum()
        return chosen, float(np.linalg.norm(total / size - wanted.target)) if size else MOST_DIVERGENCE
    drawn, others = order[: wanted.presample], order[wanted.presample :]
    bonus = np.zeros(len(others))
    if wanted.coverage and queue is not None:
        bonus = wanted.coverage * typical_batch(numbers, wanted.target, order) * queue[others]
    problem = SelectionProblem.trusted(
        numbers[others],
        wanted.target.copy(),
        wanted.pick - len(drawn),
        numbers[drawn].sum(axis=0),
        bonus,
        numbers[others].sum(axis=1),
    )
    answer = solve(problem, wanted.solver, solver_seed(wanted.seed, iteration, wanted.factory), **wanted.options)
    return np.sort(np.concatenate([drawn, others[answer.chosen]])), answer.divergence


def turns_owed(queue: NDArray[np.float64], chosen: NDArray[np.int64], pick: int) -> NDArray[np.float64]:
    """Return the queues after an iteration: everybody who was there earns a share, the selected pay a turn."""
    after: NDArray[np.float64] = queue + fair_shares(np.ones(len(queue)), pick)
    after[chosen] -= 1.0
    return after
