"""``gbp-cs``: gradient-based binary permutation client selection, as published.

Li et al., 2022, section V-B, Algorithm 2. Minimise d(x) = ‖Aᵀx − y‖₂ over 0-1 vectors with q ones:

    start     x₁: the q largest entries of the Moore–Penrose solution pinv(Aᵀ)·y    (eq. mp-init-solution)
    gradient  g = ∇d(x) ∝ A(Aᵀx − y)
    swap      in:  argmin g over the zeros, out: argmax g over the ones              (eqs. i-0to1, i-1to0, permute)
    stop      when d no longer decreases; the last better x is the answer            (eq. C_sel)

Two readings the paper leaves open. "Until d_s > d_{s−1}" would go round in circles for ever on ties, so only a strict
decrease goes on. The squared distance is compared, since the norm has no gradient at 0. Ties go to the lowest index.

Other starts (section VII-A): ``random`` sets q entries at random; ``zero`` begins with no device and takes, q times,
the device with the smallest gradient, measured, as in the authors' code, against the y of as many devices as are in.

A bonus, which the paper does not have, is subtracted from the squared distance and so from the gradient, halved.
"""

from typing import Literal

import numpy as np

from fedgs.compiled import composed, kernel
from fedgs.selection.algebra import (
    combine,
    combine_oracle,
    factorise,
    members,
    products,
    pseudo_solve,
    solve_factored,
    turned,
)
from fedgs.selection.draws import draw_subset
from fedgs.selection.problem import NO_LIMIT, Floats, Indices, Key, Record, SelectionProblem

Start = Literal["mpinv", "zero", "random"]
_RANK_TOLERANCE = 1e-10


@composed
def least_squares(by_class: Floats, wanted: Floats) -> Floats:
    """Return the shortest x that minimises ‖Aᵀx − y‖: pinv(Aᵀ)·y, from Aᵀ (classes, devices).

    Normal equations on the smaller side are ten times faster than a singular value decomposition.
    """
    classes, devices = by_class.shape
    if devices > classes:
        matrix, solution = products(turned(by_class)), wanted.copy()
    else:
        matrix, solution = products(by_class), combine(by_class, wanted)
    largest = 0.0
    for i in range(len(solution)):
        largest = max(largest, matrix[i, i])
    factor = matrix.copy()
    if factorise(factor, _RANK_TOLERANCE * largest):
        solve_factored(factor, solution)
    else:
        solution = pseudo_solve(matrix, solution, _RANK_TOLERANCE * largest)
    return combine(by_class, solution) if devices > classes else solution


def largest_entries_oracle(values: Floats, pick: int) -> Indices:
    """Plain numpy version of :func:`largest_entries`."""
    unit = 1e-9 * float(np.abs(values).max()) or 1.0
    found: Indices = np.sort(np.argsort(-np.rint(values / unit), kind="stable")[:pick])
    return found


@kernel(largest_entries_oracle)
def largest_entries(values: Floats, pick: int) -> Indices:
    """Return where the ``pick`` largest values stand; among equal ones (up to rounding) the lowest indices."""
    devices, largest = len(values), 0.0
    for i in range(devices):
        largest = max(largest, abs(values[i]))
    unit = 1e-9 * largest if largest > 0.0 else 1.0
    found, best = np.empty(pick, dtype=np.int64), np.empty(pick)
    kept = 0
    for i in range(devices):
        value, place = np.rint(values[i] / unit), kept
        while place > 0 and best[place - 1] < value:
            place -= 1
        if place < pick:
            kept = min(kept + 1, pick)
            for later in range(kept - 1, place, -1):
                found[later], best[later] = found[later - 1], best[later - 1]
            found[place], best[place] = i, value
    inside = np.zeros(devices, dtype=np.bool_)
    for place in range(pick):
        inside[found[place]] = True
    members(inside, found)
    return found


def permute_oracle(by_class: Floats, wanted: Floats, bonus: Floats, chosen: Indices, max_swaps: int) -> int:
    """Plain numpy version of :func:`permute`."""
    devices = by_class.shape[1]
    inside = np.isin(np.arange(devices), chosen)
    residual = combine_oracle(np.vstack([-wanted, by_class.T[chosen]]), np.ones(1 + len(chosen)))
    value = residual @ residual - bonus[inside].sum()
    tolerance = 1e-12 * (residual @ residual + wanted @ wanted + np.abs(bonus).sum())
    swaps = 0
    while swaps < max_swaps and 0 < len(chosen) < devices:
        gradient = combine_oracle(by_class, residual) - 0.5 * bonus
        into = int(np.argmin(np.where(inside, np.inf, gradient)))
        out = int(np.argmax(np.where(inside, gradient, -np.inf)))
        changed = residual + (by_class[:, into] - by_class[:, out])
        inside[into], inside[out] = True, False
        if not changed @ changed - bonus[inside].sum() < value - tolerance:
            break
        residual, value = changed, changed @ changed - bonus[inside].sum()
        chosen[:] = np.flatnonzero(inside)
        swaps += 1
    return swaps


@kernel(permute_oracle)
def permute(by_class: Floats, wanted: Floats, bonus: Floats, chosen: Indices, max_swaps: int) -> int:
    """Improve ``chosen`` in place by at most ``max_swaps`` swaps of steepest opposite gradients; return the swaps."""
    classes, devices = by_class.shape
    pick, swaps = len(chosen), 0
    inside, residual = np.zeros(devices, dtype=np.bool_), np.empty(classes)
    squares, scale, collected = 0.0, 0.0, 0.0
    for i in chosen:
        inside[i] = True
        collected += bonus[i]
    for k in range(classes):
        residual[k] = -wanted[k]
        for i in chosen:
            residual[k] += by_class[k, i]
        squares += residual[k] * residual[k]
        scale += wanted[k] * wanted[k]
    for i in range(devices):
        scale += abs(bonus[i])
    value, tolerance = squares - collected, 1e-12 * (squares + scale)
    while swaps < max_swaps and 0 < pick < devices:
        gradient = combine(by_class, residual)
        into, out = -1, -1
        for i in range(devices):
            gradient[i] -= 0.5 * bonus[i]
            if inside[i]:
                if out < 0 or gradient[i] > gradient[out]:
                    out = i
            elif into < 0 or gradient[i] < gradient[into]:
                into = i
        squares = 0.0
        for k in range(classes):
            changed = residual[k] + (by_class[k, into] - by_class[k, out])
            squares += changed * changed
        new = squares - (collected + bonus[into] - bonus[out])
        if not new < value - tolerance:
            break
        for k in range(classes):
            residual[k] += by_class[k, into] - by_class[k, out]
        collected += bonus[into] - bonus[out]
        value = new
        inside[into], inside[out] = True, False
        swaps += 1
    members(inside, chosen)
    return swaps


def solve_gbp_cs(
    problem: SelectionProblem, key: Key, record: Record | None, *, start: Start = "mpinv"
) -> tuple[Indices, bool]:
    """Run Algorithm 2 from one of its three starting points."""
    by_class, wanted, bonus = problem.parts.by_class, problem.wanted, problem.parts.bonus
    if start == "mpinv":
        chosen = largest_entries(least_squares(by_class, wanted), problem.pick)
    elif start == "random":
        chosen = draw_subset(len(problem.counts), problem.pick, key, 0)
    else:
        chosen = _fill_by_gradient(problem, record)
    if record is None:
        permute(by_class, wanted, bonus, chosen, NO_LIMIT)
        return chosen, False
    record(chosen)
    while permute(by_class, wanted, bonus, chosen, 1):
        record(chosen)
    return chosen, False


def _fill_by_gradient(problem: SelectionProblem, record: Record | None) -> Indices:
    """Take one device after the other, each time the one with the smallest gradient."""
    inside = np.zeros(len(problem.counts), dtype=np.bool_)
    residual = problem.base - problem.base_size * problem.target
    for _ in range(problem.pick):
        if record is not None:  # the warm-up is part of the curve
            record(np.flatnonzero(inside))
        gradient = problem.counts @ residual - 0.5 * problem.bonus
        best = int(np.argmin(np.where(inside, np.inf, gradient)))
        inside[best] = True
        residual += problem.counts[best] - problem.mean_size * problem.target
    return np.flatnonzero(inside)
