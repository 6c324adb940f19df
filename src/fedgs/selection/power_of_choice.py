"""Power-of-Choice: of some devices drawn by their data, those with the largest losses.

Cho, Wang, Joshi: "Towards Understanding Biased Client Selection in Federated Learning", AISTATS 2022 (first as "Client
Selection in Federated Learning: Convergence Analysis and Power-of-Choice Selection Strategies", 2020):

    A ← d devices without replacement, in proportion to their numbers of samples
    S ← the m of A with the largest F_k(w)

This is the paper's π_rpow-d, which polls no candidates: F_k is the last loss known of a device, infinite before the
first. There a client sends the mean loss of its local training; here it is that of the new global model on the same
samples (:mod:`fedgs.simulation.feedback`). The paper tries several d; twice m is our default.
"""

import numpy as np

from fedgs.selection.draws import weighted_order
from fedgs.selection.feedback import feedback_of
from fedgs.selection.problem import Indices, Key, Record, SelectionProblem


def solve_power_of_choice(
    problem: SelectionProblem, key: Key, record: Record | None, *, candidates: int = 0
) -> tuple[Indices, bool]:
    """Take the largest losses among ``candidates`` devices (d; 0: twice ``pick``)."""
    random = np.random.Generator(np.random.Philox(key=int(key)))
    with np.errstate(divide="ignore"):  # a device without data comes last
        order = weighted_order(np.log(problem.weights), random)
    drawn = order[: max(problem.pick, candidates or 2 * problem.pick)]
    loss = feedback_of(problem).loss[drawn]
    chosen = drawn[np.argsort(-np.where(np.isnan(loss), np.inf, loss), kind="stable")[: problem.pick]]
    if record is not None:
        record(chosen)
    return chosen, False
