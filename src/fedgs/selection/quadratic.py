"""The selection problem in Gram form: everything a local search or a proof needs, N×N instead of N×F.

Subtract from every batch what the target would put there: ã_i = a_i − s_i·P, b̃ = b − Σb·P, where s_i is the size
of batch i. Then for every choice x, whatever the batch sizes,

    f(x) = ‖Ãᵀx + b̃‖² = xᵀGx − 2cᵀx + b̃ᵀb̃,      G = ÃÃᵀ,  c = −Ãb̃
    divergence(x)² = f(x) / S(x)²,                 S(x) = Σb + sᵀx, the samples of the super node

With equal batches S is the constant E = n·q + Σb and f is the paper's ‖Aᵀx − y‖². The score that solvers minimise is

    score(x) = f(x) − bonusᵀx                      equal batches
    score(x) = E²·f(x)/S(x)² − bonusᵀx             unequal ones (``ratio``): eq. complex-goal in the same units

Swapping i in and j out changes f by  Δ(i,j) = 2(g_i − g_j) + G_ii + G_jj − 2G_ij  with  g = Gx − c,  an O(1) formula;
after the swap  g ← g + G_i − G_j.
"""

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from fedgs.compiled import composed, kernel
from fedgs.selection.problem import MOST_DIVERGENCE, Floats, Indices, KernelProblem

if TYPE_CHECKING:
    from fedgs.selection.rows import Rows


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


def gram_form_oracle(problem: KernelProblem) -> Quadratic:
    """Plain numpy version of :func:`gram_form`."""
    sizes, bonus, pick = problem.sizes, problem.bonus, problem.pick
    centred = problem.counts - sizes[:, None] * problem.target
    centred_base = problem.base - problem.base_size * problem.target
    gram = centred @ centred.T
    constant = float(centred_base @ centred_base)
    return Quadratic(
        gram=gram,
        linear=-(centred @ centred_base),
        constant=constant,
        bonus=bonus,
        sizes=sizes,
        base_size=problem.base_size,
        expected_size=problem.expected_size,
        empty_score=(MOST_DIVERGENCE * problem.expected_size) ** 2,
        ratio=bool(np.ptp(sizes) > 1e-9 * sizes.mean()),
        pick=pick,
        tolerance=1e-12 * (pick * pick * float(gram.diagonal().max()) + constant + pick * float(np.abs(bonus).max())),
    )


@kernel(gram_form_oracle)
def gram_form(problem: KernelProblem) -> Quadratic:
    """Bring a problem into Gram form."""
    sizes, bonus, pick = problem.sizes, problem.bonus, problem.pick
    devices, classes = problem.counts.shape
    centred = np.empty((devices, classes))
    for i in range(devices):
        for k in range(classes):
            centred[i, k] = problem.counts[i, k] - sizes[i] * problem.target[k]
    centred_base = problem.base - problem.base_size * problem.target
    gram = centred @ centred.T
    constant = float(centred_base @ centred_base)
    largest = 0.0
    for i in range(devices):
        largest = max(largest, gram[i, i])
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
        1e-12 * (pick * pick * largest + constant + pick * np.abs(bonus).max()),
    )


def score_oracle(form: Quadratic, chosen: Indices) -> float:
    """Plain numpy version of :func:`score`."""
    value = form.gram[np.ix_(chosen, chosen)].sum() - 2.0 * form.linear[chosen].sum() + form.constant
    return score_of(
        form, float(value), form.base_size + float(form.sizes[chosen].sum()), float(form.bonus[chosen].sum())
    )


@kernel(score_oracle)
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


def scores_of(form: "Quadratic | Rows", values: Floats, sizes: Floats, bonuses: Floats) -> Floats:
    """Return the scores of many choices from their f, their numbers of samples and the bonuses they collect."""
    if form.ratio:
        there = sizes > 0.0
        shrunk = values * (form.expected_size / np.where(there, sizes, 1.0)) ** 2
        values = np.where(there, shrunk, form.empty_score)
    return values - bonuses


@composed
def score_of(form: "Quadratic | Rows", value: float, size: float, bonus: float) -> float:
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
