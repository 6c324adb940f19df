"""The samplers the paper compares with (section VII-A); not ones to use where ``exact`` or ``multistart`` can be.

``random`` and ``monte-carlo``: a choice at random, and the best of many of them.

``random-by-data`` draws without replacement so that device i comes in with the chance s_i = min(1, λ·w_i), Σ s_i = q,
exactly in proportion to its data w_i as long as no chance is cut off at 1: systematic sampling (Madow, 1949) over
the devices in random order. Lay the chances end to end and take the devices that lie under u, u + 1, …, u + q − 1,
where u is uniform in [0, 1).

``genetic``: evolution over choices (Whitley, 1994), population 100, 100 generations, mutation probability 0.001 a gene.
A gene says whether a device is in, so crossover and mutation must keep the number of ones:

    selection  the fitter half lives on and breeds; the other half is replaced by children
    crossover  a child has every device both parents have; the rest is drawn from those that one of them has
    mutation   each gene flips with the given probability, together with a random gene of the other value

``bayesian``: Bayesian optimisation with the library of that name (Nogueira, 2014), the extra ``fedgs[bayesian]``. Every
device gets a continuous weight in [0, 1] and the ``pick`` heaviest are the choice, so that every choice can be reached;
a Gaussian process over the weights proposes what to try next. 5 initial points, 25 iterations. Its acquisition function
(upper confidence bound) is maximised over 10,000 random weightings. The library's gradient polish of the best of them
is left out: it is nine tenths of the time, and a choice does not change with a small change of the weights.
"""

import warnings
from typing import Any

import numpy as np

from fedgs.compiled import composed
from fedgs.errors import MissingDependencyError
from fedgs.selection.algebra import members
from fedgs.selection.coverage import fair_shares
from fedgs.selection.draws import draw_subset, word
from fedgs.selection.gbp_cs import largest_entries
from fedgs.selection.problem import (
    MOST_DIVERGENCE,
    Flags,
    Floats,
    Indices,
    KernelProblem,
    Key,
    Record,
    SelectionProblem,
)
from fedgs.selection.quadratic import score_rows

_TRACED_BLOCK = 20


def solve_random(problem: SelectionProblem, key: Key, record: Record | None) -> tuple[Indices, bool]:
    """Take ``pick`` devices uniformly without replacement."""
    chosen = draw_subset(len(problem.counts), problem.pick, key, 0)
    if record is not None:
        record(chosen)
    return chosen, False


def solve_random_by_data(problem: SelectionProblem, key: Key, record: Record | None) -> tuple[Indices, bool]:
    """Take ``pick`` devices without replacement, with chances in proportion to their weights."""
    chosen = draw_by_weight(problem.weights.copy(), problem.pick, key)
    if record is not None:
        record(chosen)
    return chosen, False


@composed
def draw_by_weight(weights: Floats, pick: int, key: Key) -> Indices:
    """Draw ``pick`` devices; each comes in with its fair share of ``pick`` as its chance."""
    devices = len(weights)
    shares = fair_shares(weights, pick)
    order = draw_subset(devices, devices, key, 0)
    # The word after those of the shuffle; 53 bits of it make a number in [0, 1).
    point = float(word(key, devices + 1) >> np.uint64(11)) / 9007199254740992.0
    inside, chosen = np.zeros(devices, dtype=np.bool_), np.empty(pick, dtype=np.int64)
    taken, reach = 0, 0.0
    for place in range(devices):
        i = order[place]
        reach += shares[i]
        # Rounding may leave the last point beyond the end: then the last devices take what is left.
        if taken < pick and (reach > point + taken or devices - place == pick - taken):
            inside[i] = True
            taken += 1
    members(inside, chosen)
    return chosen


def solve_monte_carlo(
    problem: SelectionProblem, key: Key, record: Record | None, *, draws: int = 1000
) -> tuple[Indices, bool]:
    """Draw ``draws`` times at random (paper: 1000) and keep the best."""
    chosen = draw_subset(len(problem.counts), problem.pick, key, 0)
    if record is None:
        best_of_draws(problem.parts, chosen, key, 0, draws)
        return chosen, False
    for first in range(0, draws, _TRACED_BLOCK):
        best_of_draws(problem.parts, chosen, key, first, min(first + _TRACED_BLOCK, draws))
        record(chosen)
    return chosen, False


@composed
def best_of_draws(problem: KernelProblem, chosen: Indices, key: Key, first: int, last: int) -> None:
    """Replace ``chosen`` by the best of the draws numbered ``first`` to ``last`` if that is better."""
    best = score_rows(problem, chosen)
    for number in range(first, last):
        drawn = draw_subset(len(problem.sizes), problem.pick, key, number * problem.pick)
        found = score_rows(problem, drawn)
        if found < best:
            best = found
            for k in range(problem.pick):
                chosen[k] = drawn[k]


def solve_genetic(
    problem: SelectionProblem,
    key: Key,
    record: Record | None,
    *,
    population: int = 100,
    generations: int = 100,
    mutation: float = 0.001,
) -> tuple[Indices, bool]:
    """Breed ``generations`` generations and return the fittest choice that ever lived."""
    random = np.random.Generator(np.random.Philox(key=int(key)))
    genes = _largest(random.random((population, len(problem.counts))), problem.pick)
    scores = score_many(problem, genes)
    survivors = population // 2
    for generation in range(generations + 1):
        order = np.argsort(scores, kind="stable")
        genes, scores = genes[order], scores[order]  # the best stand first and are never mutated away
        if record is not None:
            record(np.flatnonzero(genes[0]))
        if generation == generations:
            break
        mothers, fathers = random.integers(survivors, size=(2, population - survivors))
        inherited = genes[mothers].astype(np.float64) + genes[fathers]
        children = _largest(inherited + random.random(inherited.shape), problem.pick)
        _mutate(children, mutation, random)
        genes[survivors:] = children
        scores[survivors:] = score_many(problem, children)
    return np.flatnonzero(genes[0]), False


def score_many(problem: SelectionProblem, inside: Flags) -> Floats:
    """Scores of many choices at once: ``inside`` is (choices, devices)."""
    taken = inside.astype(np.float64)
    centred = problem.counts - problem.sizes[:, None] * problem.target
    totals = taken @ centred + (problem.base - problem.base_size * problem.target)
    values = np.einsum("ik,ik->i", totals, totals)
    if not problem.equal_sizes:
        sizes = taken @ problem.sizes + problem.base_size
        there, empty = sizes > 0.0, (MOST_DIVERGENCE * problem.expected_size) ** 2
        values = np.where(there, values * (problem.expected_size / np.where(there, sizes, 1.0)) ** 2, empty)
    scores: Floats = values - taken @ problem.bonus
    return scores


def _largest(values: Floats, pick: int) -> Flags:
    inside = np.zeros(values.shape, dtype=np.bool_)
    np.put_along_axis(inside, np.argpartition(-values, pick - 1, axis=1)[:, :pick], True, axis=1)
    return inside


def _mutate(children: Flags, probability: float, random: np.random.Generator) -> None:
    for child, gene in np.argwhere(random.random(children.shape) < probability):
        others = np.flatnonzero(children[child] != children[child, gene])
        partner = others[random.integers(len(others))]
        children[child, [gene, partner]] = children[child, [partner, gene]]


def solve_bayesian(
    problem: SelectionProblem, key: Key, record: Record | None, *, initial: int = 5, iterations: int = 25
) -> tuple[Indices, bool]:
    """Try ``initial`` random weightings, then ``iterations`` that a Gaussian process proposes."""
    try:
        from bayes_opt import BayesianOptimization
        from bayes_opt.acquisition import UpperConfidenceBound
    except ImportError:
        raise MissingDependencyError(
            "the bayesian solver needs the bayesian-optimization library: pip install 'fedgs[bayesian]'"
        ) from None
    names = [f"device{i}" for i in range(len(problem.counts))]
    best: list[tuple[float, Indices]] = []

    def fitness(**weights: float) -> float:
        chosen = largest_entries(np.array([weights[name] for name in names]), problem.pick)
        found = float(score_rows(problem.parts, chosen))
        if not best or found < best[0][0]:
            best[:] = [(found, chosen)]
            if record is not None:
                record(chosen)
        return -found

    class WithoutPolish(UpperConfidenceBound):  # type: ignore[misc, unused-ignore]
        def suggest(self, *args: Any, **kwargs: Any) -> Any:
            return super().suggest(*args, **(kwargs | {"n_smart": 0}))

    optimiser = BayesianOptimization(
        fitness,
        dict.fromkeys(names, (0.0, 1.0)),
        acquisition_function=WithoutPolish(),
        random_state=int(key) % 2**32,
        verbose=0,
        allow_duplicate_points=True,
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the Gaussian process remarks on its own fit at every step
        optimiser.maximize(init_points=initial, n_iter=iterations)
    if record is not None:
        record(best[0][1])
    return best[0][1], False
