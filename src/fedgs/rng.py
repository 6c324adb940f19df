"""Named random streams: no global state, no order of work.

Every draw in the package comes from a stream named by a seed and a path of words and numbers, such as
``stream(seed, "presample", round, factory)``. Two different names give independent streams; the same name
gives the same numbers whatever else was drawn before, in whatever process. A name is hashed (BLAKE2b) into
the key of a counter-based generator (Philox), so making a stream costs microseconds and stores nothing.
"""

from hashlib import blake2b
from operator import index

import numpy as np

Name = str | int


def _digest(seed: int, name: tuple[Name, ...], size: int) -> int:
    # The type of each part is hashed too: ("a", 1) and ("a", "1") are different streams.
    path = "\x1f".join(f"{type(part).__name__[0]}{part}" for part in (index(seed), *map(_plain, name)))
    return int.from_bytes(blake2b(path.encode(), digest_size=size).digest(), "little")


def _plain(part: Name) -> Name:
    if isinstance(part, str):
        if "\x1f" in part:
            raise ValueError("a name cannot hold the character that separates names")
        return part
    return index(part)  # a whole number of any kind; 1.5 is an error, not 1


def stream(seed: int, *name: Name) -> np.random.Generator:
    """Return the numpy generator of this name, always at its beginning."""
    return np.random.Generator(np.random.Philox(key=_digest(seed, name, 16)))


def key(seed: int, *name: Name) -> int:
    """Return a 64-bit number for this name: the seed of a compiled kernel."""
    return _digest(seed, name, 8)
