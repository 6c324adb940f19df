"""Checks of the options of a rule: a wrong type or an impossible value is one ``AlgorithmError`` line."""

from collections.abc import Collection, Mapping, Sequence
from difflib import get_close_matches
from math import isfinite
from numbers import Real
from typing import Any

from fedgs.errors import AlgorithmError


def check_positive(name: str, value: float) -> None:
    """Refuse anything but a finite number above 0."""
    if not _is_number(value) or not isfinite(value) or value <= 0:
        raise AlgorithmError(f"{name}={value!r} is not possible; it must be a number above 0")


def check_not_negative(name: str, value: float) -> None:
    """Refuse anything but a finite number from 0 on."""
    if not _is_number(value) or not isfinite(value) or value < 0:
        raise AlgorithmError(f"{name}={value!r} is not possible; it must be a number, at least 0")


def check_decay(name: str, value: float) -> None:
    """Refuse anything but a number in [0, 1)."""
    if not _is_number(value) or not 0 <= value < 1:
        raise AlgorithmError(f"{name}={value!r} is not possible; it must be at least 0 and below 1")


def check_whole(name: str, value: int, least: int) -> None:
    """Refuse anything but a whole number from ``least`` on."""
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise AlgorithmError(f"{name}={value!r} is not possible; it must be a whole number, at least {least}")


def check_flag(name: str, value: bool) -> None:
    """Refuse anything but True and False."""
    if not isinstance(value, bool):
        raise AlgorithmError(f"{name}={value!r} is not possible; it is True or False")


def check_choice(name: str, value: str, choices: Sequence[str]) -> None:
    """Refuse anything but one of a few words."""
    if value not in choices:
        raise AlgorithmError(f"{name}={value!r} is not possible; it is one of {', '.join(choices)}")


def check_options(name: str, options: Mapping[str, Any], known: Collection[str], fixed: Collection[str]) -> None:
    """Refuse options that ``name`` does not have, or decides itself (``fixed``)."""
    for option, value in options.items():
        if option in fixed:
            raise AlgorithmError(f"{name} decides {option} itself; leave {option}={value!r} out")
        if option not in known:
            near = get_close_matches(option, known, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"it takes {', '.join(known)}"
            raise AlgorithmError(f"{name} has no option {option!r}; {hint}")


def _is_number(value: object) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool)
