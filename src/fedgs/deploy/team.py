"""One selection at a station (Algorithm 1, client selection): the class counts of who is ready in, a team out."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedgs.selection import SelectionProblem, solve
from fedgs.selection.presample import draw_beforehand, solver_seed
from fedgs.selection.problem import MOST_DIVERGENCE


@dataclass(frozen=True)
class Wanted:
    """What the top server wants a station to select."""

    pick: int
    presample: int
    solver: str
    start: str
    target: NDArray[np.float64]
    seed: int
    factory: int

    @property
    def options(self) -> dict[str, Any]:
        """Of the solver."""
        return {"start": self.start} if self.solver == "gbp-cs" and self.start not in ("", "mpinv") else {}


def select_team(counts: NDArray[np.int64], wanted: Wanted, iteration: int) -> tuple[NDArray[np.int64], float]:
    """Return the rows that are selected, sorted, and their divergence from the target.

    ``counts`` (devices, classes) in the order of the devices' names: the same devices with the same batches give the
    same team as in the simulator.
    """
    numbers = counts.astype(np.float64)
    drawn, others = draw_beforehand(
        np.arange(len(counts)), wanted.pick, wanted.presample, wanted.seed, iteration, wanted.factory
    )
    if not len(others):
        chosen = np.sort(drawn)
        total = numbers[chosen].sum(axis=0)
        size = total.sum()
        return chosen, float(np.linalg.norm(total / size - wanted.target)) if size else MOST_DIVERGENCE
    problem = SelectionProblem.trusted(
        numbers[others],
        wanted.target.copy(),
        wanted.pick - len(drawn),
        numbers[drawn].sum(axis=0),
        np.zeros(len(others)),
    )
    answer = solve(problem, wanted.solver, solver_seed(wanted.seed, iteration, wanted.factory), **wanted.options)
    return np.sort(np.concatenate([drawn, others[answer.chosen]])), answer.divergence
