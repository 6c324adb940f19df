"""One iteration of selection of many stations in one kernel: gather each station's problem, solve it, measure it.

Making an object of every problem costs more than solving it, so the solvers in METHODS are called from here. The oracle
is :func:`fedgs.selection.batch.solve_batch` on such objects: :func:`fedgs.selection.team.select_teams` does it either
way, with the same teams to the bit.
"""

from collections.abc import Collection
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedgs.compiled import composed
from fedgs.selection.draws import draw_subset
from fedgs.selection.exact import prove
from fedgs.selection.gbp_cs import largest_entries, least_squares, permute
from fedgs.selection.problem import NO_LIMIT, Floats, Indices, KernelProblem, measure
from fedgs.selection.quadratic import gram_form
from fedgs.selection.sampling import draw_by_weight
from fedgs.selection.swap import best_descent

METHODS = ("gbp-cs", "multistart", "exact", "random", "random-by-data")
"""Solvers that :func:`select_stations` knows, by their numbers."""
PIECES = {"gbp-cs": "gradient", "multistart": "form", "exact": "form", "random": "draw", "random-by-data": "draw"}
"""The piece of :func:`select_stations` that each of them needs; the others are left out of the machine code."""
Piece = bool | None


def pieces_of(names: Collection[str]) -> tuple[Piece, Piece, Piece]:
    """Return which pieces these methods need; None leaves one out."""
    needed = {PIECES[name] for name in names}
    gradient, form, draw = (True if piece in needed else None for piece in ("gradient", "form", "draw"))
    return gradient, form, draw


class Stations(NamedTuple):
    """What an iteration selects from."""

    batches: Floats
    """(devices, classes) of every device's next mini-batch."""
    weights: Floats
    """(devices,) samples each device has."""
    bonus: Floats
    """(devices,) the fairness term."""
    target: Floats
    orders: Indices
    """The devices of one station after the other, each in random order; the first of each are pre-sampled."""
    ends: Indices
    """(stations + 1,) where each station's devices begin, and where the last one's end."""
    methods: Indices
    """(stations,) the number of its solver in METHODS, …"""
    starts: Indices
    """… its option of that name, …"""
    budgets: Indices
    """… and that one."""
    keys: NDArray[np.uint64]
    presample: int
    pick: int


@composed
def select_stations(
    stations: Stations,
    first: int,
    step: int,
    teams: Indices,
    divergence: Floats,
    gradient: Piece,
    form: Piece,
    draw: Piece,
) -> None:
    """Select for the stations ``first``, ``first + step``, …: write their teams (stations, pick) and divergences."""
    classes, drawn = len(stations.target), stations.presample
    for number in range(first, len(stations.methods), step):
        order = stations.orders[stations.ends[number] : stations.ends[number + 1]]
        devices, pick = len(order) - drawn, stations.pick - drawn
        by_class, base = np.empty((classes, devices)), np.zeros(classes)
        bonus, sizes, weights = np.empty(devices), np.zeros(devices), np.empty(devices)
        base_size, total, largest, smallest = 0.0, 0.0, 0.0, np.inf
        for place in range(drawn):
            for k in range(classes):
                base[k] += stations.batches[order[place], k]
                base_size += stations.batches[order[place], k]
        for place in range(devices):
            device = order[drawn + place]
            for k in range(classes):
                by_class[k, place] = stations.batches[device, k]
                sizes[place] += by_class[k, place]
            bonus[place], weights[place] = stations.bonus[device], stations.weights[device]
            total += sizes[place]
            largest, smallest = max(largest, sizes[place]), min(smallest, sizes[place])
        mean = total / devices
        problem = KernelProblem(
            by_class, stations.target, base, bonus, sizes, base_size, mean * pick + base_size,
            largest - smallest > 1e-9 * mean, True, pick,
        )  # fmt: skip
        method, starts, key = stations.methods[number], stations.starts[number], stations.keys[number]
        chosen = np.empty(pick, dtype=np.int64)
        if gradient is not None:
            wanted = np.empty(classes)
            for k in range(classes):
                wanted[k] = problem.expected_size * problem.target[k] - base[k]
            chosen = largest_entries(least_squares(by_class, wanted), pick)
            permute(by_class, wanted, bonus, chosen, NO_LIMIT)
        if form is not None:
            if method == 1:
                chosen = best_descent(gram_form(problem), starts, key)[0]
            else:
                chosen = prove(gram_form(problem), starts, key, stations.budgets[number])[0]
        if draw is not None:
            chosen = draw_subset(devices, pick, key, 0) if method == 3 else draw_by_weight(weights, pick, key)
        divergence[number], _ = measure(problem, chosen)
        for place in range(drawn):
            teams[number, place] = order[place]
        for place in range(pick):
            teams[number, drawn + place] = order[drawn + chosen[place]]
