"""FedCGD: a class mix near that of all data, and many samples.

Chen, Yan, Sun, Zhou, Niu: "FedCGD: Collective Gradient Divergence Optimized Scheduling for Wireless Federated
Learning", arXiv 2506.07581, 2025. The mean gradient of a set S of devices differs from that of all data. A weighted
earth mover's distance between their class mixes and a sampling variance bound the difference; both are minimised
together. With n_S samples:

    minimise  Σ_c G_c |P_S(c) − P(c)| + σ / √n_S

Here P is ``target``, and the number of devices is given (``pick``), while the paper chooses it too under a limit of
time; with equal batches the second term is then a constant. Chosen by us: G_c = 1 for all classes, σ as an option, and
the search, a greedy set and best swaps from there until none is better. The search is deterministic: where counts stay
the same from turn to turn, as those of a baseline's clients do, so does its answer. In the paper the channels vary;
``candidates`` devices, drawn at random each time, are put in their place.
"""

import numpy as np

from fedgs.selection.problem import Flags, Floats, Indices, Key, Record, SelectionProblem

MOST = 2.0
"""The largest sum of differences that two distributions can have."""


def solve_fedcgd(
    problem: SelectionProblem, key: Key, record: Record | None, *, sigma: float = 1.0, candidates: int = 0
) -> tuple[Indices, bool]:
    """Search greedily and by swaps among ``candidates`` devices, at least ``pick`` (0: all)."""
    counts, inside = problem.counts, np.zeros(len(problem.counts), dtype=np.bool_)
    outside = np.zeros_like(inside)
    if candidates:
        random = np.random.Generator(np.random.Philox(key=int(key)))
        outside[random.permutation(len(counts))[max(problem.pick, candidates) :]] = True

    def best_with(rest: Flags) -> tuple[int, float]:
        """Return who joins these devices best, and what the bound is then."""
        total = problem.base + counts[rest].sum(axis=0)
        bounds = np.where(inside | outside, np.inf, bound(total + counts, problem.target, sigma))
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
    """Return Σ_c |P_S(c) − P(c)| + σ/√n_S of class counts (…, classes); without a sample the worst there is, 2 + σ."""
    size = counts.sum(axis=-1)
    shares = counts / np.where(size > 0, size, 1.0)[..., None]
    mismatch = np.where(size > 0, np.abs(shares - target).sum(axis=-1), MOST)
    found: Floats = mismatch + sigma / np.sqrt(np.where(size > 0, size, 1.0))
    return found
