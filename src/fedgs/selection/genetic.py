"""``genetic``: evolution over choices (Whitley, 1994), with the paper's settings (section VII-A).

Population 100, 100 generations, mutation probability 0.001 a gene. A gene says whether a device is in, so crossover
and mutation must keep the number of ones:

    selection  the fitter half lives on and breeds; the other half is replaced by children
    crossover  a child has every device both parents have; the rest is drawn from those that one of them has
    mutation   each gene flips with the given probability, together with a random gene of the other value

Plain numpy, a generation at a time: this is the sampler the paper compares with, not one to use.
"""

import numpy as np

from fedgs.selection.problem import Flags, Floats, Indices, Key, Record, SelectionProblem
from fedgs.selection.rows import as_rows, score_many


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
    rows = as_rows(problem)
    genes = _largest(random.random((population, len(problem.counts))), problem.pick)
    scores = score_many(rows, genes)
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
        scores[survivors:] = score_many(rows, children)
    return np.flatnonzero(genes[0]), False


def _largest(values: Floats, pick: int) -> Flags:
    inside = np.zeros(values.shape, dtype=np.bool_)
    np.put_along_axis(inside, np.argpartition(-values, pick - 1, axis=1)[:, :pick], True, axis=1)
    return inside


def _mutate(children: Flags, probability: float, random: np.random.Generator) -> None:
    for child, gene in np.argwhere(random.random(children.shape) < probability):
        others = np.flatnonzero(children[child] != children[child, gene])
        partner = others[random.integers(len(others))]
        children[child, [gene, partner]] = children[child, [partner, gene]]
