"""Numbers with units on the command line: 100MHz, 50Mbit/s, 26.4MB, 15ms. A unit is never guessed."""

import math
import re

from fedgs.errors import ConfigError

PREFIXES = {"": 1.0, "k": 1e3, "M": 1e6, "G": 1e9}
HERTZ = {f"{prefix}Hz": scale for prefix, scale in PREFIXES.items()}
RATES = {f"{prefix}{unit}": scale for prefix, scale in PREFIXES.items() for unit in ("bit/s", "bps")}
BITS = {f"{prefix}bit": scale for prefix, scale in PREFIXES.items()}
BITS |= {f"{prefix}B": 8 * scale for prefix, scale in PREFIXES.items()}
BITS |= {"KiB": 8 * 2.0**10, "MiB": 8 * 2.0**20, "GiB": 8 * 2.0**30}
SECONDS = {"s": 1.0, "ms": 1e-3, "us": 1e-6, "µs": 1e-6, "min": 60.0, "h": 3600.0}

_NUMBER = re.compile(r"([-+]?[\d.]+(?:[eE][-+]?\d+)?)\s*([^\s\d]\S*)?")


def bits(option: str, text: str) -> float:
    """Return a size in bits."""
    return _parse(option, text, BITS, "26.4MB or 211Mbit")[0]


def seconds(option: str, text: str) -> float:
    """Return a time in seconds."""
    return _parse(option, text, SECONDS, "15ms or 0.02s")[0]


def bandwidth(option: str, text: str) -> tuple[float, bool]:
    """Return a bandwidth in Hz, or a rate in bit/s and True."""
    value, unit = _parse(option, text, HERTZ | RATES, "100MHz (with an SNR) or 50Mbit/s (without)")
    return value, unit in RATES


def _parse(option: str, text: str, units: dict[str, float], example: str) -> tuple[float, str]:
    found = _NUMBER.fullmatch(text.strip())
    unit = found[2] if found else None
    try:
        value = float(found[1]) if found else math.nan
    except ValueError:
        value = math.nan
    if unit not in units or not math.isfinite(value):
        raise ConfigError(f"{option} {text}: expected a number with its unit, as in {example}")
    return value * units[unit], unit
