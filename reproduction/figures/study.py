"""The pictures of the selection study: who wins where, the trade-off behind it, and the curves."""

from collections.abc import Mapping
from statistics import fmean
from typing import TYPE_CHECKING, Any

import numpy as np

from reproduction.experiments.jobs import Result
from reproduction.experiments.runs import RunGroup, by_seed, last_quarter
from reproduction.experiments.selection_study import title_of
from reproduction.experiments.study_results import OURS, WITHIN, Study, common, with_all_seeds
from reproduction.figures.canvas import AMBER, BLUE, FAINT, GREEN, GREY, INK, PURPLE, RED, panels_of
from reproduction.report.markdown import signed

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SHOWN = ("random", "random-by-data", "gbp-cs", "exact", "queues", "by-data-full", "coverage")
"""Policies in pictures: the ways to select, ours, and what ours is without its selection."""
COLOURS = dict(zip(SHOWN, (GREY, AMBER, RED, PURPLE, GREEN, INK, BLUE), strict=True))
FURTHEST = 2.5
"""Points below coverage where a picture ends; what lies further down is told at the edge, with its number."""
FURTHEST_GAIN = 3.0
"""Points of a gain where a picture ends; likewise."""
MARKERS = dict(zip(SHOWN, ("s", "^", "D", "v", "P", "*", "o"), strict=True))


def paint_differences(figure: "Figure", study: Study) -> None:
    """Paint, federation by federation, every policy's accuracy against coverage's, seed by seed and on average."""
    axes = figure.add_subplot()
    keys = [key for key in study if OURS in study[key] and len(study[key]) > 1][::-1]
    axes.axvline(0, color=BLUE, linewidth=1.5, label="coverage")
    near = 100 * WITHIN
    axes.axvspan(-near, near, color=BLUE, alpha=0.12, linewidth=0, label=f"within {near:g} points of it")
    others = [policy for policy in SHOWN if policy != OURS and any(policy in study[key] for key in keys)]
    for place, key in enumerate(keys):
        for row, policy in enumerate(others):
            if policy not in study[key]:
                continue
            gaps = [-100 * value for value in by_seed(study[key][OURS], study[key][policy], "late").values()]
            if not gaps:
                continue
            height = place + 0.3 - 0.12 * row
            axes.plot(gaps, [height] * len(gaps), ".", color=COLOURS[policy], markersize=4, alpha=0.7)
            mean = fmean(gaps)
            axes.plot(mean, height, MARKERS[policy], color=COLOURS[policy], markersize=6)
            if mean < -FURTHEST:
                axes.annotate(f"◂ {signed(mean)}", (-FURTHEST, height), xytext=(3, 0), textcoords="offset points",
                              color=COLOURS[policy], fontsize=7, va="center")  # fmt: skip
        if place:
            axes.axhline(place - 0.5, color=FAINT, linewidth=0.5, alpha=0.5)
    for policy in others:
        axes.plot([], [], MARKERS[policy], color=COLOURS[policy], label=policy)
    axes.set_yticks(range(len(keys)), [title_of(key) for key in keys])
    axes.set_ylim(-0.5, len(keys) - 0.5)
    axes.set_xlim(left=max(-FURTHEST, axes.get_xlim()[0]))
    axes.set_xlabel("points of accuracy above or below coverage; dots: single seeds; ◂: further down")
    axes.grid(axis="y", visible=False)
    figure.legend(loc="outside upper center", ncols=4)


def paint_trade_off(figure: "Figure", study: Study) -> None:
    """Paint divergence, evenness of use and accuracy against each other, a point a federation and policy."""
    panels: Any = figure.subplots(1, 3)
    points = [(policy, *values) for cells in study.values() for policy, values in _relative(cells).items()]
    axes_of = (
        (panels[0], 0, 1, "divergence, as a share of random's", "Jain's index of epochs"),
        (panels[1], 0, 2, "divergence, as a share of random's", "accuracy against random, points"),
        (panels[2], 1, 2, "Jain's index of epochs", "accuracy against random, points"),
    )  # fmt: skip
    for axes, across, up, x_label, y_label in axes_of:
        for policy in SHOWN:
            own = [values for name, *values in points if name == policy]
            if own:
                axes.plot([v[across] for v in own], [v[up] for v in own], MARKERS[policy], color=COLOURS[policy],
                          markersize=5.5, alpha=0.85, label=policy)  # fmt: skip
        axes.set(xlabel=x_label, ylabel=y_label)
        if up == 2:
            axes.axhline(0, color=FAINT, linewidth=0.8)
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper center", ncols=7)


def paint_pays(
    figure: "Figure", far: Mapping[str, float], gains: Mapping[str, Mapping[str, Mapping[str, float]]]
) -> None:
    """Paint the gain of each pair of policies over how far random teams are from P_real, a panel a pair."""
    pairs = list(next(iter(gains.values())))
    panels: Any = figure.subplots(1, len(pairs), sharey=True, squeeze=False)[0]
    for axes, pair in zip(panels, pairs, strict=True):
        axes.axhline(0, color=FAINT, linewidth=0.8)
        for (title, by_pair), colour, marker in zip(gains.items(), (BLUE, RED, GREEN), "os^", strict=False):
            there = [(far[key], 100 * gap) for key, gap in by_pair[pair].items() if key in far]
            shown = [(x, y) for x, y in there if abs(y) <= FURTHEST_GAIN]
            axes.plot(*zip(*shown, strict=True), marker, color=colour, markersize=5.5, label=title)
            for x, y in there:
                if abs(y) > FURTHEST_GAIN:
                    edge, arrow = (FURTHEST_GAIN, "▴") if y > 0 else (-FURTHEST_GAIN, "▾")
                    axes.annotate(f"{arrow} {signed(y)}", (x, edge), color=colour, fontsize=7, ha="center", va="center")
        axes.set(xlabel="divergence of random teams, as a multiple of no skew's", title=pair)
        axes.set_xlim(1, max(far.values()) + 0.6)  # room for the numbers at its edge
        axes.set_ylim(-1.1 * FURTHEST_GAIN, 1.1 * FURTHEST_GAIN)
    panels[0].set_ylabel("gain in accuracy, points")
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside upper center", ncols=3)


def paint_weights(figure: "Figure", weighed: Mapping[str, Mapping[float, Result]]) -> None:
    """Paint what a growing weight V of the queues changes, a line a federation: evenness, divergence, accuracy."""
    panels: Any = figure.subplots(1, 3)
    weights = sorted({weight for by_weight in weighed.values() for weight in by_weight})
    for colour, (key, by_weight) in zip((BLUE, AMBER, GREEN, RED), weighed.items(), strict=False):
        facts = zip(*(weight_facts(result) for result in by_weight.values()), strict=True)
        for axes, values, scale in zip(panels, facts, (1, 1, 100), strict=True):
            axes.plot([weights.index(weight) for weight in by_weight], [scale * value for value in values], "o-",
                      color=colour, markersize=4, linewidth=1.2, label=title_of(key))  # fmt: skip
    for axes, label in zip(
        panels, ("Jain's index of epochs", "divergence of an iteration", "accuracy, %"), strict=True
    ):
        axes.set(xlabel="weight V of the queues (0: exact)", ylabel=label)
        axes.set_xticks(range(len(weights)), [f"{weight:g}" for weight in weights])
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside upper center", ncols=4)


def weight_facts(result: Result) -> tuple[float, float, float]:
    """Return Jain's index of epochs, divergence and accuracy (late tests) of a run."""
    summary = result["summary"]
    return float(summary["selection"]["jain_of_epochs"]), float(summary["divergence"]), last_quarter(result)


def _relative(cells: dict[str, RunGroup]) -> dict[str, tuple[float, float, float]]:
    """Return divergence over random's, Jain's index and points over random, of the policies beside random."""
    if "random" not in cells:
        return {}
    found = {}
    for policy, cell in cells.items():
        seeds = common(cell, cells["random"])
        base = cells["random"].fact("divergence", seeds)
        divergence, jain = cell.fact("divergence", seeds), cell.fact("jain_of_epochs", seeds)
        above = by_seed(cell, cells["random"], "late")
        if base and divergence is not None and jain is not None and above:
            found[policy] = (divergence / base, jain, 100 * fmean(above.values()))
    return found


def paint_curves(figure: "Figure", study: Study) -> None:
    """Paint the accuracy over rounds, a panel a federation, the mean over seeds."""
    panels = panels_of(figure, len(study), 4)
    for axes, (key, cells) in zip(panels, study.items(), strict=True):
        ends = []
        for policy, cell in with_all_seeds(cells).items():
            if policy not in SHOWN:
                continue
            rounds, accuracy = _mean_curve(cell)
            axes.plot(rounds, accuracy, color=COLOURS[policy], linewidth=1.3, label=policy)
            ends += accuracy[-3:]
        if ends:  # else none of its policies is one of those in pictures
            axes.set_ylim(max(0.0, min(ends) - 0.07), min(1.0, max(ends) + 0.012))
        axes.set_title(title_of(key))
    panels[0].set_ylabel("test accuracy")
    handles, labels = max((axes.get_legend_handles_labels() for axes in panels), key=lambda pair: len(pair[0]))
    figure.legend(handles, labels, loc="outside upper center", ncols=7)
    figure.supxlabel("round", fontsize=9)


def _mean_curve(cell: RunGroup) -> tuple[list[int], list[float]]:
    """Return rounds and mean accuracies, in the rounds that all seeds have tested."""
    curves = [dict(zip(run["curve"]["round"], run["curve"]["accuracy"], strict=True)) for run in cell.runs]
    rounds = sorted(set.intersection(*(set(curve) for curve in curves)) - {0})
    return rounds, [float(np.mean([curve[number] for curve in curves])) for number in rounds]
