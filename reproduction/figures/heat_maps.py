"""Accuracies over two settings: a coloured field a cell, its number written into it."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from reproduction.figures.canvas import AMBER, FAINT, INK, RED, panels_of
from reproduction.report.markdown import DIVERGED, NOT_RUN

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

PALE, DEEP = "#e3eef6", "#14486b"
"""Of the least and the most accurate field; they stay as they are on a page of either colour, and so does …"""
DARK, LIGHT = "#101418", "#ffffff"
"""… the writing on them."""
FURTHER_DOWN = 0.2
"""Differences among good cells must be seen: fields further behind the best have the colour of this distance."""
AT_LEAST = 0.02
"""… and noise must not look like a difference: the palest field is at least two points behind the best."""
DARK_FROM = 0.6
"""From which place between the colours on a field is written on in light."""
FRAMES: Sequence[tuple[str, Literal["-", "--"], float]] = ((RED, "-", 0.46), (AMBER, "--", 0.40))
"""Colour, line and half the width of frames, the first one outermost."""


@dataclass(frozen=True)
class HeatMap:
    """One panel. A cell is a line and a column, counted from 0, lines from the bottom."""

    title: str
    columns: Sequence[str]
    lines: Sequence[str]
    values: Mapping[tuple[int, int], float | None]
    """Accuracies; None: the run diverged. Cells that are not there have not been run."""
    x_label: str
    y_label: str
    marks: Mapping[tuple[int, int], str]
    """What is written behind a number."""
    frames: Sequence[tuple[int, int] | None] = ()
    """The cells with a frame around them, one for each meaning; None: there is none here."""


def paint_maps(
    figure: "Figure", maps: Sequence[HeatMap], columns: int, scales: Sequence[int], frames: Sequence[str] = ()
) -> None:
    """Paint the maps, so many in a line; those with the same number in ``scales`` share their colours.

    ``frames``: what they mean.
    """
    for axes, one, group in zip(panels_of(figure, len(maps), columns), maps, scales, strict=True):
        values = [
            value
            for other, number in zip(maps, scales, strict=True)
            for value in other.values.values()
            if number == group and value is not None
        ]
        _paint(axes, one, _colours(values))
    if frames:
        from matplotlib.patches import Patch

        handles = [
            Patch(facecolor="none", edgecolor=colour, linestyle=style, linewidth=1.8, label=words)
            for words, (colour, style, _) in zip(frames, FRAMES, strict=False)
        ]
        figure.legend(handles=handles, loc="outside lower right", ncols=len(handles))


def _colours(values: Sequence[float]) -> Callable[[float], float]:
    """Return from an accuracy to its place between the two colours."""
    most = max(values, default=1.0)
    spread = min(max(most - min(values, default=0.0), AT_LEAST), FURTHER_DOWN)
    return lambda value: max(0.0, 1 - (most - value) / spread)


def _paint(axes: "Axes", one: HeatMap, place: Callable[[float], float]) -> None:
    from matplotlib.colors import LinearSegmentedColormap
    from matplotlib.patches import Rectangle

    shades = LinearSegmentedColormap.from_list("accuracy", [PALE, DEEP])
    for line in range(len(one.lines)):
        for column in range(len(one.columns)):
            cell = line, column
            value = one.values.get(cell)
            corner = (column - 0.48, line - 0.47)
            if value is None:
                text, ink = (DIVERGED if cell in one.values else NOT_RUN), INK
                field = Rectangle(corner, 0.96, 0.94, facecolor="none", edgecolor=FAINT, linestyle=":", linewidth=0.8)
            else:
                at = place(value)
                text, ink = f"{100 * value:.1f}{one.marks.get(cell, '')}", LIGHT if at > DARK_FROM else DARK
                field = Rectangle(corner, 0.96, 0.94, facecolor=shades(at), linewidth=0)
            axes.add_patch(field)
            axes.text(column, line, text, ha="center", va="center", color=ink, fontsize=8.5 if value is not None else 7)
    for framed, (colour, style, half) in zip(one.frames, FRAMES, strict=False):
        if framed is not None:
            line, column = framed
            corner = (column - half, line - half)
            axes.add_patch(
                Rectangle(corner, 2 * half, 2 * half, fill=False, edgecolor=colour, linestyle=style, linewidth=1.8)
            )
    axes.set_xlim(-0.5, len(one.columns) - 0.5)
    axes.set_ylim(-0.5, len(one.lines) - 0.5)
    axes.set_xticks(range(len(one.columns)), one.columns)
    axes.set_yticks(range(len(one.lines)), one.lines)
    axes.tick_params(length=0)
    axes.grid(visible=False)
    axes.spines[:].set_visible(False)
    axes.set(title=one.title, xlabel=one.x_label, ylabel=one.y_label)
