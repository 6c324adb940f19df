"""The picture of 'beyond the paper': all trials of both sides, and what was chosen in full."""

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING

from reproduction.experiments.beyond import FINALS, SIDES, TRIALS, Tried
from reproduction.experiments.jobs import Result
from reproduction.figures.canvas import BLUE, FAINT, GREEN, GREY, RED

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

BEST_ONES = 0.2
"""Trials further behind the best are shown at the edge."""
COLOURS = {"fedgs": BLUE, "fedavg": GREY, "coverage": GREEN}


def paint_tuning(
    figure: "Figure", trials: Mapping[str, Mapping[str, Tried]], chosen: Mapping[str, str | None],
    rejected: Mapping[str, Collection[str]], finals: Mapping[str, Result], untuned: Mapping[str, Result], rates: str,
) -> None:  # fmt: skip
    """Paint the trials left and the full runs of the first seed right, those at the untuned ``rates`` dashed."""
    left, right = figure.subplots(1, 2, width_ratios=[1, 1.15])
    _paint_trials(left, trials, chosen, rejected)
    figure.legend(*left.get_legend_handles_labels(), loc="outside lower left", ncols=6)
    for name, run in untuned.items():
        _line(right, run, f"{SIDES[name]}, {rates}", COLOURS[name], "--")
    for name, run in finals.items():
        _line(right, run, FINALS[name], COLOURS[name], "-")
    if finals or untuned:
        ends = [run["curve"]["accuracy"][-1] for run in (*finals.values(), *untuned.values())]
        right.set_ylim(max(0.0, min(ends) - 0.15), min(1.0, max(ends) + 0.03))
        right.legend(loc="best")
    else:
        right.text(0.5, 0.5, "not run yet", ha="center", va="center", transform=right.transAxes, color=FAINT)
    right.set(xlabel="round", ylabel="test accuracy", title="in full, first seed")


def _paint_trials(
    axes: "Axes", trials: Mapping[str, Mapping[str, Tried]], chosen: Mapping[str, str | None],
    rejected: Mapping[str, Collection[str]],
) -> None:  # fmt: skip
    keys = list(TRIALS)[::-1]
    scores = [trial.score for made in trials.values() for trial in made.values() if trial.score is not None]
    least = max(min(scores), max(scores) - BEST_ONES) if scores else 0.0
    for side, made in trials.items():
        for key, trial in made.items():
            place = keys.index(key) + (0.13 if side == "fedgs" else -0.13)
            if trial.score is None:
                axes.plot(0.02, place, "x", color=COLOURS[side], transform=axes.get_yaxis_transform())
                continue
            shown = "o" if trial.score >= least else "<"
            axes.plot(100 * max(trial.score, least), place, shown, color=COLOURS[side], markersize=5)
            if chosen.get(side) == key:
                axes.plot(trial.score * 100, place, "o", color=RED, markersize=10, markerfacecolor="none")
            elif key in rejected.get(side, ()):
                axes.plot(trial.score * 100, place, "x", color=RED, markersize=10)
    for side, name in SIDES.items():
        axes.plot([], [], "o", color=COLOURS[side], label=name)
    axes.plot([], [], "o", color=RED, markersize=10, markerfacecolor="none", label="chosen")
    if any(rejected.values()):
        axes.plot([], [], "x", color=RED, markersize=10, label="rejected")
    if len(scores) < sum(map(len, trials.values())):
        axes.plot([], [], "x", color=FAINT, label="diverged")
    if scores and min(scores) < least:
        axes.plot([], [], "<", color=FAINT, label="further below")
    axes.set_yticks(range(len(keys)), [TRIALS[key].title for key in keys])
    axes.set_ylim(-0.6, len(keys) - 0.4)
    axes.set(xlabel="accuracy of the late tests of a trial, %", title="the same trials for both sides")


def _line(axes: "Axes", run: Result, label: str, colour: str, style: str) -> None:
    curve = run["curve"]
    axes.plot(curve["round"][1:], curve["accuracy"][1:], style, color=colour, linewidth=1.4, label=label)
