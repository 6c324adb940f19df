"""``random`` and ``monte-carlo``: choices at random, and the best of many of them (paper, section VII-A)."""

from fedgs.compiled import composed
from fedgs.selection.draws import draw_subset, start_key
from fedgs.selection.problem import Indices, Key, Record, SelectionProblem
from fedgs.selection.rows import Rows, as_rows, score_rows

_TRACED_BLOCK = 20


def solve_random(problem: SelectionProblem, key: Key, record: Record | None) -> tuple[Indices, bool]:
    """Take ``pick`` devices uniformly without replacement."""
    chosen = draw_subset(len(problem.counts), problem.pick, key)
    if record is not None:
        record(chosen)
    return chosen, False


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
