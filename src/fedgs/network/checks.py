"""Numbers that must make sense before a formula sees them; what does not is a ``NetworkError`` with its name."""

import math
from numbers import Integral, Real

from fedgs.errors import NetworkError


def positive(name: str, value: float, unit: str = "") -> float:
    """Return a finite number above zero."""
    number = _finite(name, value)
    if number <= 0:
        raise NetworkError(f"{name}={value:g}{_spaced(unit)} is impossible; it must be above 0")
    return number


def not_negative(name: str, value: float, unit: str = "") -> float:
    """Return a finite number of zero or more."""
    number = _finite(name, value)
    if number < 0:
        raise NetworkError(f"{name}={value:g}{_spaced(unit)} is impossible; it must be 0 or more")
    return number


def whole(name: str, value: int, least: int = 1) -> int:
    """Return a whole number that is at least ``least``."""
    if isinstance(value, bool) or not isinstance(value, Integral):
        raise NetworkError(f"{name}={value!r} is impossible; it must be a whole number")
    if value < least:
        raise NetworkError(f"{name}={value} is impossible; it must be {least} or more")
    return int(value)


def _finite(name: str, value: float) -> float:
    if isinstance(value, bool) or not isinstance(value, Real) or not math.isfinite(value):
        raise NetworkError(f"{name}={value!r} is impossible; it must be a finite number")
    return float(value)


def _spaced(unit: str) -> str:
    return f" {unit}" if unit else ""
