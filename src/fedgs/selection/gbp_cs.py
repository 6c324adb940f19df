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
from fedgs.selection.draws import draw_subset
from fedgs.selection.problem import NO_LIMIT, Flags, Floats, Indices, Key, Record, SelectionProblem

Start = Literal["mpinv", "zero", "random"]
_RANK_TOLERANCE = 1e-10


def least_squares_oracle(counts: Floats, wanted: Floats) -> Floats:
    """Plain numpy version of :func:`least_squares`."""
    return np.linalg.lstsq(counts.T, wanted, rcond=None)[0].astype(np.float64)


@kernel(least_squares_oracle)
def least_squares(counts: Floats, wanted: Floats) -> Floats:
    """Return the shortest x that minimises ‖Aᵀx − y‖: pinv(Aᵀ)·y.

    Normal equations on the smaller side are ten times faster than a singular value decomposition; that is kept for
    matrices without full rank, which the Cholesky factor notices.
    """
    devices, classes = counts.shape
    wide = devices > classes
    matrix = counts.T @ counts if wide else counts @ counts.T
    solution = wanted.copy() if wide else counts @ wanted
    size = len(solution)
    largest = 0.0
    for i in range(size):
        largest = max(largest, matrix[i, i])
    for j in range(size):
        for k in range(j):
            matrix[j, j] -= matrix[j, k] * matrix[j, k]
        if matrix[j, j] <= _RANK_TOLERANCE * largest:
            return np.linalg.lstsq(counts.T.copy(), wanted, 1e-13)[0].astype(np.float64)
        matrix[j, j] = np.sqrt(matrix[j, j])
        for i in range(j + 1, size):
            for k in range(j):
                matrix[i, j] -= matrix[i, k] * matrix[j, k]
            matrix[i, j] /= matrix[j, j]
    for i in range(size):
        for k in range(i):
            solution[i] -= matrix[i, k] * solution[k]
        solution[i] /= matrix[i, i]
    for i in range(size - 1, -1, -1):
        for k in range(i + 1, size):
            solution[i] -= matrix[k, i] * solution[k]
        solution[i] /= matrix[i, i]
    return counts @ solution if wide else solution


@composed
def largest_entries(values: Floats, pick: int) -> Indices:
    """Return where the ``pick`` largest values stand; among equal ones (up to rounding) the lowest indices."""
    unit = 1e-9 * np.abs(values).max()
    if unit == 0.0:
        unit = 1.0
    return np.sort(np.argsort(-np.rint(values / unit), kind="mergesort")[:pick])


@composed
def fill_by_gradient(
    counts: Floats, target: Floats, base: Floats, bonus: Floats, size: float, base_size: float, inside: Flags, more: int
) -> None:
    """Mark ``more`` devices in ``inside``, one after the other the one with the smallest gradient."""
    devices = len(counts)
    residual = base - base_size * target
    for i in range(devices):
        if inside[i]:
            residual += counts[i] - size * target
    for _ in range(more):
        gradient = counts @ residual
        best = -1
        for i in range(devices):
            gradient[i] -= 0.5 * bonus[i]
            if not inside[i] and (best < 0 or gradient[i] < gradient[best]):
                best = i
        inside[best] = True
        residual += counts[best] - size * target


def permute_oracle(counts: Floats, wanted: Floats, bonus: Floats, chosen: Indices, max_swaps: int) -> int:
    """Plain numpy version of :func:`permute`."""
    inside = np.zeros(len(counts), dtype=bool)
    inside[chosen] = True
    residual = counts[inside].sum(axis=0) - wanted
    value = residual @ residual - bonus[inside].sum()
    tolerance = 1e-12 * (residual @ residual + wanted @ wanted + np.abs(bonus).sum())
    swaps = 0
    while swaps < max_swaps and 0 < len(chosen) < len(counts):
        gradient = counts @ residual - 0.5 * bonus
        into = int(np.argmin(np.where(inside, np.inf, gradient)))
        out = int(np.argmax(np.where(inside, gradient, -np.inf)))
        changed = residual + counts[into] - counts[out]
        inside[into], inside[out] = True, False
        if not changed @ changed - bonus[inside].sum() < value - tolerance:
            break
        residual, value = changed, changed @ changed - bonus[inside].sum()
        chosen[:] = np.flatnonzero(inside)
        swaps += 1
    return swaps


@kernel(permute_oracle)
def permute(counts: Floats, wanted: Floats, bonus: Floats, chosen: Indices, max_swaps: int) -> int:
    """Improve ``chosen`` in place by at most ``max_swaps`` swaps of steepest opposite gradients; return the swaps."""
    devices, classes = counts.shape
    pick = len(chosen)
    inside = np.zeros(devices, dtype=np.bool_)
    residual = -wanted
    collected = 0.0
    for i in chosen:
        inside[i] = True
        residual += counts[i]
        collected += bonus[i]
    squares = float(residual @ residual)
    value = squares - collected
    tolerance = 1e-12 * (squares + wanted @ wanted + np.abs(bonus).sum())
    swaps = 0
    while swaps < max_swaps and 0 < pick < devices:
        gradient = counts @ residual
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
            changed = residual[k] + counts[into, k] - counts[out, k]
            squares += changed * changed
        new = squares - (collected + bonus[into] - bonus[out])
        if not new < value - tolerance:
            break
        residual += counts[into] - counts[out]
        collected += bonus[into] - bonus[out]
        value = new
        inside[into], inside[out] = True, False
        swaps += 1
    chosen[:] = np.flatnonzero(inside)
    return swaps


def solve_gbp_cs(
    problem: SelectionProblem, key: Key, record: Record | None, *, start: Start = "mpinv"
) -> tuple[Indices, bool]:
    """Run Algorithm 2 from one of its three starting points."""
    chosen = _start(problem, key, record, start)
    wanted = problem.wanted
    if record is None:
        permute(problem.counts, wanted, problem.bonus, chosen, NO_LIMIT)
        return chosen, False
    record(chosen)
    while permute(problem.counts, wanted, problem.bonus, chosen, 1):
        record(chosen)
    return chosen, False


def _start(problem: SelectionProblem, key: Key, record: Record | None, start: Start) -> Indices:
    if start == "mpinv":
        return largest_entries(least_squares(problem.counts, problem.wanted), problem.pick)
    if start == "random":
        return draw_subset(len(problem.counts), problem.pick, key)
    inside = np.zeros(len(problem.counts), dtype=np.bool_)
    fixed = (problem.counts, problem.target, problem.base, problem.bonus, problem.mean_size, problem.base_size)
    if record is None:
        fill_by_gradient(*fixed, inside, problem.pick)
    else:  # the warm-up is part of the curve
        record(np.flatnonzero(inside))
        for _ in range(problem.pick - 1):
            fill_by_gradient(*fixed, inside, 1)
            record(np.flatnonzero(inside))
        fill_by_gradient(*fixed, inside, 1)
    return np.flatnonzero(inside)
