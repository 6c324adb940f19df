"""Fed-CBS: devices drawn one after the other, each the likelier the more even it makes the classes.

Zhang, Li, Xu, Tang, Chen, Huang, Wang, Chen, Li: "Fed-CBS: A Heterogeneity-Aware Client Sampling Mechanism for
Federated Learning via Class-Imbalance Reduction", ICML 2023. The imbalance of a set M of devices with counts n_k over B
classes (QCID, from inner products of counts alone) is

    QCID(M) = Σ_{i,j∈M} ⟨n_i, n_j⟩ / (Σ_{i∈M} |n_i|)² − 1/B = ‖P_M − 1/B‖² ,

and with t the number of this selection and T_k that of the earlier ones of device k

    P(first = k)   ∝  QCID({k})^(−β_1) + λ √(3 ln t / (2 T_k))            the exploration term of combinatorial UCB
    P(m-th = k)    ∝  QCID(M_{m−1})^(β_{m−1}) / QCID(M_{m−1} ∪ {k})^(β_m)

The aim is an even mix of classes, not P_real. Here β_m is ``beta``·m and λ is 10. A device that was never selected
counts as selected once, and devices that are in already (``base``) belong to M_0.
"""

import numpy as np

from fedgs.selection.draws import weighted_order
from fedgs.selection.feedback import Feedback, feedback_of
from fedgs.selection.problem import Floats, Indices, Key, Record, SelectionProblem

LEAST = 1e-12
"""Stands for the imbalance of an even mix: 0 has no negative power."""


def solve_fed_cbs(
    problem: SelectionProblem, key: Key, record: Record | None, *, beta: float = 1.0, exploration: float = 10.0
) -> tuple[Indices, bool]:
    """Draw ``pick`` devices one after the other."""
    random = np.random.Generator(np.random.Philox(key=int(key)))
    total = problem.base
    chosen: list[int] = []
    for number in range(1, problem.pick + 1):
        found = imbalance(total + problem.counts)
        if number == 1:
            logs = first_logs(found, feedback_of(problem), beta, exploration)
        else:
            logs = -beta * number * np.log(found)
        logs[chosen] = -np.inf
        chosen.append(int(weighted_order(logs, random)[0]))
        total = total + problem.counts[chosen[-1]]
    answer = np.array(chosen)
    if record is not None:
        record(answer)
    return answer, False


def imbalance(counts: Floats) -> Floats:
    """QCID of each row of counts (…, classes), at least ``LEAST``; 1, more than any has, for rows without a sample."""
    size = counts.sum(axis=-1, keepdims=True)
    shares = counts / np.where(size > 0, size, 1.0)
    found = ((shares - 1 / counts.shape[-1]) ** 2).sum(axis=-1)
    result: Floats = np.where(size[..., 0] > 0, np.maximum(found, LEAST), 1.0)
    return result


def first_logs(found: Floats, feedback: Feedback, beta: float, exploration: float) -> Floats:
    """Logarithms of what the chances of the first device are in proportion to, from the QCID of each device alone."""
    with np.errstate(divide="ignore"):  # no exploration: log 0
        bonus = np.log(exploration * np.sqrt(1.5 * np.log(feedback.turn) / np.maximum(feedback.selected, 1.0)))
    logs: Floats = np.logaddexp(-beta * np.log(found), bonus)
    return logs
