"""The pictures of a run, and of several runs laid over each other."""

from collections.abc import Mapping, Sequence
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from fedgs.errors import OutputError
from fedgs.files import make_folder, write_bytes
from fedgs.report.units import time_unit

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

    from fedgs.simulation.history import History

Lines = Sequence[Mapping[str, Any]]
COLOURS = ("#1f6f8b", "#d1495b", "#e3a857", "#3d9970", "#5b5ea6", "#9aa0a6", "#b07aa1", "#59504d")
FAINT, DIM = "#777777", "#555555"
DIVERGENCE = "divergence  ‖P − P_real‖₂"

Points = tuple[Any, Any]
"""Rounds, or seconds, and what was measured there."""
Curve = tuple[NDArray[Any], NDArray[np.float64], NDArray[np.float64] | None]
"""Rounds or seconds, means over seeds, and standard deviations where there are several."""

UNIT_SCORES = ("accuracy", "auroc")
"""Scores from 0 to 1: no run can flatten the others, so their axis shows all there is."""
BEYOND, LOGARITHMIC, DASH = 10, 50, 4
OF_TEAMS = "of the teams of fedgs; baselines have none"
"""Whose the divergence is where runs of both kinds are compared: that of a baseline's round is no such distance."""

RUN_PICTURES = ("learning.png", "divergence.png", "selection.png")
CONFUSION = "confusion.png"
NAMED, NUMBERED, LONGEST = 120, 12, 24
"""Classes that have room for their names, and for a number in each cell; characters of a name."""
SEPARATE = 100
"""Devices whose bars have room for a gap."""


def pictures_of(history: "History") -> list[str]:
    """Return the names of the pictures a run has; that of confusions only where there are some."""
    return [*RUN_PICTURES, *([CONFUSION] if history.confusion else [])]


def draw_run(folder: Path, history: "History", rates: NDArray[np.float64], factories: NDArray[np.int64]) -> list[Path]:
    """Draw score and loss, divergence, and the devices' selection rates as PNG files into the folder of a run."""
    baseline = history.settings.algorithm.is_baseline
    learning, divergence, selection = (folder / picture for picture in RUN_PICTURES)
    drawn = [
        _draw_learning(learning, history.name, history.metrics, history.settings.eval.target, history.score),
        _draw_divergence(divergence, history.name, history.metrics, baseline),
        _draw_rates(selection, history.name, rates, factories, baseline),
    ]
    if history.confusion:
        drawn.append(_draw_confusion(folder / CONFUSION, history.name, history.confusion["last"], history.classes))
    return drawn


def _draw_learning(path: Path, name: str, metrics: Lines, target: float | None, score: str) -> Path:
    figure, (left, right) = new_figure(2, f"{name}: {score} and loss")
    tested = [line for line in metrics if line.get(score) is not None]
    rounds = [line["round"] for line in tested]
    low, middle, high = ([_or_nan(line["percentiles"][key]) for line in tested] for key in ("10", "50", "90"))
    left.fill_between(rounds, low, high, color=COLOURS[0], alpha=0.15, linewidth=0, label="10th to 90th percentile")
    left.plot(rounds, middle, color=COLOURS[0], linewidth=1, linestyle=":", label="median device")
    scores = _points(metrics, score)
    left.plot(*scores, color=COLOURS[0], linewidth=2, marker=_marker(scores), label="all test samples")
    if target is not None:
        left.axhline(target, color=FAINT, linewidth=0.8, linestyle="--", label=f"target {target:g}")
    left.set(xlabel="round", ylabel=f"test {score}")
    losses = {"test": _points(metrics, "loss"), "training, mean of the round": _points(metrics, "train_loss")}
    for (label, points), colour in zip(losses.items(), COLOURS, strict=False):
        right.plot(*points, color=colour, linewidth=2 if label == "test" else 1.2, marker=_marker(points), label=label)
    right.set(xlabel="round", ylabel="loss")
    if score not in UNIT_SCORES:
        _fit(left, {"": scores})
    _fit(right, losses)
    for panel in (left, right):
        _legend_above(panel)
        _whole_rounds(panel)
    return save_figure(figure, path)


def _whole_rounds(axes: "Axes") -> None:
    """Number the rounds with whole numbers, however few they are."""
    from matplotlib.ticker import MaxNLocator

    axes.xaxis.set_major_locator(MaxNLocator(integer=True))


def _legend_above(axes: "Axes") -> None:
    """Put the legend over the axes, where no curve can be, and the title over the legend."""
    title = axes.get_title()
    axes.set_title("")
    axes.legend(frameon=False, fontsize=8, loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=2,
                title=title or None, title_fontsize=8)  # fmt: skip


def _marker(points: Points) -> str | None:
    """A single point would be no line."""
    return "o" if len(points[0]) == 1 else None


def _fit(axes: "Axes", curves: Mapping[str, Points]) -> None:
    """Let the axis fit values that are better lower: no run that diverges may flatten the others.

    What is ten times as high as any run began is beyond the axis, and named over it. Where the rest differ by more
    than a factor of fifty the axis is logarithmic.
    """
    values = {name: np.asarray(ys, float)[np.isfinite(ys)] for name, (_, ys) in curves.items() if len(ys)}
    first = max((float(ys[0]) for ys in values.values() if len(ys)), default=0.0)
    highest = BEYOND * first if first > 0 else np.inf
    shown = [one for ys in values.values() for one in ys if one <= highest]
    if not shown:
        return
    low, high = min(shown), max(shown)
    if low > 0 and high > LOGARITHMIC * low:
        axes.set_yscale("log")
    beyond = {name: float(ys.max()) for name, ys in values.items() if len(ys) and ys.max() > highest}
    if beyond:
        margin = 0.05 * (high - low)
        axes.set_ylim((low / 1.2, high * 1.2) if axes.get_yscale() == "log" else (low - margin, high + margin))
        named = [f"{name} {value:.3g}".strip() for name, value in beyond.items()]
        more = f" and {len(named) - 2} more" if len(named) > 2 else ""
        _add_note(axes, f"beyond the axis: {', '.join(named[:2])}{more}")


def _or_nan(value: float | None) -> float:
    return float("nan") if value is None else value


def _draw_divergence(path: Path, name: str, metrics: Lines, baseline: bool) -> Path:
    who = "the participants of a round" if baseline else "super nodes"
    figure, (axes,) = new_figure(1, f"{name}: how far {who} are from the whole")
    rounds, values = _points(metrics, "divergence")
    label = "all data of a round's participants" if baseline else "mean of the round"
    axes.plot(rounds, values, color=COLOURS[0], linewidth=1.6, marker=_marker((rounds, values)), label=label)
    if values:
        mean = float(np.mean(values))
        axes.axhline(mean, color=FAINT, linewidth=0.8, linestyle="--", label=f"mean {mean:.4f}")
        _legend_above(axes)
    axes.set(xlabel="round", ylabel=DIVERGENCE)
    _whole_rounds(axes)
    axes.set_ylim(0, 1.15 * max(values, default=0.0) or 1.0)  # when all devices take part there is none at all
    return save_figure(figure, path)


def _draw_rates(path: Path, name: str, rates: NDArray[np.float64], factory_of: NDArray[Any], baseline: bool) -> Path:
    figure, (axes,) = new_figure(1, f"{name}: how often each device was selected")
    order = np.lexsort((rates, factory_of))
    for factory in np.unique(factory_of):
        places = np.flatnonzero(factory_of[order] == factory)
        width = 0.9 if len(rates) <= SEPARATE else 1.0
        axes.bar(places, rates[order][places], width=width, color=COLOURS[int(factory) % 2 * 5])
    axes.axhline(float(rates.mean()), color=COLOURS[1], linewidth=1, label=f"mean {rates.mean():.3f}")
    turns = "rounds it took part in" if baseline else "iterations selected in"
    axes.set(xlabel="devices, factory by factory", ylabel=f"share of {turns}", xlim=(-0.5, len(rates) - 0.5), xticks=[])
    _legend_above(axes)
    return save_figure(figure, path)


def _draw_confusion(path: Path, name: str, confusion: NDArray[np.int64], classes: Sequence[str]) -> Path:
    shares = confusion / np.maximum(confusion.sum(1, keepdims=True), 1)
    classes = classes or [str(number) for number in range(len(confusion))]
    side = max(min(9.0, max(4.2, 2.4 + 0.45 * len(classes))), 2.4 + 0.13 * min(len(classes), NAMED))
    figure, (axes,) = new_figure(1, f"{name}: which class was taken for which, last test", (side + 0.8, side))
    shown = axes.imshow(shares, cmap="Blues", vmin=0, vmax=1)
    axes.grid(visible=False)
    axes.set(xlabel="predicted", ylabel="true")
    places = range(0, len(classes), -(-len(classes) // NAMED))  # every second, third, … of very many
    names = [f"{name[: LONGEST - 1]}…" if len(name) > LONGEST else name for name in (classes[one] for one in places)]
    size = 8 if len(classes) <= 40 else 6
    axes.set_xticks(places, names, rotation=90 if max(map(len, names)) > 3 else 0, fontsize=size)
    axes.set_yticks(places, names, fontsize=size)
    if len(classes) <= NUMBERED:
        for (row, column), share in np.ndenumerate(shares):
            colour = "white" if share > 0.6 else "black"
            axes.text(column, row, str(confusion[row, column]), ha="center", va="center", color=colour, fontsize=8)
    figure.colorbar(shown, ax=axes, label="share of the true class", shrink=0.8)
    return save_figure(figure, path)


def comparison_figure(groups: "Mapping[str, Sequence[History]]") -> "Figure":
    """Return the picture of some runs: score, loss and divergence over rounds, the score over simulated time too.

    ``groups``: runs that differ in their seed alone are one curve, with a band of a standard deviation.
    """
    runs = [one for group in groups.values() for one in group]
    score = runs[0].score
    targets = {one.settings.eval.target for one in runs}
    target = targets.pop() if len(targets) == 1 else None
    with_teams = [name for name, group in groups.items() if not group[0].settings.algorithm.is_baseline]
    mixed = 0 < len(with_teams) < len(groups)
    times = {name: _mean_time(group, score) for name, group in groups.items() if all(one.clock for one in group)}
    unit, scale = time_unit(max((xs[-1] for xs, _, _ in times.values() if len(xs)), default=0.0))
    figure, panels = new_figure(4 if times else 3)
    scores, loss, divergence = panels[0], *panels[-2:]
    styles = {
        name: {"color": COLOURS[number % len(COLOURS)], "linestyle": ("-", "--", ":")[number // len(COLOURS) % 3]}
        for number, name in enumerate(groups)
    }
    found = {
        key: {name: _mean_curve([_points(one.metrics, key) for one in group]) for name, group in groups.items()}
        for key in (score, "loss", "divergence")
    }
    if mixed:
        found["divergence"] = {name: found["divergence"][name] for name in with_teams}
    for panel, curves in zip((scores, loss, divergence), found.values(), strict=True):
        _draw_curves(panel, curves, styles)
    if times:
        _draw_curves(panels[1], {name: (xs / scale, ys, sd) for name, (xs, ys, sd) in times.items()}, styles)
    for panel in panels[:-2]:
        panel.set(xlabel="round", ylabel=f"test {score}")
        if target is not None:
            panel.axhline(target, color=FAINT, linewidth=0.8, linestyle="--", label=f"target {target:g}")
        if score not in UNIT_SCORES:
            _fit(panel, {name: curve[:2] for name, curve in found[score].items()})
    if times:
        panels[1].set_xlabel(f"simulated time ({unit})")
    loss.set(xlabel="round", ylabel="test loss")
    _fit(loss, {name: curve[:2] for name, curve in found["loss"].items()})
    divergence.set(xlabel="round", ylabel=DIVERGENCE)
    if mixed:
        _add_note(divergence, OF_TEAMS.replace("; ", "\n"))
    low, high = divergence.get_ylim()
    if low < high / 2:  # a distance: near 0 its axis begins there
        divergence.set_ylim(bottom=0)
    for panel in (scores, loss, divergence):
        _whole_rounds(panel)
    for panel in panels:
        shown = times if times and panel is panels[1] else found["divergence"] if panel is divergence else groups
        _dash_twins(panel, panel.lines[: len(shown)])
    _legend_below(figure, scores)
    return figure


def _draw_curves(axes: "Axes", curves: Mapping[str, Curve], styles: Mapping[str, dict[str, Any]]) -> None:
    for name, (xs, ys, deviation) in curves.items():
        axes.plot(xs, ys, label=name, linewidth=1.6, marker=_marker((xs, ys)), dash_capstyle="butt", **styles[name])
        if deviation is not None:
            axes.fill_between(xs, ys - deviation, ys + deviation, color=styles[name]["color"], alpha=0.18, linewidth=0)


def _dash_twins(axes: "Axes", curves: "Sequence[Line2D]") -> None:
    """Make curves that coincide in the finished panel dashes in turn, so that each colour can be seen."""
    axes.get_xlim(), axes.get_ylim()  # matplotlib finds the limits when it is asked for them
    drawn = [(axes.transScale + axes.transLimits).transform(curve.get_xydata()) for curve in curves]
    twins = _twins([(points[:, 0], points[:, 1]) for points in drawn])
    for curve, (place, count) in zip(curves, twins, strict=True):
        if count > 1:
            curve.set_linestyle((-DASH * place, (DASH, DASH * (count - 1))))
    if any(count > 1 for _, count in twins):
        _add_note(axes, "colours in turn: these curves coincide")


def _add_note(axes: "Axes", line: str) -> None:
    axes.set_title(f"{axes.get_title()}\n{line}".strip(), fontsize=8, color=DIM)


def _twins(curves: Sequence[Points]) -> list[tuple[int, int]]:
    """Return for each curve its place among those that coincide with it, and how many these are.

    Curves coincide where the eye cannot tell them apart: within a two hundredth of the axes' height, as far as both go.
    ``curves``: in coordinates of the axes, from 0 to 1.
    """
    families: list[list[int]] = []
    for number, curve in enumerate(curves):
        family = next((one for one in families if _coincide(curve, curves[one[0]])), None)
        if family is None:
            families.append([number])
        else:
            family.append(number)
    found = {number: (place, len(family)) for family in families for place, number in enumerate(family)}
    return [found[number] for number in range(len(curves))]


def _coincide(one: Points, other: Points) -> bool:
    """Whether two curves lie on each other wherever both are; they may have been measured at different places."""
    if min(len(one[0]), len(other[0])) < 2:
        return False
    first, last = max(one[0][0], other[0][0]), min(one[0][-1], other[0][-1])
    places = np.unique(np.concatenate([one[0], other[0]]))
    places = places[(places >= first) & (places <= last)]
    return len(places) > 1 and np.allclose(np.interp(places, *one), np.interp(places, *other), rtol=0, atol=1 / 200)


def _legend_below(figure: "Figure", axes: "Axes") -> None:
    """Put one legend for all panels below them, in as many columns as its names leave room for."""
    handles, names = axes.get_legend_handles_labels()
    width = figure.get_size_inches()[0]
    columns = max(1, min(len(names), int(width / (0.7 + 0.075 * max(map(len, names))))))
    figure.legend(handles, names, loc="outside lower center", ncols=columns, frameon=False, fontsize=8)


def _mean_curve(runs: Sequence[Points]) -> Curve:
    """Return the mean of some runs' points over the rounds that all have, and their standard deviation."""
    common = sorted(set.intersection(*(set(xs) for xs, _ in runs)))
    values = np.array([[dict(zip(xs, ys, strict=True))[x] for x in common] for xs, ys in runs], dtype=float)
    return np.array(common), values.mean(axis=0), values.std(axis=0, ddof=1) if len(runs) > 1 else None


def _mean_time(runs: "Sequence[History]", score: str) -> Curve:
    """Return the same over the simulated seconds of each round, their mean."""
    known = [[line for line in one.metrics if line["round"] in {row["round"] for row in one.clock}] for one in runs]
    rounds, ys, deviation = _mean_curve([_points(lines, score) for lines in known])
    elapsed = [{line["round"]: float(line["elapsed"]) for line in one.clock} for one in runs]
    return np.array([np.mean([clock[number] for clock in elapsed]) for number in rounds]), ys, deviation


def _points(lines: Lines, key: str) -> tuple[list[int], list[float]]:
    """Return the rounds in which something was measured, and what it was."""
    known = [line for line in lines if line.get(key) is not None]
    return [line["round"] for line in known], [line[key] for line in known]


def new_figure(panels: int, title: str = "", size: tuple[float, float] | None = None) -> "tuple[Figure, list[Axes]]":
    """Return a figure and its panels. A Figure by itself needs no window system, nor matplotlib's global state."""
    from matplotlib.figure import Figure

    size = size or {1: (7.2, 3.8), 2: (10.0, 3.8), 3: (12.5, 3.8), 4: (10.5, 7.2)}[panels]
    figure = Figure(figsize=size, layout="constrained")
    rows = 2 if panels == 4 else 1
    found: list[Axes] = list(np.atleast_1d(figure.subplots(rows, panels // rows)).flat)
    for axes in found:
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(axis="y", alpha=0.25)
    if title:
        figure.suptitle(title, fontsize=10)
    return figure, found


def save_figure(figure: "Figure", path: Path, dpi: int = 130) -> Path:
    """Write a picture in one step; its kind follows from the file's ending."""
    content, kind = BytesIO(), path.suffix.removeprefix(".").lower() or "png"
    if kind not in (kinds := figure.canvas.get_supported_filetypes()):
        raise OutputError(f"{path}: no picture has the ending .{kind}; there are {', '.join(sorted(kinds))}")
    make_folder(path.parent)
    figure.savefig(content, dpi=dpi, format=kind)
    return write_bytes(path, content.getvalue())
