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
    figure, (left, right) = _figure(2)
    tested = [line for line in metrics if line.get(score) is not None]
    rounds = [line["round"] for line in tested]
    low, middle, high = ([_or_nan(line["percentiles"][key]) for line in tested] for key in ("10", "50", "90"))
    left.fill_between(rounds, low, high, color=COLOURS[0], alpha=0.15, linewidth=0, label="10th to 90th percentile")
    left.plot(rounds, middle, color=COLOURS[0], linewidth=1, linestyle=":", label="median device")
    left.plot(rounds, [line[score] for line in tested], color=COLOURS[0], linewidth=2, label="all test samples")
    if target is not None:
        left.axhline(target, color="#777777", linewidth=0.8, linestyle="--", label=f"target {target:g}")
    left.set(xlabel="round", ylabel=f"test {score}")
    if score in UNIT_SCORES:
        left.set_ylim(0, 1)
    left.legend(frameon=False, fontsize=8, loc="best")
    right.plot(rounds, [line["loss"] for line in tested], color=COLOURS[0], linewidth=2, label="test")
    trained = [line for line in metrics if line.get("train_loss") is not None]
    right.plot(
        [line["round"] for line in trained],
        [line["train_loss"] for line in trained],
        color=COLOURS[1],
        linewidth=1.2,
        label="training, mean of the round",
    )
    right.set(xlabel="round", ylabel="loss")
    right.set_ylim(bottom=0)
    right.legend(frameon=False, fontsize=8)
    return save_figure(_dressed(figure, (left, right), f"{name}: {score} and loss"), path)


def _or_nan(value: float | None) -> float:
    return float("nan") if value is None else value


def _draw_divergence(path: Path, name: str, metrics: Lines, baseline: bool) -> Path:
    figure, (axes,) = _figure(1)
    trained = [line for line in metrics if line.get("divergence") is not None]
    values = [line["divergence"] for line in trained]
    label = "all data of a round's participants" if baseline else "mean of the round"
    axes.plot([line["round"] for line in trained], values, color=COLOURS[0], linewidth=1.6, label=label)
    if values:
        axes.axhline(
            float(np.mean(values)), color="#777777", linewidth=0.8, linestyle="--", label=f"mean {np.mean(values):.4f}"
        )
        axes.legend(frameon=False, fontsize=8, loc="lower right")
    axes.set(xlabel="round", ylabel="divergence  ‖P − P_real‖₂")
    axes.set_ylim(0, 1.15 * max(values, default=0.0) or 1.0)  # when all devices take part there is none at all
    who = "the participants of a round" if baseline else "super nodes"
    return save_figure(_dressed(figure, (axes,), f"{name}: how far {who} are from the whole"), path)


def _draw_rates(path: Path, name: str, rates: NDArray[np.float64], factory_of: NDArray[Any], baseline: bool) -> Path:
    figure, (axes,) = _figure(1)
    order = np.lexsort((rates, factory_of))
    for factory in np.unique(factory_of):
        places = np.flatnonzero(factory_of[order] == factory)
        axes.bar(places, rates[order][places], width=1.0, color=COLOURS[int(factory) % 2 * 5])
    axes.axhline(float(rates.mean()), color=COLOURS[1], linewidth=1, label=f"mean {rates.mean():.3f}")
    turns = "rounds it took part in" if baseline else "iterations selected in"
    axes.set(xlabel="devices, factory by factory", ylabel=f"share of {turns}")
    axes.set_xlim(-0.5, len(rates) - 0.5)
    axes.set_xticks([])
    axes.legend(frameon=False, fontsize=8, loc="upper left")
    return save_figure(_dressed(figure, (axes,), f"{name}: how often each device was selected"), path)


def figure_of_histories(histories: "Mapping[str, History]") -> "Figure":
    """Return the picture of some runs: score, loss and divergence, the score over simulated time too."""
    first = next(iter(histories.values()))
    targets = {one.settings.eval.target for one in histories.values()}
    any_baseline = any(one.settings.algorithm.is_baseline for one in histories.values())
    mixed = any_baseline and len(histories) > 1
    return comparison_figure(
        {name: one.metrics for name, one in histories.items()},
        targets.pop() if len(targets) == 1 else None,
        "divergence_of_round" if mixed else "divergence",
        OF_ROUNDS if mixed else "",
        {name: one.clock for name, one in histories.items()},
        first.score,
    )


def comparison_figure(
    runs: Mapping[str, Lines],
    target: float | None = None,
    measure: str = "divergence",
    note: str = "",
    clocks: Mapping[str, Lines | None] | None = None,
    score: str = "accuracy",
) -> "Figure":
    """Return the picture.

    ``measure`` is the number of a round that is drawn as divergence, ``note`` what is to be said of it; ``clocks`` are
    the lines of the runs' clocks, where they have one.
    """
    from matplotlib.ticker import MaxNLocator

    times = {name: simulated(runs[name], clock, score) for name, clock in (clocks or {}).items() if clock}
    unit, scale = time_unit(max((seconds[-1] for seconds, _ in times.values() if seconds), default=0.0))
    figure, panels = _figure(4 if times else 3)
    scores, loss, divergence = panels[0], *panels[-2:]
    for number, (name, metrics) in enumerate(runs.items()):
        style: dict[str, Any] = {
            "color": COLOURS[number % len(COLOURS)],
            "linestyle": ("-", "--", ":")[number // len(COLOURS) % 3],
            "linewidth": 1.6,
        }
        tested = [line for line in metrics if line.get(score) is not None]
        rounds = [line["round"] for line in tested]
        scores.plot(rounds, [line[score] for line in tested], label=name, **style)
        loss.plot(rounds, [line["loss"] for line in tested], **style)
        trained = [line for line in metrics if line.get(measure) is not None]
        divergence.plot(
            [line["round"] for line in trained], [line[measure] for line in trained], **(style | {"linewidth": 1})
        )
        if name in times:
            seconds, found = times[name]
            panels[1].plot([second / scale for second in seconds], found, **style)
    for panel in panels[:-2]:
        if target is None:
            break
        panel.axhline(target, color="#777777", linewidth=0.8, linestyle="--")
        panel.annotate(f"target {target:g}", (0, target), xytext=(2, 3), textcoords="offset points", fontsize=7.5,
                       color="#555555")  # fmt: skip
    if times:
        panels[1].set(xlabel=f"simulated time ({unit})", ylabel=f"test {score}")
    scores.set(xlabel="round", ylabel=f"test {score}")
    for panel in panels[:-2]:
        if score in UNIT_SCORES:
            panel.set_ylim(0, 1)
    loss.set(xlabel="round", ylabel="test loss")
    divergence.set(xlabel="round", ylabel="divergence  ‖P − P_real‖₂")
    loss.set_ylim(bottom=0)
    divergence.set_ylim(bottom=0)
    divergence.set_title(note.replace("; ", "\n"), fontsize=8, color="#555555")
    for panel in (scores, loss, divergence):
        panel.xaxis.set_major_locator(MaxNLocator(integer=True))  # there is no round 0.5
    scores.legend(frameon=False, fontsize=8, loc="best")
    return _dressed(figure, panels, "")


def simulated(metrics: Lines, clock: Lines, score: str = "accuracy") -> tuple[list[float], list[float]]:
    """Return simulated seconds and test scores of the rounds that were tested."""
    elapsed = {line["round"]: float(line["elapsed"]) for line in clock}
    tested = [line for line in metrics if line.get(score) is not None and line["round"] in elapsed]
    return [elapsed[line["round"]] for line in tested], [line[score] for line in tested]


def _figure(panels: int) -> "tuple[Figure, Sequence[Axes]]":
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    size = {1: (7.2, 3.8), 2: (10.0, 3.8), 3: (12.5, 3.8), 4: (10.5, 7.2)}[panels]
    figure = Figure(figsize=size, layout="constrained")
    FigureCanvasAgg(figure)
    rows = 2 if panels == 4 else 1
    return figure, list(np.atleast_1d(figure.subplots(rows, panels // rows)).flat)


def _dressed(figure: "Figure", axes: "Sequence[Axes]", title: str) -> "Figure":
    for one in axes:
        one.spines[["top", "right"]].set_visible(False)
        one.grid(axis="y", alpha=0.25)
    if title:
        figure.suptitle(title, fontsize=10)
    return figure


def save_figure(figure: "Figure", path: Path, dpi: int = 130) -> Path:
    """Write a picture in one step; its kind follows from the file's ending."""
    content = BytesIO()
    figure.savefig(content, dpi=dpi, format=path.suffix.removeprefix(".") or "png")
    return write_bytes(path, content.getvalue())
