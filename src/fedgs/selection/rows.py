"""The selection problem row by row, for solvers that look at whole choices or have too many devices for a Gram matrix.

The same score as in ``fedgs.selection.quadratic``, from ã_i = a_i − s_i·P and b̃ = b − Σb·P directly:

    f(x) = ‖Ãᵀx + b̃‖²,     score(x) = f(x)·(E/S(x))² − bonusᵀx,     E/S = 1 for equal batches
"""

from typing import NamedTuple

import numpy as np

from fedgs.compiled import kernel
from fedgs.selection.problem import MOST_DIVERGENCE, Flags, Floats, Indices, SelectionProblem
from fedgs.selection.quadratic import score_of, scores_of


class Rows(NamedTuple):
    """A choice of ``pick`` rows. A named tuple, because kernels take it as it is."""

    centred: Floats
    base: Floats
    bonus: Floats
    sizes: Floats
    base_size: float
    expected_size: float
    empty_score: float
    ratio: bool
    pick: int


def as_rows(problem: SelectionProblem) -> Rows:
    """Centre the rows of a problem."""
    return Rows(
        centred=problem.counts - problem.sizes[:, None] * problem.target,
        base=problem.base - problem.base_size * problem.target,
        bonus=problem.bonus,
        sizes=problem.sizes,
        base_size=problem.base_size,
        expected_size=problem.expected_size,
        empty_score=(MOST_DIVERGENCE * problem.expected_size) ** 2,
        ratio=not problem.equal_sizes,
        pick=problem.pick,
    )


def score_rows_oracle(rows: Rows, chosen: Indices) -> float:
    """Plain numpy version of :func:`score_rows`."""
    inside = np.zeros((1, len(rows.centred)), dtype=bool)
    inside[0, chosen] = True
    return float(score_many(rows, inside)[0])


@kernel(score_rows_oracle)
def score_rows(rows: Rows, chosen: Indices) -> float:
    """Score of one choice."""
    value, size, bonus = 0.0, rows.base_size, 0.0
    for i in chosen:
        size += rows.sizes[i]
        bonus += rows.bonus[i]
    for k in range(len(rows.base)):
        total = rows.base[k]
        for i in chosen:
            total += rows.centred[i, k]
        value += total * total
    return score_of(rows, value, size, bonus)


def score_many(rows: Rows, inside: Flags) -> Floats:
    """Scores of many choices at once: ``inside`` is (choices, devices)."""
    taken = inside.astype(np.float64)
    totals = taken @ rows.centred + rows.base
    values = np.einsum("ik,ik->i", totals, totals)
    return scores_of(rows, values, taken @ rows.sizes + rows.base_size, taken @ rows.bonus)
