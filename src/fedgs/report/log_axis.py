"""A logarithmic axis that can be read: plain numbers while they are short, and only as many as there is room for."""

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.axis import Axis

LEAST, MOST = 1e-3, 1e6
"""Plain numbers are short between them."""
DECADES = 2.5
"""On a longer axis the numbers between two powers of ten have no room."""
NUMBERS = 7
"""The most that an axis has room for."""


def number_log_axis(axis: "Axis") -> None:
    """Number an axis whose limits are set: 3, 4, 5, or 0.5, 1, 2, 5, …, or 1, 10, 100, …, or powers of ten."""
    from matplotlib.ticker import FuncFormatter, LogFormatterSciNotation, LogLocator, MaxNLocator, NullFormatter

    low, high = sorted(axis.get_view_interval())
    decades = math.log10(high / low)
    if decades < 1:  # there may be no power of ten, nor twice or five times one
        axis.set_major_locator(MaxNLocator(NUMBERS, steps=[1, 2, 5, 10]))
    else:
        axis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0) if decades <= DECADES else (1.0,), numticks=NUMBERS))
    short = low >= LEAST and high <= MOST
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.10g}") if short else LogFormatterSciNotation())
    axis.set_minor_formatter(NullFormatter())
