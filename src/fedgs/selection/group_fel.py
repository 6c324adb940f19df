"""Group-FEL's grouping: all devices in groups of even classes, and one of the groups.

Liu, Wei, Liu, Gao, Wang: "Group-based Hierarchical Federated Learning: Convergence, Group Formation, and Sampling",
ICPP 2023, and work on Group-FEL after it (IEEE Transactions on Cloud Computing, 2024). The coefficient of variation of
a group's class counts n_c says how uneven they are:

    CoV(g) = std_c(n_c) / mean_c(n_c)
    a group begins with a device at random and takes the device with which its CoV is least, until it is full
    P(g) ∝ 1 / CoV(g)^``power``

That chances are in proportion to 1 / CoV is our reading of the papers' sampling by CoV; ``power`` changes it. The
authors group once, under a least size and a largest CoV, and sample several groups of many devices. Here a station
needs one team of ``pick`` devices: groups have this size, are made anew from the counts at each selection, and
what is left over when devices do not divide evenly waits for the next one.
"""

import numpy as np

from fedgs.selection.draws import weighted_order
from fedgs.selection.problem import Floats, Indices, Key, Record, SelectionProblem

LEAST = 1e-9
"""Stands for the coefficient of even counts: nothing can be divided by 0."""


def solve_group_fel(
    problem: SelectionProblem, key: Key, record: Record | None, *, power: float = 1.0
) -> tuple[Indices, bool]:
    """Group the devices and draw a group."""
    random = np.random.Generator(np.random.Philox(key=int(key)))
    groups, uneven = [], []
    free = np.ones(len(problem.counts), dtype=np.bool_)
    while free.sum() >= problem.pick:
        group = [int(random.choice(np.flatnonzero(free)))]
        total = problem.base + problem.counts[group[0]]
        free[group[0]] = False
        while len(group) < problem.pick:
            found = np.where(free, variation(total + problem.counts), np.inf)
            group.append(int(np.argmin(found)))
            free[group[-1]] = False
            total = total + problem.counts[group[-1]]
        groups.append(np.array(group))
        uneven.append(float(variation(total)))
    chosen = groups[weighted_order(-power * np.log(uneven), random)[0]]
    if record is not None:
        record(chosen)
    return chosen, False


def variation(counts: Floats) -> Floats:
    """Return the coefficient of variation of class counts (…, classes); without a sample that of a single class."""
    mean = counts.mean(axis=-1)
    worst = np.sqrt(max(counts.shape[-1] - 1.0, 1.0))
    found = np.where(mean > 0, counts.std(axis=-1) / np.where(mean > 0, mean, 1.0), worst)
    result: Floats = np.maximum(found, LEAST)
    return result
