"""``large``: hundreds to tens of thousands of devices, where a Gram matrix of all of them would not fit.

1. Fill: take the devices one after the other, each time the one that leaves ‖Ãᵀx + b̃‖ smallest.
2. Repair: set most of the choice fast (it joins the base), put the rest into a small pool together with the outside
   devices that would be the cheapest to bring in and some at random, and solve that small problem by exact best swaps
   (``fedgs.selection.swap``), with a few random kicks. The score can only fall.

Step 2 is repeated; every pool is different, so what one of them cannot see another will. The number of repairs is
fixed, hence the same seed gives the same answer on a slow machine too; a time limit can be set on top.
"""

import time

import numpy as np

from fedgs.compiled import composed, kernel
from fedgs.selection.draws import draw_subset, start_key
from fedgs.selection.problem import NO_LIMIT, Flags, Floats, Indices, Key, Record, SelectionProblem
from fedgs.selection.quadratic import Quadratic, Rows, as_rows, gram_form
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
    rows = as_rows(problem)
    own = np.einsum("ik,ik->i", rows.centred, rows.centred) - rows.bonus
    inside = _fill(rows, own, random)
    if record is not None:
        record(np.flatnonzero(inside))
    for _ in range(repairs):
        if deadline is not None and time.perf_counter() >= deadline:
            break
        members, others = np.flatnonzero(inside), np.flatnonzero(~inside)
        free = members if len(members) <= FREED else np.sort(random.choice(members, FREED, replace=False))
        fixed = np.setdiff1d(members, free, assume_unique=True)
        pool = np.concatenate([free, _candidates(rows, own, members, others, random)])
        picked = np.arange(len(free))
        form = _small_problem(problem, pool, fixed, len(free))
        improve(form, picked, KICKS, np.uint64(random.integers(2**63)))
        inside[free] = False
        inside[pool[picked]] = True
        if record is not None:
            record(np.flatnonzero(inside))
    return np.flatnonzero(inside), False


def _fill(rows: Rows, own: Floats, random: np.random.Generator) -> Flags:
    devices = len(rows.centred)
    inside = np.zeros(devices, dtype=np.bool_)
    looked_at = min(devices, max(64, FILL_WORK // rows.pick))
    residual = rows.base.copy()
    everybody = np.arange(devices)
    for _ in range(rows.pick):
        seen = everybody if looked_at == devices else random.integers(devices, size=looked_at)
        seen = seen[~inside[seen]]
        if not len(seen):  # the sample met members only
            seen = np.flatnonzero(~inside)
        best = int(seen[np.argmin(costs(rows.centred, own, residual, seen))])
        inside[best] = True
        residual += rows.centred[best]
    return inside


def _candidates(rows: Rows, own: Floats, members: Indices, others: Indices, random: np.random.Generator) -> Indices:
    """Return who might come in: the cheapest to add now, and some at random for variety."""
    wanted = POOL - FREED
    if len(others) <= wanted:
        return others
    residual = rows.base + rows.centred[members].sum(axis=0)
    order = np.argpartition(costs(rows.centred, own, residual, others), wanted // 2)
    cheapest, rest = order[: wanted // 2], order[wanted // 2 :]
    drawn = random.choice(rest, wanted - len(cheapest), replace=False)
    candidates: Indices = others[np.concatenate([cheapest, drawn])]
    return candidates


def costs_oracle(centred: Floats, own: Floats, residual: Floats, seen: Indices) -> Floats:
    """Plain numpy version of :func:`costs`."""
    return 2.0 * (centred[seen] @ residual) + own[seen]


@kernel(costs_oracle)
def costs(centred: Floats, own: Floats, residual: Floats, seen: Indices) -> Floats:
    """By how much ‖residual‖² (less the bonus) grows when each of the ``seen`` comes in.

    Row by row on one core: a threaded matrix product would wait for its threads longer than it computes.
    """
    out = np.empty(len(seen))
    for position in range(len(seen)):
        i = seen[position]
        out[position] = 2.0 * np.dot(centred[i], residual) + own[i]
    return out


def _small_problem(problem: SelectionProblem, pool: Indices, fixed: Indices, pick: int) -> Quadratic:
    small = problem.parts._replace(
        counts=problem.counts[pool],
        base=problem.base + problem.counts[fixed].sum(axis=0),
        bonus=problem.bonus[pool],
        sizes=problem.sizes[pool],
        base_size=problem.base_size + float(problem.sizes[fixed].sum()),
        pick=pick,
    )
    # A pool may happen to have equal batches; the score must be that of the whole problem all the same.
    return gram_form(small)._replace(ratio=not problem.equal_sizes)


@composed
def kick(devices: int, chosen: Indices, key: Key) -> None:
    """Exchange a few of the chosen for others at random."""
    inside = np.zeros(devices, dtype=np.bool_)
    for i in chosen:
        inside[i] = True
    outside = np.flatnonzero(~inside)
    exchanged = min(KICKED, len(chosen), len(outside))
    out = draw_subset(len(chosen), exchanged, key)
    into = draw_subset(len(outside), exchanged, start_key(key, 1, exchanged))
    for k in range(exchanged):
        chosen[out[k]] = outside[into[k]]


@composed
def improve(form: Quadratic, chosen: Indices, kicks: int, key: Key) -> float:
    """Descend, then ``kicks`` times exchange a few devices at random and descend again; keep what is better."""
    best, _ = descend(form, chosen, NO_LIMIT)
    for number in range(kicks):
        trial = chosen.copy()
        kick(len(form.linear), trial, start_key(key, number, 2 * KICKED))
        found, _ = descend(form, trial, NO_LIMIT)
        if found < best - form.tolerance:
            best = found
            chosen[:] = trial
    return best
