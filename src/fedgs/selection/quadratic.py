"""The score of a choice: in Gram form, N×N, for local searches and proofs, and row by row, N×F, for all others.

Subtract from every batch what the target would put there: ã_i = a_i − s_i·P, b̃ = b − Σb·P, where s_i is the size
of batch i. Then for every choice x, whatever the batch sizes,

    f(x) = ‖Ãᵀx + b̃‖² = xᵀGx − 2cᵀx + b̃ᵀb̃,      G = ÃÃᵀ,  c = −Ãb̃
    divergence(x)² = f(x) / S(x)²,                 S(x) = Σb + sᵀx, the samples of the super node

With equal batches S is the constant E = n·q + Σb and f is the paper's ‖Aᵀx − y‖². The score that solvers minimise is

    score(x) = f(x) − bonusᵀx                      equal batches
    score(x) = E²·f(x)/S(x)² − bonusᵀx             unequal ones (``ratio``): eq. complex-goal in the same units

Swapping i in and j out changes f by  Δ(i,j) = 2(g_i − g_j) + G_ii + G_jj − 2G_ij  with  g = Gx − c,  an O(1) formula;
after the swap  g ← g + G_i − G_j.

Solvers that look at whole choices, or have too many devices for a Gram matrix, take f from the rows Ã directly.
"""

from typing import NamedTuple

import numpy as np

from fedgs.compiled import composed
from fedgs.selection.problem import MOST_DIVERGENCE, Flags, Floats, Indices, KernelProblem, SelectionProblem


class Quadratic(NamedTuple):
    """A choice of ``pick`` out of N with a quadratic score. A named tuple, because kernels take it as it is."""

    gram: Floats
    linear: Floats
    constant: float
    bonus: Floats
    sizes: Floats
    base_size: float
    expected_size: float
    empty_score: float
    """Score (before bonus) of a choice without a single sample: 2E², no better than any other."""
    ratio: bool
    pick: int
    tolerance: float
    """Differences in score below this are rounding: a search that took them for progress could run for ever."""


class Rows(NamedTuple):
    """The same choice of ``pick`` rows without a Gram matrix."""

    centred: Floats
    base: Floats
    bonus: Floats
    sizes: Floats
    base_size: float
    expected_size: float
    empty_score: float
    ratio: bool
    pick: int


@composed
def gram_form(problem: KernelProblem) -> Quadratic:
    """Bring a problem into Gram form."""
    sizes, bonus, pick = problem.sizes, problem.bonus, problem.pick
    centred = problem.counts - sizes.reshape(-1, 1) * problem.target
    centred_base = problem.base - problem.base_size * problem.target
    gram = centred @ centred.T
    constant = float(centred_base @ centred_base)
    return Quadratic(
        gram,
        -(centred @ centred_base),
        constant,
        bonus.copy(),
        sizes.copy(),
        problem.base_size,
        problem.expected_size,
        (MOST_DIVERGENCE * problem.expected_size) ** 2,
        sizes.max() - sizes.min() > 1e-9 * sizes.mean(),
        pick,
        1e-12 * (pick * pick * np.diag(gram).max() + constant + pick * np.abs(bonus).max()),
    )


@composed
def score(form: Quadratic, chosen: Indices) -> float:
    """Score of a choice, from scratch."""
    value, size, bonus = form.constant, form.base_size, 0.0
    for i in chosen:
        value -= 2.0 * form.linear[i]
        size += form.sizes[i]
        bonus += form.bonus[i]
        for j in chosen:
            value += form.gram[i, j]
    return score_of(form, value, size, bonus)


@composed
def score_of(form: Quadratic | Rows, value: float, size: float, bonus: float) -> float:
    """Score of a choice from its f, its number of samples and the bonus it collects."""
    if not form.ratio:
        return value - bonus
    if size <= 0.0:
        return form.empty_score - bonus
    shrink = form.expected_size / size
    return value * shrink * shrink - bonus


@composed
def is_certain(form: Quadratic, found: float) -> bool:
    """Tell whether rounding is small enough for a proof: one device far larger than the others can drown them."""
    total, largest = 0.0, 0.0
    devices = len(form.linear)
    for i in range(devices):
        total += form.gram[i, i]
        largest = max(largest, form.gram[i, i])
    usual = (total - largest) / max(devices - 1, 1)
    return form.tolerance <= 1e-6 * max(abs(found), usual) or form.tolerance <= 1e-30


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


@composed
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
    if rows.ratio:
        sizes = taken @ rows.sizes + rows.base_size
        there = sizes > 0.0
        values = np.where(there, values * (rows.expected_size / np.where(there, sizes, 1.0)) ** 2, rows.empty_score)
    scores: Floats = values - taken @ rows.bonus
    return scores
