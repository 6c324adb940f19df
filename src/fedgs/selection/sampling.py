"""``random``, ``random-by-data`` and ``monte-carlo``: choices at random, and the best of many of them (section VII-A).

``random-by-data`` draws without replacement so that device i comes in with the chance s_i = min(1, λ·w_i), Σ s_i = q,
exactly in proportion to its data w_i as long as no chance is cut off at 1: systematic sampling (Madow, 1949) over
the devices in random order. Lay the chances end to end and take the devices that lie under u, u + 1, …, u + q − 1,
where u is uniform in [0, 1).
"""

import numpy as np

from fedgs.compiled import composed
from fedgs.selection.coverage import fair_shares
from fedgs.selection.draws import draw_subset, mix, start_key
from fedgs.selection.problem import Floats, Indices, Key, Record, SelectionProblem
from fedgs.selection.rows import Rows, as_rows, score_rows

_TRACED_BLOCK = 20


def solve_random(problem: SelectionProblem, key: Key, record: Record | None) -> tuple[Indices, bool]:
    """Take ``pick`` devices uniformly without replacement."""
    chosen = draw_subset(len(problem.counts), problem.pick, key)
    if record is not None:
        record(chosen)
    return chosen, False


def solve_random_by_data(problem: SelectionProblem, key: Key, record: Record | None) -> tuple[Indices, bool]:
    """Take ``pick`` devices without replacement, with chances in proportion to their weights."""
    chosen = draw_by_weight(problem.weights, problem.pick, key)
    if record is not None:
        record(chosen)
    return chosen, False


@composed
def draw_by_weight(weights: Floats, pick: int, key: Key) -> Indices:
    """Draw ``pick`` devices; each comes in with its fair share of ``pick`` as its chance."""
    devices = len(weights)
    shares = fair_shares(weights, pick)
    order = draw_subset(devices, devices, key)
    # The word after those of the shuffle; 53 bits of it make a number in [0, 1).
    point = float(mix(start_key(key, devices + 1, 1)) >> np.uint64(11)) / 9007199254740992.0
    chosen = np.empty(pick, dtype=np.int64)
    taken, reach = 0, 0.0
    for place in range(devices):
        i = order[place]
        reach += shares[i]
        # Rounding may leave the last point beyond the end: then the last devices take what is left.
        if taken < pick and (reach > point + taken or devices - place == pick - taken):
            chosen[taken] = i
            taken += 1
    return np.sort(chosen)


def solve_monte_carlo(
    problem: SelectionProblem, key: Key, record: Record | None, *, draws: int = 1000
) -> tuple[Indices, bool]:
    """Draw ``draws`` times at random (paper: 1000) and keep the best."""
    rows = as_rows(problem)
    chosen = draw_subset(len(problem.counts), problem.pick, key)
    if record is None:
        best_of_draws(rows, chosen, key, 0, draws)
        return chosen, False
    for first in range(0, draws, _TRACED_BLOCK):
        best_of_draws(rows, chosen, key, first, min(first + _TRACED_BLOCK, draws))
        record(chosen)
    return chosen, False


@composed
def best_of_draws(rows: Rows, chosen: Indices, key: Key, first: int, last: int) -> None:
    """Replace ``chosen`` by the best of the draws numbered ``first`` to ``last`` if that is better."""
    best = score_rows(rows, chosen)
    for number in range(first, last):
        drawn = draw_subset(len(rows.centred), rows.pick, start_key(key, number, rows.pick))
        found = score_rows(rows, drawn)
        if found < best:
            best = found
            chosen[:] = drawn
