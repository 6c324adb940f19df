"""Options of rules and baselines: what a field may be stands in its type, anything else is one ``AlgorithmError`` line.

server_lr: Positive = 0.1              beta: Decay = 0.9              layers: Annotated[int, at_least(1)] = 1
nesterov: bool = False                 norm: Literal["l1", "l2"] = "l1"
"""

from collections.abc import Callable, Collection, Mapping
from dataclasses import MISSING, dataclass, fields
from math import inf
from numbers import Real
from typing import Annotated, Any, Literal, get_args, get_origin

from fedgs.errors import AlgorithmError, suggestion


@dataclass(frozen=True)
class Must:
    """What a number must be, in words and as a test."""

    be: str
    holds: Callable[[Any], bool]
    kind: type = Real


def at_least(least: int) -> Must:
    """Return the demand for a whole number from ``least`` on."""
    return Must(f"a whole number, at least {least}", lambda value: value >= least, int)


Positive = Annotated[float, Must("a number above 0", lambda value: 0 < value < inf)]
NotNegative = Annotated[float, Must("a number, at least 0", lambda value: 0 <= value < inf)]
Decay = Annotated[float, Must("at least 0 and below 1", lambda value: 0 <= value < 1)]


def check_fields(options: Any) -> None:
    """Refuse a dataclass one of whose fields is not what its type says; types without a demand are not looked at."""
    for option in fields(options):
        value = getattr(options, option.name)
        kinds = get_args(option.type) if type(None) in get_args(option.type) else (option.type,)
        if value is None and len(kinds) > 1:
            continue
        wanted = _refusal(kinds[0], value)
        if wanted:
            raise AlgorithmError(f"{option.name}={value!r} is not possible; it {wanted}")


def _refusal(kind: Any, value: Any) -> str:
    """Return what a value must be that is not; "" where it is."""
    if kind is bool:
        return "" if isinstance(value, bool) else "is True or False"
    if get_origin(kind) is Literal:
        return "" if value in get_args(kind) else f"is one of {', '.join(get_args(kind))}"
    for must in getattr(kind, "__metadata__", ()):
        if isinstance(value, bool) or not isinstance(value, must.kind) or not must.holds(value):
            return f"must be {must.be}"
    return ""


def options_of(made: Any, fixed: Collection[str] = ()) -> dict[str, Any]:
    """Return names and default values of the options of a rule or baseline, without those its name decides."""
    return {f.name: f.default for f in fields(made) if f.default is not MISSING and f.name not in fixed}


def check_options(name: str, options: Mapping[str, Any], known: Collection[str], fixed: Collection[str]) -> None:
    """Refuse options that ``name`` does not have, or decides itself (``fixed``)."""
    for option, value in options.items():
        if option in fixed:
            raise AlgorithmError(f"{name} decides {option} itself; leave {option}={value!r} out")
        if option not in known:
            raise AlgorithmError(f"{name} has no option {option!r}; {suggestion(option, known, 'it takes')}")
