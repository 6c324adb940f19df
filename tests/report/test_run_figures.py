from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from PIL import Image

from fedgs.config import load_settings
from fedgs.report.run_figures import comparison_figure, draw_run, simulated
from fedgs.settings import Settings
from fedgs.simulation import folder as folders
from fedgs.simulation.history import load_history


def lines(rounds: int, slope: float) -> list[dict[str, object]]:
    found: list[dict[str, object]] = []
    for number in range(rounds + 1):
        line: dict[str, object] = {"round": number}
        if number:
            line |= {"train_loss": 3 - slope * number, "divergence": 0.05}
        if number % 2 == 0:
            accuracy = slope * number / rounds
            line |= {"accuracy": accuracy, "loss": 4 - accuracy}
            line["percentiles"] = {"10": accuracy / 2, "50": accuracy, "90": min(1.0, accuracy * 1.2)}
        found.append(line)
    return found


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
    assert simulated(metrics, clock) == ([0.0, 200.0, 400.0], [metrics[number]["accuracy"] for number in (0, 2, 4)])

    def history(metrics: list[Any], clock: list[Any], target: float | None = None) -> Any:
        settings = load_settings(overrides=[] if target is None else [f"eval.target={target}"])
        return SimpleNamespace(metrics=metrics, clock=clock, settings=settings, score="accuracy")

    def panels(**histories: Any) -> list[int]:
        return [len(axes.lines) for axes in comparison_figure(histories).axes]

    assert panels(a=history(metrics, [])) == [1, 1, 1]
    assert panels(a=history(metrics, []), b=history(longer, [])) == [2, 2, 2]
    # With a line for the target; one run has a clock.
    assert panels(a=history(metrics, clock, 0.5), b=history(longer, [], 0.5)) == [3, 2, 2, 2]
