"""The figures of the sampler comparison, each with the paper's own numbers beside ours."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedgs.report.units import readable_time
from reproduction.experiments import paper
from reproduction.experiments.samplers import Comparison
from reproduction.figures.canvas import INK, draw

if TYPE_CHECKING:
    from matplotlib.axes import Axes

OURS, PAPER = "#1f6f8b", "#d1495b"
COLOURS = {
    "random": "#9aa0a6",
    "random-by-data": "#c9793b",
    "monte-carlo": "#e3a857",
    "bayesian": "#b07aa1",
    "genetic": "#76b7b2",
    "brute": "#8f7f76",
    "gbp-cs": "#d1495b",
    "swap": "#8cb369",
    "multistart": "#3d9970",
    "exact": "#1f6f8b",
    "large": "#5b5ea6",
}


def draw_all(comparison: Comparison, folder: Path) -> list[Path]:
    """Draw the four figures as PNG and SVG files into ``folder`` and return their paths."""
    figures = {
        "divergence": draw_divergence,
        "time": draw_time,
        "divergence-over-time": draw_curves,
        "initialisers": draw_initialisers,
    }
    paths = []
    for name, paint in figures.items():
        paths += draw(folder, name, (7.2, 4.2), lambda figure, paint=paint: paint(figure.add_subplot(), comparison))  # type: ignore[misc]
    return paths


def draw_divergence(axes: "Axes", comparison: Comparison) -> None:
    """Draw the divergence of every sampler: a box of ours, the paper's mean and range beside it."""
    rows = sorted((row for row in comparison.rows if row.instances), key=lambda row: -row.mean)
    for place, row in enumerate(rows):
        box: dict[str, Any] = {"facecolor": COLOURS.get(row.solver, OURS), "alpha": 0.75, "edgecolor": INK}
        axes.boxplot(
            [row.divergences],
            positions=[place - 0.13],
            widths=0.42,
            patch_artist=True,
            boxprops=box,
            medianprops={"color": INK},
            whiskerprops={"color": INK},
            capprops={"color": INK},
            flierprops={"marker": ".", "markersize": 3, "markeredgecolor": "#777777"},
            manage_ticks=False,
        )
        theirs = paper.sampler(row.solver)
        if theirs:
            spread = [[theirs["mean"] - theirs["min"]], [theirs["max"] - theirs["mean"]]]
            axes.errorbar(
                [place + 0.26], [theirs["mean"]], yerr=spread, fmt="D", color=PAPER, markersize=5,
                markerfacecolor="none", capsize=3, label="paper: mean, minimum to maximum" if place == 0 else None,
            )  # fmt: skip
    axes.set_xticks(range(len(rows)), [_label(row.solver, row.instances, comparison.instances) for row in rows])
    axes.tick_params(axis="x", labelsize=7)
    axes.set_ylim(bottom=0)
    axes.set_ylabel("divergence  ‖P − P_real‖₂")
    axes.set_title(f"How close each sampler comes to the target\n{comparison.source}", fontsize=10)
    axes.grid(axis="y", alpha=0.25)
    if axes.get_legend_handles_labels()[0]:
        axes.legend(frameon=False, fontsize=8, loc="upper right")


def _label(solver: str, instances: int, of: int) -> str:
    name = (
        solver.replace("monte-carlo", "monte-\ncarlo")
        .replace("-by-data", "-\nby-data")
        .replace("multistart", "multi-\nstart")
    )
    return name if instances == of else f"{name}\n({instances} of {of})"


def draw_time(axes: "Axes", comparison: Comparison) -> None:
    """Draw the time of every sampler on a logarithmic scale."""
    rows = sorted((row for row in comparison.rows if row.instances), key=lambda row: -row.seconds)
    for place, row in enumerate(rows):
        axes.barh(place - 0.18, row.seconds, 0.36, color=OURS, label="here" if place == 0 else None)
        axes.text(row.seconds * 1.15, place - 0.18, readable_time(row.seconds), va="center", fontsize=7.5)
        theirs = paper.sampler(row.solver)
        if theirs:
            seconds = theirs["seconds"]
            axes.barh(place + 0.18, seconds, 0.36, color=PAPER, alpha=0.55)
            axes.text(seconds * 1.15, place + 0.18, readable_time(seconds), va="center", fontsize=7.5, color=PAPER)
    axes.barh([0], [0], color=PAPER, alpha=0.55, label="paper")
    axes.set_xscale("log")
    axes.set_xlim(1e-6, 3e4)
    axes.set_yticks(range(len(rows)), [row.solver for row in rows])
    axes.set_xlabel("seconds a selection, median (logarithmic)")
    axes.set_title("Time of one selection", fontsize=10)
    axes.grid(axis="x", alpha=0.25)
    axes.legend(frameon=False, fontsize=8, loc="upper right")


def draw_curves(axes: "Axes", comparison: Comparison) -> None:
    """Draw the divergence over time on the first instance; the paper's means stand at its times."""
    for name, trace in comparison.traces.items():
        times = [max(seconds, 1e-6) for seconds, _ in trace]
        best = _running_minimum([divergence for _, divergence in trace])
        colour = COLOURS.get(name, OURS)
        axes.step(times, best, where="post", color=colour, linewidth=1.6)
        axes.plot(times[-1], best[-1], "o", color=colour, markersize=5, label=name)
    for name in comparison.traces:
        theirs = paper.sampler(name)
        if theirs:
            axes.plot(theirs["seconds"], theirs["mean"], "D", color=COLOURS[name], markerfacecolor="none", markersize=6)
    axes.plot([], [], "D", color=INK, markerfacecolor="none", label="paper (mean of ten)")
    axes.set_xscale("log")
    axes.set_ylim(bottom=0)
    axes.set_xlabel("seconds (logarithmic)")
    axes.set_ylabel("divergence")
    axes.set_title("Divergence over time on one instance", fontsize=10)
    axes.grid(alpha=0.25)
    axes.legend(frameon=False, fontsize=7.5, ncols=2, loc="upper right")


def draw_initialisers(axes: "Axes", comparison: Comparison) -> None:
    """Draw how GBP-CS goes down from its three initialisers, ours as a mean over all instances, the paper's dashed."""
    theirs = paper.facts()["initialiser_curves"]
    for start, colour in (("zero", "#e3a857"), ("random", "#9aa0a6"), ("mpinv", "#1f6f8b")):
        curve = comparison.initialisers[start]
        axes.plot(range(len(curve)), curve, "-o", color=colour, markersize=3.5, label=f"{start}, here")
        axes.plot(range(len(theirs[start])), theirs[start], "--D", color=colour, markersize=4,
                  markerfacecolor="none", label=f"{start}, paper")  # fmt: skip
    exact = next((row for row in comparison.rows if row.solver == "exact" and row.instances), None)
    if exact:
        axes.axhline(exact.mean, color=INK, linewidth=0.9, linestyle=":",
                     label="optimum, here" if exact.proven == 1 else "best found, here")  # fmt: skip
    axes.set_ylim(bottom=0)
    axes.set_xlabel("steps of GBP-CS (0: the start itself; zero begins with nobody picked)")
    axes.set_ylabel("divergence")
    axes.set_title(f"GBP-CS from three initialisers; here the mean of {comparison.instances} instances", fontsize=10)
    axes.grid(alpha=0.25)
    axes.legend(frameon=False, fontsize=8)


def _running_minimum(values: list[float]) -> list[float]:
    best: list[float] = []
    for value in values:
        best.append(min(value, best[-1]) if best else value)
    return best
