"""``swap`` and ``multistart``: steepest descent over exact swaps.

GBP-CS guesses from the gradient which pair to swap; here all q·(N−q) pairs are evaluated with the O(1) formula of
``fedgs.selection.quadratic`` and the best one is taken, until none improves the score. One descent from the paper's
start ends a few per cent above the optimum; the best of a dozen descents from a greedy and from random starts is
nearly always the optimum itself.
"""

import numpy as np

from fedgs.compiled import composed, kernel
from fedgs.selection.algebra import members
from fedgs.selection.draws import draw_subset
from fedgs.selection.gbp_cs import largest_entries, least_squares
from fedgs.selection.problem import NO_LIMIT, Indices, Key, Record, SelectionProblem
from fedgs.selection.quadratic import Quadratic, gram_form, score_of


def descend_oracle(form: Quadratic, chosen: Indices, max_swaps: int) -> tuple[float, int]:
    """Plain numpy version of :func:`descend`: all swaps of a step in one matrix."""
    devices, pick, swaps = len(form.linear), len(chosen), 0
    inside = np.zeros(devices, dtype=np.bool_)
    inside[chosen] = True
    gradient = np.cumsum([-form.linear, *form.gram[chosen]], axis=0)[-1]
    value, size, bonus = form.constant, form.base_size, 0.0
    for j in chosen.tolist():
        value, size, bonus = value - form.linear[j], size + form.sizes[j], bonus + form.bonus[j]
    for j in chosen.tolist():
        value += gradient[j]
    current = score_of(form, value, size, bonus)
    own = np.diag(form.gram)
    while swaps < max_swaps and 0 < pick < devices:
        out = np.flatnonzero(inside)
        entering, leaving = 2.0 * gradient + own, own - 2.0 * gradient
        change = entering + leaving[out, None] - 2.0 * form.gram[out]
        new_bonus = bonus - form.bonus[out, None] + form.bonus
        if form.ratio:
            new_size = size - form.sizes[out, None] + form.sizes
            shrink = form.expected_size / np.where(new_size > 0.0, new_size, 1.0)
            full = (value + change) * shrink * shrink - new_bonus
            swapped = np.where(new_size > 0.0, full, score_of(form, 0.0, 0.0, 0.0) - new_bonus)
        else:
            swapped = value + change - new_bonus
        swapped[:, inside] = np.inf
        row, into = divmod(int(np.argmin(swapped)), devices)
        if not swapped[row, into] < current - form.tolerance:
            break
        gone, current = int(out[row]), float(swapped[row, into])
        value += entering[into] + own[gone] - 2.0 * gradient[gone]
        value -= 2.0 * form.gram[gone, into]
        size += form.sizes[into] - form.sizes[gone]
        bonus += form.bonus[into] - form.bonus[gone]
        inside[gone], inside[into] = False, True
        gradient += form.gram[into] - form.gram[gone]
        swaps += 1
    chosen[:] = np.flatnonzero(inside)
    return float(current), swaps


@kernel(descend_oracle)
def descend(form: Quadratic, chosen: Indices, max_swaps: int) -> tuple[float, int]:
    """Improve ``chosen`` in place by at most ``max_swaps`` best swaps; return its score and the swaps made."""
    devices, pick = len(form.linear), len(chosen)
    inside = np.zeros(devices, dtype=np.bool_)
    for i in chosen:
        inside[i] = True
    gradient = np.empty(devices)
    for i in range(devices):
        gradient[i] = -form.linear[i]
    value, size, bonus = form.constant, form.base_size, 0.0
    for j in chosen:
        value -= form.linear[j]
        size += form.sizes[j]
        bonus += form.bonus[j]
        for i in range(devices):
            gradient[i] += form.gram[j, i]
    for j in chosen:
        value += gradient[j]
    current = score_of(form, value, size, bonus)
    entering = np.empty(devices)
    swapped = np.empty(devices)
    # Members are no candidates. Added to all scores alike, so that the loop over them has no branch and is vectorised.
    barred = np.zeros(devices)
    for i in chosen:
        barred[i] = np.inf
    swaps = 0
    while swaps < max_swaps and 0 < pick < devices:
        for i in range(devices):
            entering[i] = 2.0 * gradient[i] + form.gram[i, i]
        best, best_out, best_in = current - form.tolerance, -1, -1
        for out in range(devices):
            if not inside[out]:
                continue
            leaving = form.gram[out, out] - 2.0 * gradient[out]
            if form.ratio:
                for into in range(devices):
                    change = entering[into] + leaving - 2.0 * form.gram[out, into]
                    new_bonus = bonus - form.bonus[out] + form.bonus[into]
                    new_size = size - form.sizes[out] + form.sizes[into]
                    swapped[into] = score_of(form, value + change, new_size, new_bonus) + barred[into]
            else:
                for into in range(devices):
                    change = entering[into] + leaving - 2.0 * form.gram[out, into]
                    new_bonus = bonus - form.bonus[out] + form.bonus[into]
                    swapped[into] = value + change - new_bonus + barred[into]
            for into in range(devices):
                if swapped[into] < best:
                    best, best_out, best_in = swapped[into], out, into
        if best_out < 0:
            break
        value += entering[best_in] + form.gram[best_out, best_out] - 2.0 * gradient[best_out]
        value -= 2.0 * form.gram[best_out, best_in]
        size += form.sizes[best_in] - form.sizes[best_out]
        bonus += form.bonus[best_in] - form.bonus[best_out]
        current = best
        inside[best_out], inside[best_in] = False, True
        barred[best_out], barred[best_in] = 0.0, np.inf
        for i in range(devices):
            gradient[i] += form.gram[best_in, i] - form.gram[best_out, i]
        swaps += 1
    members(inside, chosen)
    return current, swaps


@composed
def greedy(form: Quadratic) -> Indices:
    """Take one device after the other, each time the one that leaves the sum closest to the target."""
    devices = len(form.linear)
    inside, cost = np.zeros(devices, dtype=np.bool_), np.empty(devices)
    for i in range(devices):
        cost[i] = form.gram[i, i] - 2.0 * form.linear[i] - form.bonus[i]
    for _ in range(form.pick):
        best = -1
        for i in range(devices):
            if not inside[i] and (best < 0 or cost[i] < cost[best]):
                best = i
        inside[best] = True
        for i in range(devices):
            cost[i] += 2.0 * form.gram[best, i]
    chosen = np.empty(form.pick, dtype=np.int64)
    members(inside, chosen)
    return chosen


@composed
def best_descent(form: Quadratic, starts: int, key: Key) -> tuple[Indices, float]:
    """Descend from the greedy choice and from ``starts`` random ones; return the best end and its score."""
    best = greedy(form)
    best_score, _ = descend(form, best, NO_LIMIT)
    for start in range(starts):
        chosen = draw_subset(len(form.linear), form.pick, key, start * form.pick)
        found, _ = descend(form, chosen, NO_LIMIT)
        if found < best_score - form.tolerance:
            best, best_score = chosen, found
    return best, best_score


def solve_swap(problem: SelectionProblem, key: Key, record: Record | None) -> tuple[Indices, bool]:
    """Descend once, from where GBP-CS starts."""
    chosen = largest_entries(least_squares(problem.parts.by_class, problem.wanted), problem.pick)
    _descend(gram_form(problem.parts), chosen, record)
    return chosen, False


def solve_multistart(
    problem: SelectionProblem, key: Key, record: Record | None, *, starts: int = 16
) -> tuple[Indices, bool]:
    """Descend from the greedy choice and from ``starts`` random ones; the best end wins."""
    form = gram_form(problem.parts)
    if record is None:
        return best_descent(form, starts, key)[0], False
    best = greedy(form)
    best_score = _descend(form, best, record)
    for start in range(starts):
        chosen = draw_subset(len(form.linear), form.pick, key, start * form.pick)
        found, _ = descend(form, chosen, NO_LIMIT)
        if found < best_score - form.tolerance:
            best, best_score = chosen, found
            record(best)
    record(best)
    return best, False


def _descend(form: Quadratic, chosen: Indices, record: Record | None) -> float:
    if record is None:
        return descend(form, chosen, NO_LIMIT)[0]
    record(chosen)
    while True:
        value, swaps = descend(form, chosen, 1)
        if not swaps:
            return value
        record(chosen)
