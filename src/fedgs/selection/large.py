"""``large``: hundreds to tens of thousands of devices, where a Gram matrix of all of them would not fit.

1. Fill: take the devices one after the other, each time the one that leaves ‖Ãᵀx + b̃‖ smallest.
2. Repair: set most of the choice fast (it joins the base), put the rest into a small pool together with the outside
   devices that would be the cheapest to bring in and some at random, and solve that small problem by exact best swaps
   (``fedgs.selection.swap``), with a few random kicks. The score can only fall.

Step 2 is repeated; every pool is different, so what one of them cannot see another will. The number of repairs is
fixed, hence the same seed gives the same answer on a slow machine too; a time limit can be set on top.
"""

import time
from collections.abc import Callable

import numpy as np

from fedgs.compiled import composed
from fedgs.selection.algebra import members
from fedgs.selection.draws import draw_subset
from fedgs.selection.problem import NO_LIMIT, Flags, Floats, Indices, Key, Record, SelectionProblem
from fedgs.selection.quadratic import Quadratic, gram_form
from fedgs.selection.swap import descend

POOL = 600
"""Devices of a repair's small problem."""
FREED = 200
"""Most of the choice that one repair may exchange."""
KICKS = 16
"""Random restarts inside one repair."""
KICKED = 4
"""Devices a kick exchanges before descending again."""
FILL_WORK = 4_000_000
"""Rows looked at by the fill in all: beyond it, each step looks at a random sample (Mirzasoleiman et al., 2015)."""


def solve_large(
    problem: SelectionProblem, key: Key, record: Record | None, *, repairs: int = 10, seconds: float | None = None
) -> tuple[Indices, bool]:
    """Fill greedily, then repair ``repairs`` times or until ``seconds`` have passed."""
    deadline = None if seconds is None else time.perf_counter() + seconds
    random = np.random.Generator(np.random.Philox(key=int(key)))
    centred = problem.counts - problem.sizes[:, None] * problem.target
    base = problem.base - problem.base_size * problem.target
    own = np.einsum("ik,ik->i", centred, centred) - problem.bonus

    def costs(residual: Floats, seen: Indices | slice) -> Floats:
        """By how much ‖residual‖² (less the bonus) grows when each of the ``seen`` comes in.

        On one core: a threaded matrix product would wait for its threads longer than it computes.
        """
        found: Floats = 2.0 * np.einsum("ik,k->i", centred[seen], residual) + own[seen]
        return found

    inside, residual = np.zeros(len(centred), dtype=np.bool_), base.copy()
    for _ in range(problem.pick):
        best = _cheapest(costs, residual, inside, max(64, FILL_WORK // problem.pick), random)
        inside[best] = True
        residual += centred[best]
    if record is not None:
        record(np.flatnonzero(inside))
    for _ in range(repairs):
        if deadline is not None and time.perf_counter() >= deadline:
            break
        taken, others = np.flatnonzero(inside), np.flatnonzero(~inside)
        free = taken if len(taken) <= FREED else np.sort(random.choice(taken, FREED, replace=False))
        fixed = np.setdiff1d(taken, free, assume_unique=True)
        residual = base + centred[taken].sum(axis=0)
        pool = np.concatenate([free, _candidates(costs(residual, others), others, random)])
        picked = np.arange(len(free))
        form = _small_problem(problem, pool, fixed, len(free))
        improve(form, picked, KICKS, np.uint64(random.integers(2**63)))
        inside[free] = False
        inside[pool[picked]] = True
        if record is not None:
            record(np.flatnonzero(inside))
    return np.flatnonzero(inside), False


def _cheapest(
    costs: Callable[[Floats, Indices | slice], Floats],
    residual: Floats,
    inside: Flags,
    looked_at: int,
    random: np.random.Generator,
) -> int:
    """Return who is the cheapest to take next, of all or of ``looked_at`` drawn at random."""
    if looked_at >= len(inside):
        return int(np.argmin(np.where(inside, np.inf, costs(residual, slice(None)))))
    seen = random.integers(len(inside), size=looked_at)
    seen = seen[~inside[seen]]
    if not len(seen):  # the sample met members only
        seen = np.flatnonzero(~inside)
    return int(seen[np.argmin(costs(residual, seen))])


def _candidates(cost: Floats, others: Indices, random: np.random.Generator) -> Indices:
    """Return who might come in: the cheapest to add now, and some at random for variety."""
    wanted = POOL - FREED
    if len(others) <= wanted:
        return others
    order = np.argpartition(cost, wanted // 2)
    cheapest, rest = order[: wanted // 2], order[wanted // 2 :]
    drawn = random.choice(rest, wanted - len(cheapest), replace=False)
    candidates: Indices = others[np.concatenate([cheapest, drawn])]
    return candidates


def _small_problem(problem: SelectionProblem, pool: Indices, fixed: Indices, pick: int) -> Quadratic:
    # A pool may happen to have equal batches; the score is that of the whole problem all the same (``ratio``).
    return gram_form(
        problem.parts._replace(
            by_class=problem.counts[pool].T.copy(),
            base=problem.base + problem.counts[fixed].sum(axis=0),
            bonus=problem.bonus[pool],
            sizes=problem.sizes[pool],
            base_size=problem.base_size + float(problem.sizes[fixed].sum()),
            pick=pick,
        )
    )


@composed
def kick(devices: int, chosen: Indices, key: Key, skip: int) -> None:
    """Exchange a few of the chosen for others at random, with the words after the first ``skip`` ones."""
    inside = np.zeros(devices, dtype=np.bool_)
    for i in chosen:
        inside[i] = True
    for i in range(devices):
        inside[i] = not inside[i]
    outside = np.empty(devices - len(chosen), dtype=np.int64)
    members(inside, outside)
    exchanged = min(KICKED, len(chosen), len(outside))
    out = draw_subset(len(chosen), exchanged, key, skip)
    into = draw_subset(len(outside), exchanged, key, skip + exchanged)
    for k in range(exchanged):
        chosen[out[k]] = outside[into[k]]


@composed
def improve(form: Quadratic, chosen: Indices, kicks: int, key: Key) -> float:
    """Descend, then ``kicks`` times exchange a few devices at random and descend again; keep what is better."""
    best, _ = descend(form, chosen, NO_LIMIT)
    for number in range(kicks):
        trial = chosen.copy()
        kick(len(form.linear), trial, key, number * 2 * KICKED)
        found, _ = descend(form, trial, NO_LIMIT)
        if found < best - form.tolerance:
            best = found
            for k in range(len(chosen)):
                chosen[k] = trial[k]
    return best
