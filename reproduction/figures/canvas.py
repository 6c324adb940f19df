"""Figures as PNG and SVG, the same on every machine and day.

The SVG of a picture can be put into a page of either colour: ink and paper are two colours of their own, which
:func:`for_page` replaces by the page's (``currentColor`` and nothing).
"""

import io
import re
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedgs.files import make_folder, write_bytes

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

INK, PAPER, FAINT = "#1c2126", "#fefefe", "#8a9097"
BLUE, RED, AMBER, GREEN, PURPLE, GREY, PINK, TEAL = (
    "#2a7fb8", "#d1495b", "#d08a1d", "#3d9970", "#7a6fc0", "#8a9097", "#b0639b", "#2a9d8f",
)  # fmt: skip
_STYLE: dict[str, Any] = {
    "text.color": INK, "axes.edgecolor": INK, "axes.labelcolor": INK, "xtick.color": INK, "ytick.color": INK,
    "figure.facecolor": PAPER, "savefig.facecolor": PAPER, "axes.facecolor": "none", "axes.spines.top": False,
    "axes.spines.right": False, "axes.grid": True, "grid.color": FAINT, "grid.alpha": 0.25, "font.size": 9,
    "axes.titlesize": 9.5, "legend.frameon": False, "legend.fontsize": 8, "svg.hashsalt": "fedgs",
}  # fmt: skip


GROWTH = (1.0, 1.3, 1.7, 2.2, 3.0)
"""How much larger a picture may become where its words leave no room for what it shows: names may be long."""
NO_ROOM = "constrained_layout not applied"


def draw(folder: Path, name: str, size: tuple[float, float], paint: "Callable[[Figure], None]") -> list[Path]:
    """Paint a figure of so many inches, more if it needs them, and write it as ``name.png`` and ``name.svg``."""
    with _style():
        pictures = _with_room(size, paint)
    make_folder(folder)
    return [write_bytes(folder / f"{name}.{kind}", content) for kind, content in pictures.items()]


def _with_room(size: tuple[float, float], paint: "Callable[[Figure], None]") -> dict[str, bytes]:
    for growth in GROWTH:
        with warnings.catch_warnings():
            # matplotlib would say so on stderr and leave words lying over each other.
            warnings.filterwarnings("ignore" if growth == GROWTH[-1] else "error", message=NO_ROOM)
            try:
                return _pictures((size[0] * growth, size[1] * growth), paint)
            except UserWarning as error:
                if NO_ROOM not in str(error):
                    raise
    raise AssertionError("the last one is painted as it is")


def _pictures(size: tuple[float, float], paint: "Callable[[Figure], None]") -> dict[str, bytes]:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=size, layout="constrained")
    FigureCanvasAgg(figure)
    paint(figure)
    pictures = {}
    for kind, options in (("png", {"dpi": 150}), ("svg", {"metadata": {"Date": None, "Creator": None}})):
        content = io.BytesIO()
        figure.savefig(content, format=kind, **options)
        pictures[kind] = content.getvalue()
    return pictures


@contextmanager
def _style() -> Iterator[None]:
    import matplotlib

    with matplotlib.rc_context(_STYLE):  # type: ignore[arg-type]  # plain names of settings
        yield


def panels_of(figure: "Figure", count: int, columns: int) -> "list[Axes]":
    """Return so many panels, ``columns`` in a line at most; places that are left over stay empty."""
    columns = min(count, columns)
    grid: Any = figure.subplots(-(-count // columns), columns, squeeze=False)
    for axes in grid.flat[count:]:
        axes.set_axis_off()
    return list(grid.flat[:count])


def for_page(svg: str, prefix: str) -> str:
    """Return an SVG picture to be put into a page: its ink is the page's, its names begin with ``prefix``."""
    body = svg[svg.index("<svg") :]
    body = re.sub(r"<metadata>.*?</metadata>", "", body, flags=re.DOTALL)
    head, _, rest = body.partition(">")
    head = re.sub(r'\s(width|height)="[^"]*"', "", head)  # it fills the page's column; viewBox keeps its shape
    body = f"{head}>{rest}".replace(PAPER, "none").replace(INK, "currentColor")
    body = re.sub(r'\bid="', f'id="{prefix}-', body)
    return re.sub(r'(url\(#|href="#)', rf"\1{prefix}-", body)
