"""Words at the points of a picture, each where it covers neither a point, nor a line, nor another word."""

from itertools import pairwise
from typing import TYPE_CHECKING, Literal

import numpy as np

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.transforms import Bbox

Label = tuple[str, tuple[float, float], str]
"""A word, its point and its colour."""
Side = Literal["left", "center", "right"]

STEP = 2.0
"""Points between two places of a line that a word keeps away from."""


def _places() -> list[tuple[float, float, Side]]:
    """Return where a word may stand, in points from its own point, and how it is aligned; the nearest first."""
    found: list[tuple[float, float, Side]] = []
    for away in (0.0, 5.0, 10.0):
        near = 5.0 + away
        found += [(near, -2.5, "left"), (-near, -2.5, "right"), (near, 3 + away / 2, "left"),
                  (-near, 3 + away / 2, "right"), (0.0, near, "center"), (near, -9 - away / 2, "left"),
                  (-near, -9 - away / 2, "right"), (0.0, -7 - near, "center")]  # fmt: skip
    return found


def place_labels(axes: "Axes", labels: list[Label], size: float = 7) -> None:
    """Write the labels beside their points; the picture must have been laid out.

    Where there is no free place, a label stands at the first of all.
    """
    taken = _taken(axes)
    inside = axes.get_window_extent()
    dot = axes.figure.dpi / 72
    for text, point, colour in labels:
        best = None
        for x, y, side in _places():
            word = axes.annotate(text, point, (x, y), textcoords="offset points", ha=side, fontsize=size, color=colour)
            word.set_in_layout(False)
            box = word.get_window_extent()
            fits = inside.contains(box.x0, box.y0) and inside.contains(box.x1, box.y1)
            free = fits and not box.padded(dot).count_overlaps(taken)
            if best is None or free:
                if best is not None:
                    best.remove()
                best = word
            else:
                word.remove()
            if free:
                break
        if best is not None:
            taken.append(best.get_window_extent())


def _taken(axes: "Axes") -> "list[Bbox]":
    """Return small boxes about the points of all lines, and smaller ones along them."""
    from matplotlib.transforms import Bbox

    dot = axes.figure.dpi / 72
    boxes = []
    for line in axes.lines:
        points = axes.transData.transform(np.column_stack([line.get_xdata(), line.get_ydata()]))
        boxes += [Bbox.from_bounds(x - 2 * dot, y - 2 * dot, 4 * dot, 4 * dot) for x, y in points]
        for start, end in pairwise(points):
            between = np.linspace(start, end, 2 + int(np.hypot(*(end - start)) / (STEP * dot)))[1:-1]
            boxes += [Bbox.from_bounds(x, y, dot / 2, dot / 2) for x, y in between]
    return boxes
