"""The pictures of rows that are tuned alike: what each came to, and the curves of the first seed."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from reproduction.experiments.runs import RunGroup
from reproduction.experiments.tuned import Tuning
from reproduction.figures.canvas import AMBER, BLUE, GREEN, GREY, INK, PINK, PURPLE, RED, TEAL

if TYPE_CHECKING:
    from matplotlib.figure import Figure

COLOURS = (BLUE, RED, GREEN, AMBER, PURPLE, TEAL, PINK, GREY, INK)


def paint_rows(figure: "Figure", found: Mapping[str, RunGroup], tuning: Tuning) -> None:
    """Paint the mean of the late tests of every row, with minimum and maximum over seeds."""
    axes = figure.add_subplot()
    keys = list(found)[::-1]
    for place, key in enumerate(keys):
        late = [100 * value for value in found[key].late]
        middle = 100 * found[key].score
        axes.plot([min(late), max(late)], [place, place], color=BLUE, linewidth=3, alpha=0.5)
        axes.plot(middle, place, "o", color=BLUE, markersize=6)
        axes.annotate(f"{middle:.1f}", (middle, place), xytext=(0, 6), textcoords="offset points", fontsize=7,
                      ha="center")  # fmt: skip
    axes.set_yticks(range(len(keys)), [tuning.rows[key].title for key in keys])
    axes.set_ylim(-0.6, len(keys) - 0.3)
    axes.set_xlabel("accuracy of the late tests, % (line: minimum to maximum over seeds)")
    axes.grid(axis="y", visible=False)


def paint_curves(figure: "Figure", found: Mapping[str, RunGroup], tuning: Tuning) -> None:
    """Paint the accuracy of every row over its rounds, of the first seed."""
    axes = figure.add_subplot()
    for number, (key, row) in enumerate(found.items()):
        curve = row.runs[0]["curve"]
        style = "-" if number < len(COLOURS) else "--"
        axes.plot(curve["round"], [100 * value for value in curve["accuracy"]], style, linewidth=1.3,
                  color=COLOURS[number % len(COLOURS)], label=tuning.rows[key].title)  # fmt: skip
    axes.set_xlabel("round")
    axes.set_ylabel("test accuracy, %")
    figure.legend(loc="outside right upper")
