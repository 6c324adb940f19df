import json
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from PIL import Image

from fedgs.config import load_settings
from fedgs.report.run_figures import comparison_figure, draw_run
from fedgs.report.sweep_figures import draw_sweep
from fedgs.settings import Settings
from fedgs.simulation import folder as folders
from fedgs.simulation.history import load_history


def lines(rounds: int, slope: float, every: int = 2, **more: list[float]) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    for number in range(rounds + 1):
        line: dict[str, Any] = {"round": number}
        if number:
            line |= {"train_loss": 3 - slope * number / rounds, "divergence": 0.05, "divergence_of_round": 0.05}
        if number % every == 0:
            accuracy = slope * number / rounds
            line |= {"accuracy": accuracy, "loss": 4 - accuracy}
            line["percentiles"] = {"10": accuracy / 2, "50": accuracy, "90": min(1.0, accuracy * 1.2)}
        found.append(line | {key: values[number] for key, values in more.items()})
    return found


def history(metrics: list[Any], clock: list[Any] = [], *options: str, score: str = "accuracy") -> Any:  # noqa: B006
    return SimpleNamespace(metrics=metrics, clock=clock, settings=load_settings(overrides=options), score=score)


@pytest.mark.parametrize("rounds", [0, 1, 6])
def test_pictures_of_a_run_are_drawn_even_where_little_was_measured(tmp_path: Path, rounds: int) -> None:
    folder = tmp_path / "run"
    folders.create_run(folder, Settings())
    folders.write_lines(folder / "metrics.jsonl", lines(rounds, 0.8) if rounds else lines(1, 0.8)[:1])
    rows = [f"{0.05 * number},factory-{number // 4}\n" for number in range(12)]
    (folder / "devices.csv").write_text("rate,factory\n" + "".join(rows))
    paths = draw_run(folder, load_history(folder), *folders.read_rates(folder))
    assert [path.name for path in paths] == ["learning.png", "divergence.png", "selection.png"]
    for path in paths:
        with Image.open(path) as picture:
            assert min(picture.size) > 400
            assert len(set(picture.convert("RGB").resize((64, 64)).get_flattened_data())) > 5


def test_runs_of_different_length_over_rounds_and_over_simulated_time() -> None:
    metrics, longer = lines(6, 0.8), lines(10, 0.4)
    clock = [{"round": number, "elapsed": 100.0 * number} for number in range(5)]  # it lacks the last rounds

    def panels(**groups: Any) -> list[int]:
        return [len(axes.lines) for axes in comparison_figure({name: [one] for name, one in groups.items()}).axes]

    assert panels(a=history(metrics)) == [1, 1, 1]
    assert panels(a=history(metrics), b=history(longer)) == [2, 2, 2]
    # With a line for the target; one run has a clock.
    target = "eval.target=0.5"
    runs = {"a": [history(metrics, clock, target)], "b": [history(longer, [], target)]}
    figure = comparison_figure(runs)
    assert [len(axes.lines) for axes in figure.axes] == [3, 2, 2, 2]
    times, scores = figure.axes[1].lines[0].get_data()
    assert list(times) == [0, 200 / 60, 400 / 60]  # minutes
    assert list(scores) == [metrics[number]["accuracy"] for number in (0, 2, 4)]


def test_seeds_are_one_curve_in_a_band_of_their_standard_deviation() -> None:
    """By hand: scores 0.2 and 0.4 have the mean 0.3 and the deviation √(2 · 0.1² / 1) = 0.1414."""
    runs = [history(lines(2, 0.5, 1, accuracy=[0.0, 0.1, score])) for score in (0.2, 0.4)]
    axes = comparison_figure({"a": runs}).axes[0]
    assert list(axes.lines[0].get_ydata()) == pytest.approx([0, 0.1, 0.3])
    edges = axes.collections[0].get_paths()[0].vertices
    ends = sorted({round(float(y), 4) for x, y in edges if x == 2})
    assert ends == [0.1586, 0.4414]
    # Over the rounds that all of them have.
    shorter = history(lines(1, 0.5, 1, accuracy=[0.0, 0.1]))
    assert len(comparison_figure({"a": [runs[0], shorter]}).axes[0].lines[0].get_xdata()) == 2


def test_no_legend_covers_a_curve_and_all_names_of_twelve_runs_are_there(tmp_path: Path) -> None:
    groups = {f"femnist-350-baseline-{number:02d}": [history(lines(9, 0.05 * number, 1))] for number in range(12)}
    figure = comparison_figure(groups)
    FigureCanvasAgg(figure).draw()
    (legend,) = figure.legends
    assert [text.get_text() for text in legend.get_texts()] == list(groups)
    box = legend.get_window_extent()
    assert box.x0 >= 0
    assert box.x1 <= figure.bbox.width
    assert not any(box.overlaps(axes.get_window_extent()) for axes in figure.axes)
    styles = {(line.get_color(), line.get_linestyle()) for line in figure.axes[0].lines}
    assert len(styles) == 12


def test_legends_of_a_run_stand_over_the_axes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    figures: list[Figure] = []
    monkeypatch.setattr("matplotlib.figure.Figure.savefig", lambda figure, *_, **__: figures.append(figure))
    folders.create_run(tmp_path / "run", Settings())
    # A loss that ends at 1e20 is named, and flattens nothing.
    folders.write_lines(tmp_path / "run/metrics.jsonl", lines(3, 0.8, 1, loss=[4.0, 3.0, 2.0, 1e20]))
    draw_run(tmp_path / "run", load_history(tmp_path / "run"), np.array([0.1, 0.2]), np.array([0, 1]))
    assert len(figures) == 3
    for figure in figures:
        FigureCanvasAgg(figure).draw()
        for axes in figure.axes:
            assert not axes.get_legend().get_window_extent().overlaps(axes.get_window_extent())
    loss = figures[0].axes[1]
    assert loss.get_ylim()[1] < 5
    assert "test 1e+20" in loss.get_legend().get_title().get_text()
    for axes in (*figures[0].axes, *figures[1].axes):  # there is no round 0.5
        assert all(tick == int(tick) for tick in axes.get_xticks())


def test_classes_have_their_names_at_the_axes_of_their_confusions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    figures: list[Figure] = []
    monkeypatch.setattr("matplotlib.figure.Figure.savefig", lambda figure, *_, **__: figures.append(figure))
    folders.create_run(tmp_path / "run", Settings())
    folders.write_lines(tmp_path / "run/metrics.jsonl", lines(1, 0.8))
    for classes in (3, 62, 300):
        names = [f"Teil {number}" for number in range(classes)]
        (tmp_path / "run/task.json").write_text(json.dumps({"classes": names, "score": "accuracy", "mode": "max"}))
        matrix = np.eye(classes).tolist()
        (tmp_path / "run/confusion.json").write_text(json.dumps({"classes": names, "last": matrix, "best": matrix}))
        draw_run(tmp_path / "run", load_history(tmp_path / "run"), np.array([0.1, 0.2]), np.array([0, 1]))
        FigureCanvasAgg(figures[-1]).draw()
        for axis in (figures[-1].axes[0].xaxis, figures[-1].axes[0].yaxis):
            labels = axis.get_ticklabels()
            expected = names[:: max(1, classes // 100)]
            assert [label.get_text() for label in labels] == expected
            boxes = [label.get_window_extent() for label in labels]
            assert not any(one.overlaps(other) for one, other in pairwise(boxes))


@pytest.mark.parametrize(
    ("losses", "scale", "low", "high"),
    [
        ([4.0, 3.0, 2.0], "linear", 1.5, 4.5),  # no axis from 0
        ([4.0, 1.0, 0.01], "log", 0.001, 10),
        ([4.0, 3.0, 5e9], "linear", 1.5, 4.5),
        ([4.0, 3.0, float("inf")], "linear", 1.5, 4.5),
    ],
)
def test_the_axis_of_the_loss_fits_the_data(losses: list[float], scale: str, low: float, high: float) -> None:
    fine = history(lines(2, 0.8, 1, loss=[4.0, 3.0, 2.0]))
    axes = comparison_figure({"fine": [fine], "other": [history(lines(2, 0.8, 1, loss=losses))]}).axes[1]
    assert axes.get_yscale() == scale
    assert low < axes.get_ylim()[0] < axes.get_ylim()[1] < high
    assert ("beyond the axis: other 5e+09" in axes.get_title()) == (max(losses) == 5e9)
    # A score that is better lower is drawn in the same way; one from 0 to 1 never is.
    score = comparison_figure({"one": [history(lines(2, 0.8, 1, rmse=losses), score="rmse")]}).axes[0]
    assert score.get_yscale() == scale


def test_curves_that_coincide_are_dashes_in_turn() -> None:
    """Baselines with the same seed have the same participants, so their divergence is one curve."""
    draws = [0.1, 0.12, 0.11, 0.13, 0.1]
    groups = {
        name: [history(lines(rounds, 0.8, 1, divergence=own), [], f"algorithm.name={name}")]
        for name, rounds, own in (
            ("fedavg", 4, draws), ("fedprox", 4, draws), ("fedmmd", 3, draws[:4]), ("fednova", 4, [0.3] * 5),
        )
    }  # fmt: skip
    figure = comparison_figure(groups)
    panel, canvas = figure.axes[-1], FigureCanvasAgg(figure)
    canvas.draw()
    pixels = np.asarray(canvas.buffer_rgba())[::-1]
    left, bottom, right, top = (round(edge) for edge in panel.get_window_extent().extents)
    inside = pixels[bottom:top, left:right, :3].reshape(-1, 3).astype(int)
    for line in panel.lines:
        wanted = 255 * np.array(to_rgb(line.get_color()))
        assert (np.abs(inside - wanted).max(1) < 20).sum() > 20, line.get_label()
    assert "coincide" in panel.get_title()
    # That of a round's participants is no distance of a team: beside FedGS the baselines have none.
    other = comparison_figure(groups | {"ours": [history(lines(4, 0.8, 1, divergence=[0.2] * 5), [])]}).axes
    assert [line.get_label() for line in other[-1].lines] == ["ours"]
    assert [len(axes.lines) for axes in other[:-1]] == [5] * (len(other) - 1)
    assert "baselines have none" in other[-1].get_title()


def test_curves_coincide_where_they_are_drawn_on_each_other() -> None:
    """Losses two decades apart do not on a logarithmic axis; times that differ by a thousandth do."""
    runs = {
        name: [
            history(
                lines(2, 0.8, 1, loss=[100.0, low, low]), [{"round": at, "elapsed": at * seconds} for at in range(3)]
            )
        ]
        for name, low, seconds in (("a", 0.3, 100.0), ("b", 0.003, 100.1))
    }
    scores, times, loss, divergence = comparison_figure(runs).axes
    assert loss.get_yscale() == "log"
    assert ["coincide" in axes.get_title() for axes in (scores, times, loss, divergence)] == [True, True, False, True]
    assert [line.get_linestyle() for line in loss.lines] == ["-", "-"]


def test_a_heat_map_has_a_cell_for_each_combination(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    figures: list[Figure] = []
    monkeypatch.setattr("matplotlib.figure.Figure.savefig", lambda figure, *_, **__: figures.append(figure))
    grid = {"rate": [0.1, 1.0], "pick": [2, 3]}
    rows: list[dict[str, Any]] = [
        {"rate": 1.0, "pick": 3, "final": 0.5, "final_sd": 0.02, "failed": 0},
        {"rate": 0.1, "pick": 3, "final": 0.25, "final_sd": None, "failed": 1},
        {"rate": 0.1, "pick": 2, "final": None, "failed": 2},
    ]
    path = draw_sweep(tmp_path / "new" / "sweep.png", rows, grid, "accuracy")
    assert path.parent.is_dir()
    axes = figures[0].axes[0]
    assert [text.get_text() for text in axes.texts] == ["diverged", "25.00%\n1 diverged", "", "50.00±2.00%"]
    assert axes.images[0].get_array().tolist() == [[None, 0.25], [None, 0.5]]
