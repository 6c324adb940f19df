"""The score of a choice, in Gram form for local searches and proofs.

Subtract from every batch what the target would put there: ã_i = a_i − s_i·P, b̃ = b − Σb·P, where s_i is the size
of batch i. Then for every choice x, whatever the batch sizes,

    f(x) = ‖Ãᵀx + b̃‖² = xᵀGx − 2cᵀx + b̃ᵀb̃,      G = ÃÃᵀ,  c = −Ãb̃
    divergence(x)² = f(x) / S(x)²,                 S(x) = Σb + sᵀx, the samples of the super node

With equal batches S is the constant E = n·q + Σb and f is the paper's ‖Aᵀx − y‖². The score that solvers minimise is

    score(x) = f(x) − bonusᵀx                      equal batches
    score(x) = E²·f(x)/S(x)² − bonusᵀx             unequal ones (``ratio``): eq. complex-goal in the same units

Swapping i in and j out changes f by  Δ(i,j) = 2(g_i − g_j) + G_ii + G_jj − 2G_ij  with  g = Gx − c,  an O(1) formula;
after the swap  g ← g + G_i − G_j.

Solvers that look at whole choices, or have too many devices for a Gram matrix, take the score from the rows of counts.
"""

from typing import NamedTuple

import numpy as np

from fedgs.compiled import composed, kernel
from fedgs.selection.algebra import combine, products
from fedgs.selection.problem import MOST_DIVERGENCE, Floats, Indices, KernelProblem, measure


class Quadratic(NamedTuple):
    """A choice of ``pick`` out of N with a quadratic score. A named tuple, because kernels take it as it is."""

    gram: Floats
    linear: Floats
    constant: float
    bonus: Floats
    sizes: Floats
    base_size: float
    expected_size: float
    ratio: bool
    pick: int
    tolerance: float
    """Differences in score below this are rounding: a search that took them for progress could run for ever."""


def centre_oracle(problem: KernelProblem) -> tuple[Floats, Floats]:
    """Plain numpy version of :func:`centre`."""
    centred = problem.by_class - problem.sizes * problem.target[:, None]
    return centred, problem.base_size * problem.target - problem.base


@kernel(centre_oracle)
def centre(problem: KernelProblem) -> tuple[Floats, Floats]:
    """Return Ãᵀ and −b̃."""
    classes, devices = problem.by_class.shape
    centred, offset = np.empty((classes, devices)), np.empty(classes)
    for k in range(classes):
        share = problem.target[k]
        offset[k] = problem.base_size * share - problem.base[k]
        for i in range(devices):
            centred[k, i] = problem.by_class[k, i] - problem.sizes[i] * share
    return centred, offset


@composed
def gram_form(problem: KernelProblem) -> Quadratic:
    """Bring a problem into Gram form."""
    devices, pick = len(problem.sizes), problem.pick
    centred, offset = centre(problem)
    gram = products(centred)
    constant = 0.0
    for k in range(len(offset)):
        constant += offset[k] * offset[k]
    largest, most_bonus = 0.0, 0.0
    for i in range(devices):
        largest, most_bonus = max(largest, gram[i, i]), max(most_bonus, abs(problem.bonus[i]))
    tolerance = 1e-12 * (pick * pick * largest + constant + pick * most_bonus)
    return Quadratic(
        gram, combine(centred, offset), constant, problem.bonus, problem.sizes, problem.base_size,
        problem.expected_size, problem.ratio, pick, tolerance,
    )  # fmt: skip


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
def score_of(form: Quadratic, value: float, size: float, bonus: float) -> float:
    """Score of a choice from its f, its number of samples and the bonus it collects."""
    if not form.ratio:
        return value - bonus
    if size <= 0.0:  # no better than any other choice
        return MOST_DIVERGENCE * form.expected_size * (MOST_DIVERGENCE * form.expected_size) - bonus
    shrink = form.expected_size / size
    return value * shrink * shrink - bonus


@composed
def score_rows(problem: KernelProblem, chosen: Indices) -> float:
    """Score of a choice from its rows of counts."""
    divergence, distance = measure(problem, chosen)
    root = divergence * problem.expected_size if problem.ratio else distance
    bonus = 0.0
    for i in chosen:
        bonus += problem.bonus[i]
    return root * root - bonus


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
