"""``exact``: the proven optimum by a sphere decoder; ``brute``: every choice there is, its yardstick.

Is there a choice better than the best one known, with score σ? With e = (s − s̄)/E, the sizes' deviations from their
mean, S(x) = E·(1 + eᵀx) on every choice, and a better one has  f(x) − (1 + eᵀx)²·(σ + bonusᵀx) < 0.  Let β be the mean
bonus of the choice known, d = bonus − β and τ = σ + qβ. With (S/E)² at its largest or smallest, whichever makes less of
each device, this becomes a quadratic form: exact for equal batches (e = 0) or without a bonus, else a lower bound:

    L(x) = f(x) − τ·(1 + eᵀx)² − Σ_i κ_i·d_i·x_i < 0,      κ_i = (S_max/E)² if d_i > 0 else (S_min/E)²

So the question is integer least squares (Fincke and Pohst, 1985) with one condition, Σx = q. Two terms may be added to
L that are constant on every choice:

    ρ²(Σx − q)² = 0     teaches the relaxation the condition
    ε·Σx_i²     = ε·q   makes the matrix positive definite even with more devices than classes, and lifts the bound
                        where variables are fixed: ε = a tenth of the mean diagonal needs 2 to 200 times fewer
                        nodes than a ridge that is only there for the numerics

With the matrix of L plus ρ²·11ᵀ + ε·I written as RᵀR, R upper triangular,  L(x) = ‖R(x − x̂)‖² + K,  and row r of R sees
only the variables from r on. Fixing the variables from the last to the first, the squares of the rows done so far
bound L from below for everything beneath: depth-first search over which device comes in next, cut off where the
bound reaches 0. The σ to beat comes from a few descents and is nearly always the optimum already, so most of the work
is the proof. The devices hardest to take are decided first.

A better choice found on the way, with score σ', lowers the bar: R was built for σ, so instead of building it anew the
search is cut off where the bound reaches −(σ − σ')·(S_min/E)², which is still no better than σ'.

The number of nodes is budgeted. When the budget ends, the best choice so far is returned with ``proven=False``.

The paper's brute-force sampler needed 979 s for the C(33, 8) = 13,884,156 choices of one factory. Walking them in
lexicographic order with the Gram form costs O(1) a choice: when device i joins,

    cost_k ← cost_k + 2·G_ik        for all later k,      f(x ∪ {k}) = f(x) + cost_k,   cost_k(∅) = G_kk − 2c_k.
"""

from contextlib import nullcontext
from math import comb
from typing import NamedTuple

import numpy as np

from fedgs.compiled import composed, kernel, running
from fedgs.errors import SolverError
from fedgs.selection.algebra import ascending, combine, factorise, solve_factored, turned
from fedgs.selection.problem import Floats, Indices, Key, Record, SelectionProblem
from fedgs.selection.quadratic import Quadratic, gram_form, is_certain, score, score_of
from fedgs.selection.swap import best_descent

CARDINALITY_WEIGHT = 10.0
"""ρ² relative to the mean diagonal of G; much more costs digits, much less weakens the bound."""
RIDGE = 0.1
"""ε relative to the mean diagonal of G."""
FEW_CHOICES = 100_000
"""Up to this, plain Python has tried all of them before they could be compiled for."""
MOST_CHOICES = 5_000_000_000
"""Beyond this, enumeration takes minutes even when compiled, so it is refused."""


class Relaxation(NamedTuple):
    """L(x) = ‖Rx − w‖² + K on every choice; the variables are decided from the last to the first."""

    factor: Floats
    """Rᵀ, lower triangular."""
    offset: Floats
    """w = Rx̂."""
    order: Indices
    """Which device stands at which place of R."""
    constant: float
    """K."""
    shrink: float
    """(S_min/E)²."""
    sound: bool
    """False where a bonus is so large that rounding swallows the rest: nothing can be proven."""


@composed
def relax(form: Quadratic, best: float, level: float) -> Relaxation:
    """Build R for beating the score ``best``, with the devices that cost most to take at the end of the order.

    ``level`` is the mean bonus of the best choice known (β).
    """
    devices, pick = len(form.linear), form.pick
    bar = best + pick * level
    deviations, most, least = np.zeros(devices), 1.0, 1.0
    unit, spread = 0.0, 0.0
    for i in range(devices):
        unit += form.gram[i, i] / devices
    if form.ratio:
        order = ascending(form.sizes)
        total, fewest, largest = 0.0, form.base_size, form.base_size
        for i in range(devices):
            total += form.sizes[i]
        for i in range(pick):
            fewest += form.sizes[order[i]]
            largest += form.sizes[order[devices - 1 - i]]
        most, least = largest / form.expected_size, fewest / form.expected_size
        most, least = most * most, least * least
        for i in range(devices):
            deviations[i] = (form.sizes[i] - total / devices) / form.expected_size
            spread += deviations[i] * deviations[i]
    if unit == 0.0:
        unit = 1.0
    # What −bar·eeᵀ may take away, the ridge gives back: the matrix is positive definite.
    weight, ridge = CARDINALITY_WEIGHT * unit, RIDGE * unit + max(bar, 0.0) * spread
    matrix, linear = np.empty((devices, devices)), np.empty(devices)
    for i in range(devices):
        for j in range(devices):
            matrix[i, j] = form.gram[i, j] - bar * deviations[i] * deviations[j] + weight
        matrix[i, i] += ridge
        extra = form.bonus[i] - level
        linear[i] = form.linear[i] + bar * deviations[i] + weight * pick
        linear[i] += 0.5 * (most if extra > 0.0 else least) * extra
    factor, centre = matrix.copy(), linear.copy()
    if not factorise(factor, 0.0):
        return Relaxation(factor, centre, ascending(centre), 0.0, least, False)
    solve_factored(factor, centre)
    hardness = inverse_diagonal(factor)
    for i in range(devices):
        hardness[i] = (1.0 - centre[i]) * abs(1.0 - centre[i]) / hardness[i]
    order = ascending(hardness)
    constant = form.constant - bar + weight * pick * pick - ridge * pick
    sorted_centre = np.empty(devices)
    for i in range(devices):
        constant -= linear[i] * centre[i]
        sorted_centre[i] = centre[order[i]]
        for j in range(devices):
            factor[i, j] = matrix[order[i], order[j]]
    sound = factorise(factor, 0.0)
    lower = turned(factor)
    return Relaxation(lower, combine(lower, sorted_centre), order, constant, least, sound)


def inverse_diagonal_oracle(factor: Floats) -> Floats:
    """Plain numpy version of :func:`inverse_diagonal`."""
    inverse, size = np.eye(len(factor)), len(factor)
    for i in range(size - 1, -1, -1):
        for k in range(i + 1, size):
            inverse[i, k:] -= factor[i, k] * inverse[k, k:]
        inverse[i, i:] /= factor[i, i]
    found: Floats = np.cumsum(inverse * inverse, axis=1)[:, -1]
    return found


@kernel(inverse_diagonal_oracle)
def inverse_diagonal(factor: Floats) -> Floats:
    """Return the diagonal of (RᵀR)⁻¹."""
    size = len(factor)
    inverse, found = np.zeros((size, size)), np.zeros(size)
    for i in range(size - 1, -1, -1):
        inverse[i, i] = 1.0
        for k in range(i + 1, size):
            step = factor[i, k]
            for j in range(k, size):
                inverse[i, j] -= step * inverse[k, j]
        for j in range(i, size):
            inverse[i, j] /= factor[i, i]
            found[i] += inverse[i, j] * inverse[i, j]
    return found


@composed
def decode(form: Quadratic, chosen: Indices, budget: int) -> tuple[bool, int]:
    """Replace ``chosen`` by the optimum if it is not one; return whether that is proven, and the nodes visited."""
    devices, pick = len(form.linear), form.pick
    first = score(form, chosen) - form.tolerance
    best = first
    level = 0.0
    for i in chosen:
        level += form.bonus[i] / pick
    tree = relax(form, first, level)
    if not tree.sound:
        return False, 0
    limit = -tree.constant
    residual = np.empty((pick, devices))
    for i in range(devices):
        residual[0, i] = -tree.offset[i]
    cost = np.zeros(pick)
    cursor = np.empty(pick, dtype=np.int64)
    cursor[0] = devices - 1
    picked = np.empty(pick, dtype=np.int64)
    candidate = np.empty(pick, dtype=np.int64)
    nodes, depth = 0, 0
    while depth >= 0:
        k = cursor[depth]
        if k < pick - depth - 1 or cost[depth] >= limit:
            depth -= 1
            continue
        # Place k is either taken (a node of its own) or left out (the search goes on at this depth).
        left_out = residual[depth, k]
        taken = left_out + tree.factor[k, k]
        bound = cost[depth] + taken * taken
        cursor[depth] = k - 1
        cost[depth] += left_out * left_out
        if bound >= limit:
            continue
        nodes += 1
        if nodes > budget:
            return False, nodes
        picked[depth] = k
        if depth + 1 < pick:
            depth += 1
            for r in range(k):
                residual[depth, r] = residual[depth - 1, r] + tree.factor[k, r]
            cost[depth], cursor[depth] = bound, k - 1
            continue
        for r in range(k):
            rest = residual[depth, r] + tree.factor[k, r]
            bound += rest * rest
            if bound >= limit:
                break
        if bound < limit:
            for d in range(pick):
                candidate[d] = tree.order[picked[d]]
            found = score(form, candidate)
            if found < best:
                best = found - form.tolerance
                limit = -tree.constant - (first - best) * tree.shrink
                for d in range(pick):
                    chosen[d] = candidate[d]
    return is_certain(form, best), nodes


@composed
def prove(form: Quadratic, starts: int, key: Key, budget: int) -> tuple[Indices, bool]:
    """Find a very good choice by descent, then prove it or replace it by the optimum."""
    chosen, _ = best_descent(form, starts, key)
    proven, _ = decode(form, chosen, budget)
    return chosen, proven


def solve_exact(
    problem: SelectionProblem, key: Key, record: Record | None, *, budget: int = 200_000, starts: int = 5
) -> tuple[Indices, bool]:
    """Prove the optimum, or return the best choice known when ``budget`` nodes are used up."""
    form = gram_form(problem.parts)
    if record is None:
        return prove(form, starts, key, budget)
    chosen, _ = best_descent(form, starts, key)
    record(chosen)
    proven, _ = decode(form, chosen, budget)
    record(chosen)
    return chosen, proven


def solve_brute(problem: SelectionProblem, key: Key, record: Record | None) -> tuple[Indices, bool]:
    """Try every choice."""
    devices, pick = len(problem.counts), problem.pick
    choices = comb(devices, pick)
    if choices > MOST_CHOICES:
        raise SolverError(
            f"brute would have to try {choices:.3g} choices ({pick} of {devices} devices); "
            "use solver='exact', which proves the optimum without trying them all"
        )
    form = gram_form(problem.parts)
    chosen = np.arange(pick)
    best = np.inf
    with running(compiled=True) if choices > FEW_CHOICES else nullcontext():
        for first in range(devices - pick + 1):
            found = enumerate_from(form, first, chosen, best)
            if record is not None and found < best:
                record(chosen)
            best = found
    if record is not None:
        record(chosen)
    return chosen, is_certain(form, best)


@composed
def enumerate_from(form: Quadratic, first: int, chosen: Indices, best: float) -> float:
    """Try all choices whose lowest device is ``first``; put one better than ``best`` into ``chosen``."""
    devices, pick = len(form.linear), form.pick
    cost = np.empty((pick, devices))
    value, size, bonus = np.empty(pick + 1), np.empty(pick + 1), np.empty(pick + 1)
    picked = np.empty(pick, dtype=np.int64)
    for k in range(devices):
        cost[0, k] = form.gram[k, k] - 2.0 * form.linear[k]
    value[0], size[0], bonus[0] = form.constant, form.base_size, 0.0
    depth, k = 0, first
    while True:
        if depth == pick - 1:
            last = devices if depth > 0 else first + 1
            if form.ratio:
                for i in range(k, last):
                    new_size, new_bonus = size[depth] + form.sizes[i], bonus[depth] + form.bonus[i]
                    found = score_of(form, value[depth] + cost[depth, i], new_size, new_bonus)
                    if found < best:
                        best = found
                        picked[depth] = i
                        for d in range(pick):
                            chosen[d] = picked[d]
            else:
                for i in range(k, last):
                    found = value[depth] + cost[depth, i] - bonus[depth] - form.bonus[i]
                    if found < best:
                        best = found
                        picked[depth] = i
                        for d in range(pick):
                            chosen[d] = picked[d]
        elif k <= devices - (pick - depth):
            picked[depth] = k
            value[depth + 1] = value[depth] + cost[depth, k]
            size[depth + 1] = size[depth] + form.sizes[k]
            bonus[depth + 1] = bonus[depth] + form.bonus[k]
            for i in range(k + 1, devices):
                cost[depth + 1, i] = cost[depth, i] + 2.0 * form.gram[k, i]
            depth, k = depth + 1, k + 1
            continue
        depth -= 1
        if depth <= 0:
            return best
        k = picked[depth] + 1
