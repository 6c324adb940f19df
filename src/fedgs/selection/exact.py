"""``exact``: the proven optimum by a sphere decoder.

The score is a quadratic form, so picking devices is an integer least-squares problem (Fincke and Pohst, 1985) with
one extra condition, Σx = q. Two terms may be added that are constant on every feasible point:

    ρ²(Σx − q)² = 0     teaches the relaxation the condition
    ε·Σx_i²     = ε·q   makes the matrix positive definite even with more devices than classes, and lifts the bound
                        where variables are fixed: ε = a tenth of the mean diagonal needs 2 to 200 times fewer
                        nodes than a ridge that is only there for the numerics

With G' = G + ρ²·11ᵀ + ε·I = RᵀR, R upper triangular,  f(x) = ‖R(x − x̂)‖² + K,  x̂ = G'⁻¹(c + ρ²q·1),  and row r
of R sees only the variables from r on. Fixing the variables from the last to the first, the squares of the rows done
so far are a lower bound on f for everything below: depth-first search over which device comes in next, cut off where
the bound passes the best score known. That score starts from a few descents and is nearly always the optimum
already, so most of the work is the proof. The devices hardest to take are decided first.

Unequal batches (E, S as in ``fedgs.selection.quadratic``). S of any completion is at most S⁺, what is in plus the
largest sizes that may still come, so κ_d·f with κ_d = (E/S⁺)² bounds E²f/S² from below. The bonus, shifted to be
β ≥ 0, joins the linear term divided by the smallest such factor, κ. Then with φ = f − βᵀx/κ

    E²f/S² − βᵀx ≥ κ_d·φ  where φ ≥ 0,     and ≥ κ·φ  where φ < 0.

The number of nodes is budgeted. When the budget ends, the best choice so far is returned with ``proven=False``.
"""

from typing import NamedTuple

import numpy as np

from fedgs.compiled import composed, kernel
from fedgs.errors import SolverError
from fedgs.selection.problem import Floats, Indices, Key, Record, SelectionProblem
from fedgs.selection.quadratic import Quadratic, as_quadratic, score
from fedgs.selection.swap import best_descent

CARDINALITY_WEIGHT = 10.0
"""ρ² relative to the mean diagonal of G; much more costs digits, much less weakens the bound."""
RIDGE = 0.1
"""ε relative to the mean diagonal of G."""


class Relaxation(NamedTuple):
    """f(x) = ‖Rx − w‖² + K on the feasible points; the variables are decided from the last to the first."""

    factor: Floats
    """Rᵀ, lower triangular."""
    offset: Floats
    """w = Rx̂."""
    order: Indices
    """Which device stands at which place of R."""
    constant: float
    """K."""
    kappa: float
    """The smallest (E/S)² of any choice; 1 for equal batches."""
    shift: float
    """What was taken off each bonus; 0 for equal batches."""


def relax_oracle(form: Quadratic) -> Relaxation:
    """Plain numpy version of :func:`relax`."""
    devices, pick = len(form.linear), form.pick
    kappa, shift = 1.0, 0.0
    if form.ratio:
        shift = float(form.bonus.min())
        largest = form.base_size + float(np.sort(form.sizes)[devices - pick :].sum())
        kappa = (form.expected_size / largest) ** 2 if largest > 0.0 else 1.0
    unit = float(form.gram.diagonal().mean()) or 1.0
    weight, ridge = CARDINALITY_WEIGHT * unit, RIDGE * unit
    matrix = form.gram + weight + ridge * np.eye(devices)
    linear = form.linear + 0.5 * (form.bonus - shift) / kappa + weight * pick
    inverse = np.linalg.inv(matrix)
    centre = inverse @ linear
    order = np.argsort((1.0 - centre) * np.abs(1.0 - centre) / inverse.diagonal(), kind="stable")
    factor = np.linalg.cholesky(matrix[np.ix_(order, order)]).astype(np.float64)
    constant = form.constant + weight * pick * pick - ridge * pick - float(linear @ centre)
    return Relaxation(factor, factor.T @ centre[order], order, constant, kappa, shift)


@kernel(relax_oracle)
def relax(form: Quadratic) -> Relaxation:
    """Build the triangular factor, with the devices that cost most to take at the end of the order."""
    devices, pick = len(form.linear), form.pick
    kappa, shift = 1.0, 0.0
    if form.ratio:
        shift = form.bonus.min()
        largest = form.base_size + np.sort(form.sizes)[devices - pick :].sum()
        kappa = (form.expected_size / largest) ** 2 if largest > 0.0 else 1.0
    unit = 0.0
    for i in range(devices):
        unit += form.gram[i, i] / devices
    if unit == 0.0:
        unit = 1.0
    weight, ridge = CARDINALITY_WEIGHT * unit, RIDGE * unit
    matrix = np.empty((devices, devices))
    linear = np.empty(devices)
    for i in range(devices):
        linear[i] = form.linear[i] + 0.5 * (form.bonus[i] - shift) / kappa + weight * pick
        for j in range(devices):
            matrix[i, j] = form.gram[i, j] + weight
        matrix[i, i] += ridge
    inverse = np.linalg.inv(matrix)
    centre = inverse @ linear
    hardness = np.empty(devices)
    for i in range(devices):
        hardness[i] = (1.0 - centre[i]) * abs(1.0 - centre[i]) / inverse[i, i]
    order = np.argsort(hardness, kind="mergesort")
    ordered = np.empty((devices, devices))
    for i in range(devices):
        for j in range(devices):
            ordered[i, j] = matrix[order[i], order[j]]
    factor = np.linalg.cholesky(ordered).astype(np.float64)
    constant = form.constant + weight * pick * pick - ridge * pick - float(linear @ centre)
    return Relaxation(factor, factor.T @ centre[order], order, constant, kappa, shift)


def decode_oracle(form: Quadratic, chosen: Indices, budget: int) -> tuple[bool, int]:
    """Plain numpy version of :func:`decode`: breadth first, one level of the tree at a time."""
    devices, pick = len(form.linear), form.pick
    tree = relax(form)
    best = score(form, chosen) - form.tolerance + pick * tree.shift
    largest = np.concatenate([[0.0], np.cumsum(np.sort(form.sizes)[::-1])])
    places = np.arange(devices)
    picked = np.empty((1, 0), dtype=np.int64)
    residual, cost, cursor = -tree.offset[None, :], np.zeros(1), np.array([devices - 1])
    nodes = 0
    for depth in range(pick):
        if form.ratio:
            size = form.base_size + form.sizes[tree.order[picked]].sum(axis=1) + largest[pick - depth]
            loosest = (size / form.expected_size) ** 2 if form.expected_size > 0.0 else np.ones(len(size))
        else:
            loosest = np.ones(len(picked))
        limit = best * (loosest if best >= 0.0 else np.full(len(picked), 1.0 / tree.kappa)) - tree.constant
        # Leaving out everything between the cursor and place k, then taking k.
        squares = np.where(places <= cursor[:, None], residual**2, 0.0)
        skipped = cost[:, None] + np.cumsum(squares[:, ::-1], axis=1)[:, ::-1] - squares
        bound = skipped + (residual + tree.factor.diagonal()) ** 2
        open_ = (places <= cursor[:, None]) & (places >= pick - depth - 1) & (bound < limit[:, None])
        parent, place = np.nonzero(open_)
        nodes += len(parent)
        if nodes > budget:
            return False, nodes
        picked = np.column_stack([picked[parent], place])
        residual, cost, cursor = residual[parent] + tree.factor[place], bound[parent, place], place - 1
        limit = limit[parent]
    if len(picked):
        scores = [score(form, tree.order[row]) for row in picked]
        if min(scores) < best - pick * tree.shift:
            chosen[:] = tree.order[picked[int(np.argmin(scores))]]
    return True, nodes


@kernel(decode_oracle)
def decode(form: Quadratic, chosen: Indices, budget: int) -> tuple[bool, int]:
    """Replace ``chosen`` by the optimum if it is not one; return whether that is proven, and the nodes visited."""
    devices, pick = len(form.linear), form.pick
    tree = relax(form)
    best = score(form, chosen) - form.tolerance + pick * tree.shift
    largest = np.zeros(devices + 1)
    if form.ratio:
        largest[1:] = np.cumsum(np.sort(form.sizes)[::-1])
    residual = np.empty((pick + 1, devices))
    residual[0] = -tree.offset
    cost, size, loosest = np.zeros(pick + 1), np.zeros(pick + 1), np.ones(pick + 1)
    cursor = np.empty(pick + 1, dtype=np.int64)
    picked = np.empty(pick, dtype=np.int64)
    candidate = np.empty(pick, dtype=np.int64)
    size[0], cursor[0] = form.base_size, devices - 1
    if form.ratio and form.expected_size > 0.0:
        loosest[0] = ((size[0] + largest[pick]) / form.expected_size) ** 2
    nodes, depth = 0, 0
    while depth >= 0:
        limit = best * (loosest[depth] if best >= 0.0 else 1.0 / tree.kappa) - tree.constant
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
            if form.ratio:
                size[depth] = size[depth - 1] + form.sizes[tree.order[k]]
                if form.expected_size > 0.0:
                    loosest[depth] = ((size[depth] + largest[pick - depth]) / form.expected_size) ** 2
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
            if found < best - pick * tree.shift:
                best = found - form.tolerance + pick * tree.shift
                chosen[:] = candidate
    return True, nodes


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
    if budget < 0 or starts < 0:
        raise SolverError(f"exact cannot work with budget={budget} and starts={starts}; give 0 or more")
    form = as_quadratic(problem)
    if record is None:
        return prove(form, starts, key, budget)
    chosen, _ = best_descent(form, starts, key)
    record(chosen)
    proven, _ = decode(form, chosen, budget)
    record(chosen)
    return chosen, proven
