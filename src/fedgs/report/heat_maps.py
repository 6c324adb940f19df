"""Accuracies over two settings: a coloured field a cell, its number written into it."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from fedgs.report.canvas import FAINT, INK, RED

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

PALE, DEEP = "#e3eef6", "#14486b"
"""Of the least and the most accurate field; they stay as they are on a page of either colour, and so does …"""
DARK, LIGHT = "#101418", "#ffffff"
"""… the writing on them."""
ASTRAY = "astray"
FURTHER_DOWN = 0.2
"""Differences among good cells must be seen: fields further behind the best have the colour of this distance."""


@dataclass(frozen=True)
class HeatMap:
    """One panel. A cell is a line and a column, counted from 0, lines from the bottom."""

    title: str
    columns: Sequence[str]
    lines: Sequence[str]
    values: Mapping[tuple[int, int], float | None]
    """Accuracies; None: the run went astray. Cells that are not there have not been run."""
    x_label: str
    y_label: str
    marks: Mapping[tuple[int, int], str]
    """What is written behind a number."""
    best: tuple[int, int] | None = None
    """The cell with a frame around it."""


def paint_maps(figure: "Figure", maps: Sequence[HeatMap], columns: int, alike: Sequence[int], best: str = "") -> None:
    """Paint the maps, so many in a line; those with the same number in ``alike`` share their colours.

    ``best``: what the frame around a cell means.
    """
    grid: Any = figure.subplots(-(-len(maps) // columns), columns, squeeze=False)
    panels: list[Axes] = [axes for line in grid for axes in line]
    for axes in panels[len(maps) :]:
        axes.set_axis_off()
    for axes, one, group in zip(panels, maps, alike, strict=False):
        values = [
            value
            for other, number in zip(maps, alike, strict=True)
            for value in other.values.values()
            if number == group and value is not None
        ]
        _paint(axes, one, _colours(values))
    if best and any(one.best is not None for one in maps):
        handle = panels[0].plot([], [], "s", color=RED, markerfacecolor="none", markersize=9, markeredgewidth=2)
        figure.legend(handle, [best], loc="outside lower right")


def _colours(values: Sequence[float]) -> Callable[[float], float]:
    """Return from an accuracy to its place between the two colours."""
    most = max(values, default=1.0)
    least = max(min(values, default=0.0), most - FURTHER_DOWN)
    spread = (most - least) or 1.0
    return lambda value: max(0.0, (value - least) / spread)


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
                text, ink = (ASTRAY if cell in one.values else "not run"), INK
                field = Rectangle(corner, 0.96, 0.94, facecolor="none", edgecolor=FAINT, linestyle=":", linewidth=0.8)
            else:
                at = place(value)
                text, ink = f"{100 * value:.1f}{one.marks.get(cell, '')}", LIGHT if at > 0.5 else DARK
                field = Rectangle(corner, 0.96, 0.94, facecolor=shades(at), linewidth=0)
            axes.add_patch(field)
            axes.text(column, line, text, ha="center", va="center", color=ink, fontsize=8.5 if value is not None else 7)
    if one.best is not None:
        line, column = one.best
        frame = Rectangle((column - 0.46, line - 0.44), 0.92, 0.88, fill=False, edgecolor=RED, linewidth=2)
        axes.add_patch(frame)
    axes.set_xlim(-0.5, len(one.columns) - 0.5)
    axes.set_ylim(-0.5, len(one.lines) - 0.5)
    axes.set_xticks(range(len(one.columns)), one.columns)
    axes.set_yticks(range(len(one.lines)), one.lines)
    axes.tick_params(length=0)
    axes.grid(visible=False)
    axes.spines[:].set_visible(False)
    axes.set(title=one.title, xlabel=one.x_label, ylabel=one.y_label)
