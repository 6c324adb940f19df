"""Durations and amounts of data as people say them: 41 s, 12.5 min, 3.2 h; 840 MB, 1.32 TB."""

SECONDS = (("min", 60.0), ("h", 3600.0), ("d", 86400.0))
BYTES = (("kB", 1e3), ("MB", 1e6), ("GB", 1e9), ("TB", 1e12), ("PB", 1e15))


def time_unit(seconds: float) -> tuple[str, float]:
    """Return the unit a duration is best written in, and its seconds."""
    fitting = [unit for unit in SECONDS if seconds >= 2 * unit[1]]  # 90 s, not 1.5 min
    return fitting[-1] if fitting else ("s", 1.0)


def readable_duration(seconds: float) -> str:
    """Write a duration of a simulated park: from milliseconds to days."""
    if seconds and seconds < 0.9995:
        return f"{seconds * 1e3:.3g} ms"
    unit, scale = time_unit(seconds)
    return f"{_three(seconds / scale)} {unit}"


def readable_bytes(amount: float) -> str:
    """Write an amount of data, in powers of 1000."""
    fitting = [unit for unit in BYTES if amount >= 0.9995 * unit[1]]
    unit, scale = fitting[-1] if fitting else ("B", 1.0)
    return f"{_three(amount / scale)} {unit}"


def _three(value: float) -> str:
    """Return three digits, and more only before the point."""
    return f"{value:,.0f}" if value >= 999.5 else f"{value:.3g}"


def readable_time(seconds: float) -> str:
    """Write a duration with its unit: 23 µs, 1.5 ms, 979 s."""
    for unit, scale in (("µs", 1e-6), ("ms", 1e-3)):
        if seconds < 999.5 * scale:
            return f"{seconds / scale:.3g} {unit}"
    return f"{seconds:.3g} s"


def readable_score(score: str, value: float, digits: int = 1, deviation: float | None = None) -> str:
    """Write a score: an accuracy in per cent, other numbers as they are; ``deviation``: of some seeds."""
    if score == "accuracy":
        return f"{value:.{digits}%}" if deviation is None else f"{100 * value:.{digits}f}±{deviation:.{digits}%}"
    return f"{value:.4g}" if deviation is None else f"{value:.4g}±{deviation:.2g}"
