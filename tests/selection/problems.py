"""Selection problems for the tests: hypothesis strategies and small makers."""

import numpy as np
from hypothesis import strategies as st

from fedgs.selection import SelectionProblem


@st.composite
def small_problems(draw: st.DrawFn, max_devices: int = 11, with_bonus: bool = True) -> SelectionProblem:
    """Small problems of every kind: equal and unequal batches, empty ones, ties, one class, a base, a bonus."""
    devices = draw(st.integers(1, max_devices))
    classes = draw(st.integers(1, 6))
    random = np.random.default_rng(draw(st.integers(0, 2**32)))
    kind = draw(st.sampled_from(["equal", "unequal", "one-class", "copies", "some-empty"]))
    if kind == "equal":
        counts = random.multinomial(16, random.dirichlet(np.ones(classes)), size=devices)
    elif kind == "one-class":
        counts = 8 * np.eye(classes, dtype=int)[random.integers(classes, size=devices)]
    elif kind == "copies":
        counts = np.repeat(random.poisson(3, size=(1, classes)), devices, axis=0)
    else:
        counts = random.poisson(random.gamma(0.5, 4, size=(devices, classes)))
        if kind == "some-empty":
            counts[random.random(devices) < 0.4] = 0
    base = random.poisson(2, classes) if draw(st.booleans()) else None
    bonus = random.normal(0, 15, devices) if with_bonus and draw(st.booleans()) else None
    pick = draw(st.integers(0, devices))
    return SelectionProblem(counts, random.dirichlet(np.ones(classes)), pick, base, bonus)


def paper_size(
    seed: int, devices: int = 33, classes: int = 62, pick: int = 8, unequal: bool = False
) -> SelectionProblem:
    """A problem of the paper's size with skewed batches of 32 samples (or of 8 to 64)."""
    random = np.random.default_rng(seed)
    target = random.dirichlet(np.full(classes, 2.0))
    sizes = random.integers(8, 65, devices) if unequal else np.full(devices, 32)
    counts = np.stack([random.multinomial(n, random.dirichlet(20 * target + 1e-9)) for n in sizes])
    base = random.multinomial(64, random.dirichlet(20 * target + 1e-9))
    return SelectionProblem(counts, target, pick, base)


def score_of_choice(problem: SelectionProblem, chosen: np.ndarray) -> float:
    """What solvers minimise, written down once more from its definition."""
    if problem.equal_sizes:
        return problem.distance(chosen) ** 2 - problem.bonus[chosen].sum()
    return (problem.expected_size * problem.divergence(chosen)) ** 2 - problem.bonus[chosen].sum()
