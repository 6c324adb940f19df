"""Compiled kernels, each with a plain numpy oracle.

``@kernel(oracle)`` compiles a function with numba and keeps the machine code on disk, so that the next process
starts at once. The oracle computes the same thing in plain numpy: tests hold the two against each other, and the
oracle takes the kernel's place where numba is missing or ``FEDGS_NO_NUMBA=1`` is set.

Kernels release Python's global lock, so threads run them side by side. They never draw from a global generator:
randomness comes in as a 64-bit key (see ``fedgs.selection.draws``).
"""

import os
from collections.abc import Callable
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")


def _numba_wanted() -> bool:
    if os.environ.get("FEDGS_NO_NUMBA", "") not in ("", "0"):
        return False
    try:
        import numba  # noqa: F401
    except ImportError:
        return False
    return True


COMPILED = _numba_wanted()
"""True when kernels are compiled, False when their oracles run."""


def kernel(oracle: Callable[P, R]) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Compile the decorated function, or put ``oracle`` in its place where there is no compiler."""

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        return _compile(function) if COMPILED else oracle

    return decorate


def composed(function: Callable[P, R]) -> Callable[P, R]:
    """Compile a function that is plain enough to run as it stands, and so is its own oracle."""
    return _compile(function) if COMPILED else function


def _compile(function: Callable[P, R]) -> Callable[P, R]:
    import numba

    compiled: Callable[P, R]
    try:
        compiled = numba.njit(cache=True, nogil=True)(function)
    except RuntimeError:  # no place to keep machine code (a read-only container): compile anew in each process
        compiled = numba.njit(nogil=True)(function)
    return compiled
