"""Coverage: virtual queues that give every device its turns in the long run, whatever its batches look like.

Matching P_real alone takes the same convenient devices again and again. Drift-plus-penalty (Neely, 2010, "Stochastic
network optimization") mends it: device i has a fair share s_i of the L places, Σ s_i = L, and a queue q_i, the turns
it is behind that share (below 0: ahead of it). In each iteration

    choose x:   minimise f(x) − V·u·Σ q_i·x_i        u = mean over the station's devices of ‖a_i − s(a_i)·P‖²
    then        q_i ← q_i + s_i − x_i

"Rate of turns = s_i" is an equality, so the queue is signed: its sum stays 0 and only differences matter to the
solver, for Σ x_i = L. The unit u is what one batch typically contributes to f, hence V has no unit: a device that is
1/V turns further behind than another goes before it even where that costs a whole typical batch.

Bounds (docs/explanation/coverage.md). Let the choice be one that no single swap improves, out of N devices. Then no
device that is left out is more than D = 2N(1 + √(2L))/V turns further behind than one that is taken; hence
|q_i| ≤ Q = Σ_{k=1}^{N−1} (1 − k/N)·(D + 2·min(k, N − k, L)) at all times, and a device waits at most 1 + 2Q/s_i
iterations for its next turn.
"""

import numpy as np

from fedgs.compiled import composed, kernel
from fedgs.selection.problem import Floats, Indices


@composed
def fair_shares(weights: Floats, places: int) -> Floats:
    """Return the shares of ``places`` turns, in proportion to ``weights`` (0 or more) and at most 1 each.

    What a share cut off at 1 leaves over is given to the others, again in proportion, so that all shares sum to
    ``places``, or to the number of devices where there are fewer. Without any weight the shares are equal.
    """
    devices = len(weights)
    shares = np.full(devices, -1.0)  # −1: not cut off yet
    left, more = places, devices
    while left < more:
        total = 0.0
        for i in range(devices):
            if shares[i] < 0.0:
                total += weights[i]
        scale = left / total if total > 0.0 else 0.0
        full = 0
        if total > 0.0:
            for i in range(devices):
                if shares[i] < 0.0 and weights[i] * scale >= 1.0:
                    shares[i] = 1.0
                    full += 1
        left -= full
        more -= full
        if full == 0:
            for i in range(devices):
                if shares[i] < 0.0:
                    shares[i] = weights[i] * scale if total > 0.0 else left / more
            return shares
    for i in range(devices):
        if shares[i] < 0.0:
            shares[i] = 1.0
    return shares


def typical_batch_oracle(batches: Floats, target: Floats, devices: Indices) -> float:
    """Plain numpy version of :func:`typical_batch`."""
    own = batches[devices]
    apart = own - own.sum(axis=1, keepdims=True) * target
    found = float(np.cumsum(apart * apart)[-1]) / len(devices) if len(devices) else 0.0
    return found if found > 0.0 else 1.0


@kernel(typical_batch_oracle)
def typical_batch(batches: Floats, target: Floats, devices: Indices) -> float:
    """Return u, the mean squared distance of these devices' batches from what the target would put there.

    1 where all batches match the target: then all choices match it alike, and any unit lets the queues decide.
    """
    total = 0.0
    for i in devices:
        size = 0.0
        for k in range(len(target)):
            size += batches[i, k]
        for k in range(len(target)):
            apart = batches[i, k] - size * target[k]
            total += apart * apart
    found = total / max(len(devices), 1)
    return found if found > 0.0 else 1.0


def queues_after(queue: Floats, shares: Floats, selected: Indices) -> Floats:
    """Return the queues after an iteration: q + s − x."""
    after: Floats = queue + shares
    after[selected] -= 1.0
    return after


def largest_gap(devices: int, pick: int, weight: float) -> float:
    """Return D: how many turns further behind a device that is left out can be than one that is taken."""
    return float(2.0 * devices * (1.0 + np.sqrt(2.0 * pick)) / weight)


def queue_bound(devices: int, pick: int, gap: float) -> float:
    """Return Q, which no queue of a station of ``devices`` exceeds, up or down, while gaps stay within ``gap`` (D)."""
    k = np.arange(1, devices)
    return float(((1.0 - k / devices) * (gap + 2.0 * np.minimum(np.minimum(k, devices - k), pick))).sum())


def wait_bound(devices: int, pick: int, gap: float, share: float) -> float:
    """Return the most iterations between two turns of a device with this fair share."""
    return 1.0 + 2.0 * queue_bound(devices, pick, gap) / share
