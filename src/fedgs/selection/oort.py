"""Oort: devices with large losses that are fast and have not been asked for long, and some that nobody knows yet.

Lai, Zhu, Madhyastha, Chowdhury: "Oort: Efficient Federated Learning via Guided Participant Selection", OSDI 2021,
Algorithm 1. With n_i samples, losses ℓ, the turn t, the last turn t_i and the time d_i of device i:

    U_i    = n_i √(mean ℓ²)                                              statistical utility
    Util_i = (U_i − min U) / (max U − min U) + √(0.1 ln t / t_i)         temporal uncertainty
    Util_i ← Util_i (T / d_i)^α   where T < d_i                          system utility

Of the devices whose loss is known, (1 − ε)·pick are drawn in proportion to Util among those with at least c times the
(1 − ε)·pick-th largest one; ε·pick others are drawn in proportion to their speed. ε falls by a factor each turn. The
pacer raises T when rounds give less: whenever W turns have passed and Σ U_i over their participants is below that of
the W turns before.

As in the paper: α = 2, c = 0.95, W = 20, ε from 0.9 down to 0.2 by 0.98 a turn; U is cut off at its 95th percentile.
From the authors' code: U is scaled to [0, 1], T is a percentile of all d_i, and the pacer's step is 5. (Their pacer
also raises T when utilities stay flat, and can lower it.) Chosen by us: the percentile is 30 at first; a share ε·pick
between two numbers is rounded at random, so that small teams explore too; in FedGS a turn is a round, as losses are
known once a round; no blacklist. Where all devices are equally fast, T does nothing.
"""

import numpy as np

from fedgs.selection.draws import weighted_order
from fedgs.selection.feedback import Feedback, feedback_of
from fedgs.selection.problem import Floats, Indices, Key, Record, SelectionProblem

CLIP = 95.0
"""The percentile at which statistical utilities are cut off: one outlier must not make all others equal."""


def solve_oort(
    problem: SelectionProblem, key: Key, record: Record | None, *,
    alpha: float = 2.0, epsilon: float = 0.9, decay: float = 0.98, least_epsilon: float = 0.2, cutoff: float = 0.95,
    preferred: float = 30.0, pacer: float = 5.0, window: int = 20,
) -> tuple[Indices, bool]:  # fmt: skip
    """Exploit and explore; ``preferred`` is the percentile of all times that T is at first, ``pacer`` its step."""
    random = np.random.Generator(np.random.Philox(key=int(key)))
    feedback, pick = feedback_of(problem), problem.pick
    known = np.flatnonzero(~np.isnan(feedback.loss))
    unknown = np.flatnonzero(np.isnan(feedback.loss))
    share = max(least_epsilon, epsilon * decay ** (feedback.turn - 1))
    wanted = int(share * pick + random.random())
    exploring = min(len(unknown), max(wanted, pick - len(known)))
    exploiting = pick - exploring
    chosen = unknown[weighted_order(-np.log(feedback.seconds[unknown]), random)[:exploring]]
    if exploiting:
        at = paced(feedback.utility, preferred, pacer, window)
        utility = utilities(problem.sizes[known], feedback.of(known), np.percentile(feedback.seconds, at), alpha)
        admitted = utility >= cutoff * np.sort(utility)[-exploiting]
        logs = np.where(admitted, np.log(np.maximum(utility, 1e-12)), -np.inf)
        chosen = np.append(chosen, known[weighted_order(logs, random)[:exploiting]])
    if record is not None:
        record(chosen)
    return chosen, False


def utilities(sizes: Floats, feedback: Feedback, preferred: float, alpha: float) -> Floats:
    """Util of devices whose losses are known; ``preferred`` is T."""
    statistical = sizes * feedback.rms_loss
    statistical = np.minimum(statistical, np.percentile(statistical, CLIP))
    spread = np.ptp(statistical)
    scaled = (statistical - statistical.min()) / (spread if spread > 0 else 1.0)
    utility = scaled + np.sqrt(0.1 * np.log(feedback.turn) / np.maximum(feedback.last, 1.0))
    slower = feedback.seconds > preferred
    result: Floats = np.where(slower, utility * (preferred / feedback.seconds) ** alpha, utility)
    return result


def paced(utility: Floats, preferred: float, step: float, window: int) -> float:
    """Return the percentile that T has come to after rounds of these utilities."""
    for end in range(2 * window, len(utility) + 1, window):
        if utility[end - window : end].sum() < utility[end - 2 * window : end - window].sum():
            preferred += step
    return min(preferred, 100.0)
