"""DivFL: devices whose gradients together stand for those of all.

Balakrishnan, Li, Zhou, Himayat, Smith, Bilmes: "Diverse Client Selection for Federated Learning via Submodular
Maximization", ICLR 2022. With each device represented by the selected one nearest to it, the error of the gradient of
all N devices is at most

    G(S) = Σ_{k=1..N} min_{i∈S} ‖∇_k − ∇_i‖

and −G is submodular (facility location), so S is made greedily: each step takes the device that lowers G most among a
random part of the others (stochastic greedy; Mirzasoleiman et al., 2015, with (N / pick) ln(1 / ``epsilon``) of them).

As in the authors' version without overhead, gradients are the last ones known. Chosen by us: they are gradients with
respect to the outputs, those of the last layer's bias, instead of the whole network's, as coreset selection does too
(Mirzasoleiman et al., 2020); devices that nobody knows yet are taken first, at random.
"""

import numpy as np

from fedgs.selection.feedback import feedback_of
from fedgs.selection.problem import Floats, Indices, Key, Record, SelectionProblem


def solve_divfl(
    problem: SelectionProblem, key: Key, record: Record | None, *, epsilon: float = 0.1
) -> tuple[Indices, bool]:
    """Take unknown devices, then the greedy ones."""
    random = np.random.Generator(np.random.Philox(key=int(key)))
    gradient = feedback_of(problem).gradient
    unknown = np.isnan(gradient).any(axis=1)
    chosen = random.permutation(np.flatnonzero(unknown))[: problem.pick]
    known = np.flatnonzero(~unknown)
    left = problem.pick - len(chosen)
    if left:
        part = int(np.ceil(len(known) / left * np.log(1.0 / epsilon)))
        chosen = np.append(chosen, known[facilities(distances(gradient[known]), left, max(part, 1), random)])
    if record is not None:
        record(chosen)
    return chosen, False


def distances(gradient: Floats) -> Floats:
    """Return (N, N) ‖∇_k − ∇_i‖."""
    squares = (gradient**2).sum(axis=1)
    found: Floats = np.sqrt(np.maximum(squares[:, None] + squares - 2.0 * gradient @ gradient.T, 0.0))
    return found


def facilities(apart: Floats, number: int, part: int, random: np.random.Generator) -> Indices:
    """Return ``number`` rows that make G small, each the best of ``part`` random others."""
    nearest = np.full(len(apart), apart.max() + 1.0)
    free, chosen = np.arange(len(apart)), []
    for _ in range(number):
        tried = np.sort(random.permutation(free)[:part])
        costs = np.minimum(nearest, apart[tried]).sum(axis=1)
        chosen.append(int(tried[np.argmin(costs)]))
        nearest = np.minimum(nearest, apart[chosen[-1]])
        free = free[free != chosen[-1]]
    return np.array(chosen)
