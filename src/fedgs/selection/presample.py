"""The random part of a selection (Algorithm 2, line 1), the same in the simulator and at a real station.

In iteration t factory m draws L_rnd of its devices at random from the stream (seed, "presample", t, m); the solver
picks the rest of the team among the others, with a seed of its own.
"""

import numpy as np
from numpy.typing import NDArray

from fedgs import rng

Devices = NDArray[np.int64]


def draw_beforehand(
    devices: Devices, pick: int, presample: int, seed: int, iteration: int, factory: int
) -> tuple[Devices, Devices]:
    """Return the devices that are in, and those the solver picks the rest of the team from.

    Where there are no more than ``pick`` devices all of them are in and nobody is left to pick.
    """
    order = rng.stream(seed, "presample", iteration, factory).permutation(devices)
    beforehand = len(order) if len(order) <= pick else presample
    return order[:beforehand], order[beforehand:]


def solver_seed(seed: int, iteration: int, factory: int = 0) -> int:
    """Return the solver's seed of a factory in an iteration."""
    return rng.key(seed, "select", iteration) + factory
