"""Numbers and tables as Markdown text, the way all sections of the report write them."""

from collections.abc import Sequence

MINUS = "−"
NOTHING = "–"
THIN = "\u00a0"
"""A space at which no line breaks."""


def percent(value: float | None, digits: int = 1) -> str:
    """Write a share: 85.4 %."""
    return NOTHING if value is None else f"{100 * value:.{digits}f}{THIN}%"


def points(value: float | None, digits: int = 1) -> str:
    """Write a difference of shares in points, with its sign: +0.3."""
    return NOTHING if value is None else signed(100 * value, digits)


def share(value: float) -> str:
    """Write a share without a fraction: 43 %."""
    return percent(value, 0)


def signed(value: float, digits: int = 1) -> str:
    """Write a number with its sign; what rounds to nothing has none."""
    text = f"{abs(value):.{digits}f}"
    if float(text) == 0:
        return text
    return ("+" if value > 0 else MINUS) + text


def number(value: float | None, digits: int = 3) -> str:
    """Write a number."""
    return NOTHING if value is None else f"{value:.{digits}f}"


def rounds(value: float | None) -> str:
    """Write a round; × where it never came."""
    return "×" if value is None else f"{value:g}"


def with_range(values: Sequence[float], digits: int = 1) -> str:
    """Write the mean of shares, and the least and the most where there are several: 85.5 % (85.4–85.6)."""
    if not values:
        return NOTHING
    mean = percent(sum(values) / len(values), digits)
    if len(values) == 1:
        return mean
    return f"{mean} ({100 * min(values):.{digits}f}–{100 * max(values):.{digits}f})"


def listing(words: Sequence[str]) -> str:
    """Write words as a list in a sentence: a, b and c; where they have commas themselves: a, b; c, d; and e, f."""
    if len(words) < 2:
        return "".join(words)
    apart = "; " if any(", " in word for word in words) else ", "
    last = "; and " if apart == "; " and len(words) > 2 else " and "
    return apart.join(words[:-1]) + last + words[-1]


def plural(count: int, word: str, several: str = "") -> str:
    """Write so many of something: 1 seed, 2 seeds, 3 factories."""
    return f"{count} {word if count == 1 else several or f'{word}s'}"


def every(count: int) -> str:
    """Write how often something happens: every round, every 5 rounds."""
    return "every round" if count == 1 else f"every {count} rounds"


def table(heads: Sequence[str], lines: Sequence[Sequence[str]], left: int = 1) -> str:
    """Return a table whose first ``left`` columns are text and whose others are numbers."""
    marks = [":--" if column < left else "--:" for column in range(len(heads))]
    every = [list(heads), marks, *(list(line) for line in lines)]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in every)


def bullets(sentences: Sequence[str]) -> str:
    """Return sentences as a list."""
    return "\n".join(f"- {sentence}" for sentence in sentences)


def left_out_in_words(number: int) -> list[str]:
    """Say how many runs are not shown beside the others; nothing if none was left out."""
    made = "made with another seed or other settings than most"
    return [f"Not shown, for they were {made}: {plural(number, 'run')}."] if number else []
