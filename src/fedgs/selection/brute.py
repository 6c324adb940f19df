"""``brute``: every choice there is, the yardstick of the other solvers.

The paper's brute-force sampler needed 979 s for the C(33, 8) = 13,884,156 choices of one factory. Walking them in
lexicographic order with the Gram form of ``fedgs.selection.quadratic`` costs O(1) a choice: when device i joins,

    cost_k ← cost_k + 2·G_ik        for all later k,      f(x ∪ {k}) = f(x) + cost_k,   cost_k(∅) = G_kk − 2c_k.
"""

from collections.abc import Iterator
from itertools import combinations, islice
from math import comb

import numpy as np

from fedgs.compiled import kernel
from fedgs.errors import SolverError
from fedgs.selection.problem import Indices, Key, Record, SelectionProblem
from fedgs.selection.quadratic import Quadratic, gram_form, is_certain, score_of, scores_of

MOST_CHOICES = 5_000_000_000
"""Beyond this, enumeration takes minutes even when compiled, so it is refused."""
_BLOCK = 100_000


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
    for first in range(devices - pick + 1):
        found = enumerate_from(form, first, chosen, best)
        if record is not None and found < best:
            record(chosen)
        best = found
    if record is not None:
        record(chosen)
    return chosen, is_certain(form, best)


def enumerate_from_oracle(form: Quadratic, first: int, chosen: Indices, best: float) -> float:
    """Plain numpy version of :func:`enumerate_from`: all remaining places of a block of choices at once."""
    rest = np.arange(first + 1, len(form.linear))
    for block in _blocks(rest, form.pick - 1):
        rows = np.column_stack([np.full(len(block), first), block])
        values = form.gram[rows[:, :, None], rows[:, None, :]].sum(axis=(1, 2))
        values += form.constant - 2.0 * form.linear[rows].sum(axis=1)
        sizes, bonus = form.base_size + form.sizes[rows].sum(axis=1), form.bonus[rows].sum(axis=1)
        scores = scores_of(form, values, sizes, bonus)
        lowest = int(np.argmin(scores))
        if scores[lowest] < best:
            best = float(scores[lowest])
            chosen[:] = rows[lowest]
    return best


def _blocks(items: Indices, pick: int) -> Iterator[Indices]:
    walk = combinations(items.tolist(), pick)
    while block := list(islice(walk, _BLOCK)):
        yield np.array(block, dtype=np.int64).reshape(len(block), pick)


@kernel(enumerate_from_oracle)
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
                        chosen[:] = picked
            else:
                for i in range(k, last):
                    found = value[depth] + cost[depth, i] - bonus[depth] - form.bonus[i]
                    if found < best:
                        best = found
                        picked[depth] = i
                        chosen[:] = picked
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
