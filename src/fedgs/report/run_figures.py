"""The pictures of a run, and of several runs laid over each other."""

from collections.abc import Mapping, Sequence
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from fedgs.files import write_bytes
from fedgs.report.units import time_unit

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from fedgs.simulation.history import History

Lines = Sequence[Mapping[str, Any]]
COLOURS = ("#1f6f8b", "#d1495b", "#e3a857", "#3d9970", "#5b5ea6", "#9aa0a6", "#b07aa1", "#59504d")
FAINT = "#777777"
DIVERGENCE = "divergence  ‖P − P_real‖₂"

UNIT_SCORES = ("accuracy", "auroc")
"""Scores from 0 to 1, drawn on an axis of that range."""
OF_ROUNDS = "of all samples of a round; with fedgs: of those of a factory"
"""What the divergence is where not all runs have super nodes."""

RUN_PICTURES = ("learning.png", "divergence.png", "selection.png")


def draw_run(folder: Path, history: "History", rates: NDArray[np.float64], factories: NDArray[np.int64]) -> list[Path]:
    """Draw score and loss, divergence, and the devices' selection rates as PNG files into the folder of a run."""
    baseline = history.settings.algorithm.is_baseline
    learning, divergence, selection = (folder / picture for picture in RUN_PICTURES)
    return [
        _draw_learning(learning, history.name, history.metrics, history.settings.eval.target, history.score),
        _draw_divergence(divergence, history.name, history.metrics, baseline),
        _draw_rates(selection, history.name, rates, factories, baseline),
    ]


def _draw_learning(path: Path, name: str, metrics: Lines, target: float | None, score: str) -> Path:
    figure, (left, right) = new_figure(2, f"{name}: {score} and loss")
    tested = [line for line in metrics if line.get(score) is not None]
    rounds = [line["round"] for line in tested]
    low, middle, high = ([_or_nan(line["percentiles"][key]) for line in tested] for key in ("10", "50", "90"))
    left.fill_between(rounds, low, high, color=COLOURS[0], alpha=0.15, linewidth=0, label="10th to 90th percentile")
    left.plot(rounds, middle, color=COLOURS[0], linewidth=1, linestyle=":", label="median device")
    left.plot(*_points(metrics, score), color=COLOURS[0], linewidth=2, label="all test samples")
    if target is not None:
        left.axhline(target, color=FAINT, linewidth=0.8, linestyle="--", label=f"target {target:g}")
    _label_score(left, score)
    left.legend(frameon=False, fontsize=8, loc="best")
    right.plot(rounds, [line["loss"] for line in tested], color=COLOURS[0], linewidth=2, label="test")
    trained = _points(metrics, "train_loss")
    right.plot(*trained, color=COLOURS[1], linewidth=1.2, label="training, mean of the round")
    right.set(xlabel="round", ylabel="loss")
    right.set_ylim(bottom=0)
    right.legend(frameon=False, fontsize=8)
    return save_figure(figure, path)


def _label_score(axes: "Axes", score: str) -> None:
    axes.set(xlabel="round", ylabel=f"test {score}")
    if score in UNIT_SCORES:
        axes.set_ylim(0, 1)


def _or_nan(value: float | None) -> float:
    return float("nan") if value is None else value


def _draw_divergence(path: Path, name: str, metrics: Lines, baseline: bool) -> Path:
    who = "the participants of a round" if baseline else "super nodes"
    figure, (axes,) = new_figure(1, f"{name}: how far {who} are from the whole")
    rounds, values = _points(metrics, "divergence")
    label = "all data of a round's participants" if baseline else "mean of the round"
    axes.plot(rounds, values, color=COLOURS[0], linewidth=1.6, label=label)
    if values:
        mean = float(np.mean(values))
        axes.axhline(mean, color=FAINT, linewidth=0.8, linestyle="--", label=f"mean {mean:.4f}")
        axes.legend(frameon=False, fontsize=8, loc="lower right")
    axes.set(xlabel="round", ylabel=DIVERGENCE)
    axes.set_ylim(0, 1.15 * max(values, default=0.0) or 1.0)  # when all devices take part there is none at all
    return save_figure(figure, path)


def _draw_rates(path: Path, name: str, rates: NDArray[np.float64], factory_of: NDArray[Any], baseline: bool) -> Path:
    figure, (axes,) = new_figure(1, f"{name}: how often each device was selected")
    order = np.lexsort((rates, factory_of))
    for factory in np.unique(factory_of):
        places = np.flatnonzero(factory_of[order] == factory)
        axes.bar(places, rates[order][places], width=1.0, color=COLOURS[int(factory) % 2 * 5])
    axes.axhline(float(rates.mean()), color=COLOURS[1], linewidth=1, label=f"mean {rates.mean():.3f}")
    turns = "rounds it took part in" if baseline else "iterations selected in"
    axes.set(xlabel="devices, factory by factory", ylabel=f"share of {turns}", xlim=(-0.5, len(rates) - 0.5), xticks=[])
    axes.legend(frameon=False, fontsize=8, loc="upper left")
    return save_figure(figure, path)


def comparison_figure(histories: "Mapping[str, History]") -> "Figure":
    """Return the picture of some runs: score, loss and divergence over rounds, the score over simulated time too."""
    from matplotlib.ticker import MaxNLocator

    score = next(iter(histories.values())).score
    targets = {one.settings.eval.target for one in histories.values()}
    target = targets.pop() if len(targets) == 1 else None
    mixed = len(histories) > 1 and any(one.settings.algorithm.is_baseline for one in histories.values())
    times = {name: simulated(one.metrics, one.clock, score) for name, one in histories.items() if one.clock}
    unit, scale = time_unit(max((seconds[-1] for seconds, _ in times.values() if seconds), default=0.0))
    figure, panels = new_figure(4 if times else 3)
    scores, loss, divergence = panels[0], *panels[-2:]
    for number, (name, one) in enumerate(histories.items()):
        style: dict[str, Any] = {
            "color": COLOURS[number % len(COLOURS)],
            "linestyle": ("-", "--", ":")[number // len(COLOURS) % 3],
            "linewidth": 1.6,
        }
        scores.plot(*_points(one.metrics, score), label=name, **style)
        loss.plot(*_points(one.metrics, "loss"), **style)
        measured = _points(one.metrics, "divergence_of_round" if mixed else "divergence")
        divergence.plot(*measured, **(style | {"linewidth": 1}))
        if name in times:
            seconds, found = times[name]
            panels[1].plot([second / scale for second in seconds], found, **style)
    for panel in panels[:-2]:
        _label_score(panel, score)
        if target is not None:
            panel.axhline(target, color=FAINT, linewidth=0.8, linestyle="--")
            panel.annotate(f"target {target:g}", (0, target), xytext=(2, 3), textcoords="offset points", fontsize=7.5,
                           color="#555555")  # fmt: skip
    if times:
        panels[1].set_xlabel(f"simulated time ({unit})")
    loss.set(xlabel="round", ylabel="test loss")
    divergence.set(xlabel="round", ylabel=DIVERGENCE)
    divergence.set_title(OF_ROUNDS.replace("; ", "\n") if mixed else "", fontsize=8, color="#555555")
    for panel in (loss, divergence):
        panel.set_ylim(bottom=0)
    for panel in (scores, loss, divergence):
        panel.xaxis.set_major_locator(MaxNLocator(integer=True))  # there is no round 0.5
    scores.legend(frameon=False, fontsize=8, loc="best")
    return figure


def _points(lines: Lines, key: str) -> tuple[list[int], list[float]]:
    """Return the rounds in which something was measured, and what it was."""
    known = [line for line in lines if line.get(key) is not None]
    return [line["round"] for line in known], [line[key] for line in known]


def simulated(metrics: Lines, clock: Lines, score: str = "accuracy") -> tuple[list[float], list[float]]:
    """Return simulated seconds and test scores of the rounds that were tested."""
    elapsed = {line["round"]: float(line["elapsed"]) for line in clock}
    rounds, scores = _points([line for line in metrics if line["round"] in elapsed], score)
    return [elapsed[number] for number in rounds], scores


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
    content = BytesIO()
    figure.savefig(content, dpi=dpi, format=path.suffix.removeprefix(".") or "png")
    return write_bytes(path, content.getvalue())
