"""Random choices: in kernels by splitmix64 from an explicit 64-bit key, no hidden state.

splitmix64 (Steele, Lea, Flood, 2014: "Fast splittable pseudorandom number generators") turns a counter into well
mixed 64-bit words with a handful of operations, so a kernel can draw without numpy's generator and the plain oracle
can draw exactly the same numbers.
"""

import numpy as np

from fedgs.compiled import composed, kernel
from fedgs.selection.problem import Floats, Indices, Key

_MASK = (1 << 64) - 1


def word_oracle(key: Key, number: int) -> np.uint64:
    """Plain version of :func:`word`."""
    found = ((int(key) + int(number)) * 0x9E3779B97F4A7C15) & _MASK
    found = ((found ^ (found >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    found = ((found ^ (found >> 27)) * 0x94D049BB133111EB) & _MASK
    return np.uint64(found ^ (found >> 31))


@kernel(word_oracle)
def word(key: Key, number: int) -> np.uint64:
    """Return the 64-bit word of this number after the key."""
    found = (np.uint64(key) + np.uint64(number)) * np.uint64(0x9E3779B97F4A7C15)
    found = (found ^ (found >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    found = (found ^ (found >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return found ^ (found >> np.uint64(31))


@composed
def draw_subset(devices: int, pick: int, key: Key, skip: int) -> Indices:
    """Draw ``pick`` of ``devices`` without replacement, uniformly, from the words after the first ``skip`` ones."""
    order = np.arange(devices)
    for i in range(pick):  # the start of a Fisher–Yates shuffle
        j = i + np.int64((word(key, skip + i + 1) >> np.uint64(11)) % np.uint64(devices - i))
        order[i], order[j] = order[j], order[i]
    return order[:pick].copy()


def weighted_order(log_weights: Floats, random: np.random.Generator) -> Indices:
    """Return all devices in random order: the next one is drawn from the rest in proportion to their weights.

    The Gumbel trick: sorting log w_i + G_i draws without replacement, whatever the scale of the weights.
    """
    return np.argsort(-(log_weights + random.gumbel(size=len(log_weights))), kind="stable")
