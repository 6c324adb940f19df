"""The random part of a selection (Algorithm 2, line 1), the same in the simulator and at a real station.

In iteration t factory m puts its devices into the random order of the stream (seed, "presample", t, m); the first L_rnd
are in, and the solver picks the rest of the team among the others, with a seed of its own.
"""

import numpy as np
from numpy.typing import NDArray

from fedgs import rng

Devices = NDArray[np.int64]


def random_order(devices: Devices, seed: int, iteration: int, factory: int) -> Devices:
    """Return the devices of a factory in the order of an iteration."""
    return rng.stream(seed, "presample", iteration, factory).permutation(devices)


def solver_seed(seed: int, iteration: int, factory: int = 0) -> int:
    """Return the solver's seed of a factory in an iteration."""
    return rng.key(seed, "select", iteration) + factory
