"""Random choices inside kernels: splitmix64 from an explicit 64-bit key, no hidden state.

splitmix64 (Steele, Lea, Flood, 2014: "Fast splittable pseudorandom number generators") turns a counter into well
mixed 64-bit words with a handful of operations, so a kernel can draw without numpy's generator and the plain oracle
can draw exactly the same numbers.
"""

import numpy as np

from fedgs.compiled import composed, kernel
from fedgs.selection.problem import Indices, Key

_MASK = (1 << 64) - 1


def mix_oracle(counter: Key) -> Key:
    """Plain version of :func:`mix`."""
    word = (int(counter) * 0x9E3779B97F4A7C15) & _MASK
    word = ((word ^ (word >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    word = ((word ^ (word >> 27)) * 0x94D049BB133111EB) & _MASK
    return np.uint64(word ^ (word >> 31))


@kernel(mix_oracle)
def mix(counter: Key) -> Key:
    """Return the 64-bit word of this counter value."""
    word = np.uint64(counter) * np.uint64(0x9E3779B97F4A7C15)
    word = (word ^ (word >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    word = (word ^ (word >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return word ^ (word >> np.uint64(31))


def start_key_oracle(key: Key, start: int, pick: int) -> Key:
    """Plain version of :func:`start_key`."""
    return np.uint64((int(key) + int(start) * int(pick)) & _MASK)


@kernel(start_key_oracle)
def start_key(key: Key, start: int, pick: int) -> Key:
    """Return the key of draw number ``start`` when each draw uses ``pick`` words."""
    return np.uint64(key) + np.uint64(start) * np.uint64(pick)


@composed
def draw_subset(devices: int, pick: int, key: Key) -> Indices:
    """Draw ``pick`` of ``devices`` without replacement, uniformly (the start of a Fisher–Yates shuffle)."""
    order = np.arange(devices)
    for i in range(pick):
        word = np.uint64(mix(start_key(key, i + 1, 1))) >> np.uint64(11)
        j = i + np.int64(word % np.uint64(devices - i))
        order[i], order[j] = order[j], order[i]
    return order[:pick].copy()
