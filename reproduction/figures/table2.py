"""The pictures of Table II: every row beside the paper's, and the curves family by family."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from reproduction.experiments.jobs import Result
from reproduction.experiments.runs import RunGroup
from reproduction.experiments.table2 import ROWS, papers_row
from reproduction.figures.canvas import AMBER, BLUE, FAINT, GREEN, GREY, INK, PINK, PURPLE, RED, panels_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

REFERENCE = {"fedgs": BLUE, "fedavg": GREY}
SHADES = (RED, AMBER, GREEN, PURPLE, PINK)
FAMILIES = ("FedProx", "IDA", "CGAU", "FedMMD", "FedFusion", "FedOpt", "later", "selection")
COLUMNS = 4
FAR_DOWN = 0.3
"""Rows so much below the best are shown at the edge: they would leave no room to tell the others apart."""


def far_down(accuracies: Mapping[str, float]) -> list[str]:
    """Return the rows at whose accuracy no picture looks."""
    best = max(accuracies.values(), default=0.0)
    return [key for key, accuracy in accuracies.items() if accuracy < best - FAR_DOWN]


def paint_rows(figure: "Figure", found: Mapping[str, RunGroup], compare: bool) -> None:
    """Paint the final accuracy of every row, minimum to maximum over seeds, the paper's beside it."""
    axes = figure.add_subplot()
    ran = sorted((row for row in found.values() if row.ran), key=lambda row: row.mean)
    out = far_down({row.key: row.mean for row in ran})
    for place, row in enumerate(ran):
        theirs = papers_row(row.key) if compare else None
        colour = BLUE if row.key.startswith("fedgs") or row.key == "coverage" else INK
        if row.key in out:
            axes.annotate(f"◂ {100 * row.mean:.1f}", (0, place), xycoords=axes.get_yaxis_transform(), xytext=(3, 0),
                          textcoords="offset points", fontsize=8, va="center", color=colour)  # fmt: skip
            continue
        if theirs is not None:
            axes.plot([theirs[0] * 100, row.mean * 100], [place, place], color=FAINT, linewidth=1, zorder=1)
            axes.plot(theirs[0] * 100, place, "D", color=RED, markerfacecolor="none", markersize=6,
                      label="paper" if "paper" not in axes.get_legend_handles_labels()[1] else None)  # fmt: skip
        axes.plot([min(row.final) * 100, max(row.final) * 100], [place, place], color=colour, linewidth=3, alpha=0.5)
        axes.plot(row.mean * 100, place, "o", color=colour, markersize=6)
        axes.annotate(f"{100 * row.mean:.1f}", (row.mean * 100, place), xytext=(0, 6), textcoords="offset points",
                      fontsize=7, ha="center")  # fmt: skip
    axes.plot([], [], "o", color=BLUE, label="here, FedGS and its variants")
    axes.plot([], [], "o", color=INK, label="here, the others")
    axes.set_yticks(range(len(ran)), [_label(row) for row in ran])
    axes.set_ylim(-0.6, len(ran) - 0.2)
    axes.set_xlabel("test accuracy of the last round, % (line: minimum to maximum over seeds)")
    axes.grid(axis="y", visible=False)
    figure.legend(loc="outside upper right", ncols=3)


def _label(row: RunGroup) -> str:
    seeds = len(row.seeds)
    return ROWS[row.key].title + (f" ({seeds} seeds)" if seeds > 1 else "")


def paint_curves(figure: "Figure", runs: Mapping[str, Result], key: str, compare: bool) -> None:
    """Paint accuracy or loss of the first seed, a panel a family, FedGS and FedAvg in each.

    A row that lies out of the picture all the time is named below its panel, with where it ends.
    """
    families = [f for f in FAMILIES if any(ROWS[row].family == f for row in runs)] or ["FedAvg"]
    panels = panels_of(figure, len(families), COLUMNS)
    bottom, top = _limits(runs, key, compare)
    target = next(iter(runs.values()))["settings"]["eval"]["target"]
    for family, axes in zip(families, panels, strict=True):
        members = [row for row in ROWS if row in runs and ROWS[row].family == family]
        colours = REFERENCE | dict(zip(members, SHADES, strict=False))
        out = []
        for row, colour in colours.items():
            if row in runs and any(bottom <= value <= top for _, value in _points(runs[row], key)):
                _line(axes, runs[row], key, row, colour, compare)
            elif row in runs:
                out.append(_out_of_sight(runs[row], key, row))
        if key == "accuracy":
            axes.axhline(target, color=FAINT, linewidth=0.8, linestyle="--", zorder=0)
        axes.set_ylim(bottom, top)
        axes.set_title("how devices are selected" if family == "selection" else f"FedGS and {family}")
        axes.legend(loc="best" if not compare else "lower right" if key == "accuracy" else "lower left", fontsize=7)
        lowest = axes in panels[-COLUMNS:]  # there is no other below it
        axes.set_xlabel("\n".join([*(["round"] if lowest else []), *out]))
    for axes in panels[::COLUMNS]:
        axes.set_ylabel("test accuracy" if key == "accuracy" else "test cross-entropy")
    seen = key == "accuracy" and bottom <= target <= top
    _explain(figure, f"{100 * target:g} %, the target" if seen else "", compare)


def _explain(figure: "Figure", target: str, compare: bool) -> None:
    """Say above all panels what is the same in each: the dashed line (if any), and the paper's points."""
    from matplotlib.lines import Line2D

    marks = [Line2D([], [], color=FAINT, linewidth=0.8, linestyle="--", label=target)] if target else []
    if compare:
        marks.append(Line2D([], [], color=INK, linestyle="none", marker="D", markerfacecolor="none", markersize=5,
                            label="the paper's last round"))  # fmt: skip
    if marks:
        figure.legend(handles=marks, loc="outside upper right", ncols=2)


def _out_of_sight(run: Result, key: str, row: str) -> str:
    points = _points(run, key)
    where = f", ends at {points[-1][1]:.2f}" if points else ""
    return f"{_title(row)}: out of sight{where}"


def _line(axes: "Axes", run: Result, key: str, row: str, colour: str, compare: bool) -> None:
    axes.plot(*zip(*_points(run, key), strict=True), color=colour, linewidth=1.3, label=_title(row))
    theirs = papers_row(row) if compare else None
    if theirs is not None:
        value = theirs[0] if key == "accuracy" else theirs[1]
        axes.plot(500, value, "D", color=colour, markerfacecolor="none", markersize=5, clip_on=False)


def _points(run: Result, key: str) -> list[tuple[int, float]]:
    """Return what was measured after the first round."""
    curve = run["curve"]
    return [point for point in zip(curve["round"], curve[key], strict=True) if point[0] > 0 and point[1] is not None]


def _title(row: str) -> str:
    return ROWS[row].title.replace(" (baseline)", "")


def _limits(runs: Mapping[str, Result], key: str, compare: bool) -> tuple[float, float]:
    """Cut off the steep beginning, where all curves look the same; the paper's points are in the picture."""
    out = far_down({row: run["curve"]["accuracy"][-1] for row, run in runs.items()})
    ends = [value for row, run in runs.items() if row not in out for value in run["curve"][key][-10:]]
    column = 0 if key == "accuracy" else 1
    theirs = [found[column] for row in runs if compare and row not in out and (found := papers_row(row))]
    if key == "accuracy":
        return max(0.0, min(*ends, *theirs, 1.0) - 0.18), min(1.0, max(*ends, *theirs, 0.0) + 0.03)
    return 0.0, 1.15 * max(*ends, *theirs, 1.8 * min(ends))
