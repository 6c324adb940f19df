"""FedCGD: a class mix near that of all data, and many samples.

Chen, Yan, Sun, Zhou, Niu: "FedCGD: Collective Gradient Divergence Optimized Scheduling for Wireless Federated
Learning", arXiv 2506.07581, 2025. What the gradient of a set S of devices lacks to that of all data is bounded by a
weighted earth mover's distance of their class mixes and a sampling variance, which are minimised together. With n_S
samples:

    minimise  Σ_c G_c |P_S(c) − P(c)| + σ / √n_S

Here P is ``target``, and the number of devices is given (``pick``), while the paper chooses it too under a limit of
time; with equal batches the second term is then a constant. Chosen by us: G_c = 1 for all classes, σ as an option, and
the search, a greedy set and best swaps from there until none is better.
"""

import numpy as np

from fedgs.selection.problem import Flags, Floats, Indices, Key, Record, SelectionProblem


def solve_fedcgd(
    problem: SelectionProblem, key: Key, record: Record | None, *, sigma: float = 1.0
) -> tuple[Indices, bool]:
    """Search greedily and by swaps; nothing is random."""
    counts, inside = problem.counts, np.zeros(len(problem.counts), dtype=np.bool_)

    def best_with(rest: Flags) -> tuple[int, float]:
        """Return who joins these devices best, and what the bound is then."""
        total = problem.base + counts[rest].sum(axis=0)
        bounds = np.where(inside, np.inf, bound(total + counts, problem.target, sigma))
        best = int(np.argmin(bounds))
        return best, float(bounds[best])

    now, better = np.inf, True
    for _ in range(problem.pick):
        best, now = best_with(inside)
        inside[best] = True
    while better:
        better = False
        for out in np.flatnonzero(inside).tolist():
            rest = inside.copy()
            rest[out] = False
            best, then = best_with(rest)
            if then < now - 1e-9 * (1.0 + now):  # rounding is no progress
                inside[[out, best]] = False, True
                now, better = then, True
        if record is not None:
            record(np.flatnonzero(inside))
    return np.flatnonzero(inside), False


def bound(counts: Floats, target: Floats, sigma: float) -> Floats:
    """Return Σ_c |P_S(c) − P(c)| + σ/√n_S of class counts (…, classes); of no samples that of one with all of σ."""
    size = counts.sum(axis=-1)
    shares = counts / np.where(size > 0, size, 1.0)[..., None]
    found: Floats = np.abs(shares - target).sum(axis=-1) + sigma / np.sqrt(np.where(size > 0, size, 1.0))
    return found
