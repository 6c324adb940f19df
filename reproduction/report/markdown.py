"""Numbers and tables as Markdown text, the way all sections of the report write them."""

from collections.abc import Sequence

MINUS = "−"
NOTHING = "–"
THIN = "\u00a0"
"""A space at which no line breaks."""
NOT_RUN, DIVERGED = "not run", "diverged"


def percent(value: float | None, digits: int = 1) -> str:
    """Write a share: 85.4 %."""
    return NOTHING if value is None else f"{100 * value:.{digits}f}{THIN}%"


def share(value: float) -> str:
    """Write a share without a fraction: 43 %."""
    return percent(value, 0)


def points(value: float | None, digits: int = 1) -> str:
    """Write a difference of shares in percentage points, with its sign: +0.3."""
    return NOTHING if value is None else signed(100 * value, digits)


def signed(value: float, digits: int = 1) -> str:
    """Write a number with its sign; zero after rounding has none."""
    text = f"{abs(value):.{digits}f}"
    if float(text) == 0:
        return text
    return ("+" if value > 0 else MINUS) + text


def number(value: float | None, digits: int = 3) -> str:
    """Write a number."""
    return NOTHING if value is None else f"{value:.{digits}f}"


def rounds(values: Sequence[float | None]) -> str:
    """Write the round of each seed; × where the target was never reached."""
    return ", ".join("×" if value is None else f"{value:g}" for value in values)


def with_range(values: Sequence[float], digits: int = 1) -> str:
    """Write the mean of shares, and minimum and maximum where there are several: 85.5 % (85.4–85.6)."""
    if not values:
        return NOTHING
    mean = percent(sum(values) / len(values), digits)
    if len(values) == 1:
        return mean
    return f"{mean} ({100 * min(values):.{digits}f}–{100 * max(values):.{digits}f})"


def plural(count: int, word: str, several: str = "") -> str:
    """Write a count with its noun: 1 seed, 2 seeds, 3 factories."""
    return f"{count} {word if count == 1 else several or f'{word}s'}"


def table(heads: Sequence[str], lines: Sequence[Sequence[str]], left: int = 1) -> str:
    """Return a table whose first ``left`` columns are text and whose others are numbers."""
    marks = [":--" if column < left else "--:" for column in range(len(heads))]
    every = [list(heads), marks, *(list(line) for line in lines)]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in every)
