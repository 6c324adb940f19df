"""Named random streams: no global state, no order of work.

Every draw in the package comes from a stream named by a seed and a path of words and numbers, such as
``stream(seed, "presample", round, factory)``. Two different names give independent streams; the same name
gives the same numbers whatever else was drawn before, in whatever process. A name is hashed (BLAKE2b) into
the key of a counter-based generator (Philox), so making a stream costs microseconds and stores nothing.
"""

from hashlib import blake2b
from operator import index
from typing import Any

import numpy as np
from numpy.random.bit_generator import ISeedSequence
from numpy.typing import NDArray

Name = str | int


def _digest(seed: int, name: tuple[Name, ...], size: int) -> int:
    path = "\x1f".join([_plain(index(seed)), *[_plain(part) for part in name]])
    return int.from_bytes(blake2b(path.encode(), digest_size=size).digest(), "little")


def _plain(part: Name) -> str:
    if type(part) is int:
        return f"i{part}"
    if isinstance(part, str):
        if "\x1f" in part:
            raise ValueError("a name cannot hold the character that separates names")
        return f"s{part}"
    number = index(part)  # a whole number of any kind; 1.5 is an error, not 1
    # The type of each part is hashed too: ("a", 1) and ("a", "1") are different streams.
    return f"{type(number).__name__[0]}{number}"


class _Key(ISeedSequence):
    """The key of a Philox generator. As ``key=`` it costs three times more, for numpy draws a seed all the same."""

    def __init__(self, words: NDArray[np.uint64]) -> None:
        self._words = words

    def generate_state(self, n_words: int, dtype: Any = np.uint32) -> NDArray[Any]:
        return self._words


def _words(seed: int, name: tuple[Name, ...]) -> NDArray[np.uint64]:
    return np.frombuffer(_digest(seed, name, 16).to_bytes(16, "little"), "<u8")


def _philox(words: NDArray[np.uint64]) -> np.random.Philox:
    # numpy takes any ISeedSequence; its stubs know only of SeedSequence.
    return np.random.Philox(_Key(words))  # type: ignore[arg-type, unused-ignore]


def stream(seed: int, *name: Name) -> np.random.Generator:
    """Return the numpy generator of this name, always at its beginning."""
    return np.random.Generator(_philox(_words(seed, name)))


class Restarts:
    """One generator that is put to the beginning of one stream after the other, for loops over thousands of names."""

    def __init__(self) -> None:
        self._bits: Any = _philox(np.zeros(2, np.uint64))
        self._generator = np.random.Generator(self._bits)
        self._start: dict[str, Any] = dict(self._bits.state)

    def stream(self, seed: int, *name: Name) -> np.random.Generator:
        """Return what :func:`fedgs.rng.stream` would; it holds until the next call."""
        self._start["state"]["key"] = _words(seed, name)
        self._bits.state = self._start
        return self._generator


def key(seed: int, *name: Name) -> int:
    """Return a 64-bit number for this name: the seed of a compiled kernel."""
    return _digest(seed, name, 8)
