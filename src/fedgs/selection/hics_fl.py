"""HiCS-FL: devices whose data seem even are asked more often; nobody tells class counts.

Chen, Vikalo: "Heterogeneity-Guided Client Sampling: Towards Fast and Efficient Non-IID Federated Learning", NeurIPS
2024. The change Δb_k of the last layer's bias in training shows how even the classes of device k are:

    Ĥ_k = H(softmax(Δb_k / T))                                             the estimated entropy of its labels
    d(i, k) = arccos(⟨Δb_i, Δb_k⟩ / ‖Δb_i‖ ‖Δb_k‖) + λ |Ĥ_i − Ĥ_k|         into as many clusters as devices are picked

A device is drawn by drawing a cluster with P(m) ∝ exp(γ_t mean Ĥ in m), then one of its devices in proportion to
their data; γ_t = γ (1 − t / ``turns``) falls to 0, over the rounds of the run if nothing else is said.

Clusters are Ward's, as in the paper. Chosen by us: Δb_k is the negative gradient of the last model seen, which the
paper's analysis uses, instead of what a whole round changed, hence the temperature; devices are drawn without
replacement; devices that nobody knows yet are taken first, at random.
"""

import numpy as np

from fedgs.selection.draws import weighted_order
from fedgs.selection.feedback import feedback_of
from fedgs.selection.problem import Floats, Indices, Key, Record, SelectionProblem


def solve_hics_fl(
    problem: SelectionProblem, key: Key, record: Record | None, *,
    temperature: float = 0.1, entropy_weight: float = 10.0, gamma: float = 4.0, turns: int = 0,
) -> tuple[Indices, bool]:  # fmt: skip
    """Take unknown devices, then draw clusters and one device of each."""
    random = np.random.Generator(np.random.Philox(key=int(key)))
    feedback = feedback_of(problem)
    unknown = np.isnan(feedback.gradient).any(axis=1)
    chosen = random.permutation(np.flatnonzero(unknown))[: problem.pick].tolist()
    known = np.flatnonzero(~unknown)
    if len(chosen) < problem.pick:
        change, of_all = -feedback.gradient[known], turns or feedback.turns
        strength = gamma * (max(0.0, 1.0 - feedback.turn / of_all) if of_all else 1.0)
        entropy = entropies(change, temperature)
        cluster = clusters(distances(change, entropy, entropy_weight), problem.pick)
        mean = np.bincount(cluster, entropy) / np.bincount(cluster)
        free = np.ones(len(known), dtype=np.bool_)
        with np.errstate(divide="ignore"):  # a device without data comes last
            by_data = np.log(problem.weights[known])
        while len(chosen) < problem.pick:
            there = np.bincount(cluster[free], minlength=len(mean)) > 0
            drawn = weighted_order(np.where(there, strength * mean, -np.inf), random)[0]
            members = np.flatnonzero(free & (cluster == drawn))
            member = members[weighted_order(by_data[members], random)[0]]
            free[member] = False
            chosen.append(int(known[member]))
    answer = np.array(chosen)
    if record is not None:
        record(answer)
    return answer, False


def entropies(change: Floats, temperature: float) -> Floats:
    """Return Ĥ of each device from its change of the bias (N, classes)."""
    scaled = change / temperature
    powers = np.exp(scaled - scaled.max(axis=1, keepdims=True))
    shares = powers / powers.sum(axis=1, keepdims=True)
    found: Floats = -(shares * np.log(np.maximum(shares, 1e-300))).sum(axis=1)
    return found


def distances(change: Floats, entropy: Floats, weight: float) -> Floats:
    """Return (N, N) d(i, k); changes of 0 have a right angle to all others."""
    length = np.linalg.norm(change, axis=1, keepdims=True)
    unit = change / np.where(length > 0, length, 1.0)
    angle = np.arccos(np.clip(unit @ unit.T, -1.0, 1.0))
    found: Floats = angle + weight * np.abs(entropy[:, None] - entropy)
    np.fill_diagonal(found, 0.0)
    return found


def clusters(apart: Floats, number: int) -> Indices:
    """Return the cluster (from 0) of each device: at most ``number``, by Ward's method."""
    from scipy.cluster.hierarchy import fcluster, linkage
    from scipy.spatial.distance import squareform

    if len(apart) <= number:
        return np.arange(len(apart))
    found: Indices = fcluster(linkage(squareform(apart, checks=False), "ward"), number, "maxclust") - 1
    return np.unique(found, return_inverse=True)[1]
