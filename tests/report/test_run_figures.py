from pathlib import Path

import numpy as np
from PIL import Image

from fedgs.report.run_figures import draw_comparison, draw_run, simulated


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


def test_pictures_of_a_run_are_drawn_even_where_little_was_measured(tmp_path: Path) -> None:
    rates, factories = np.linspace(0, 0.5, 12), np.repeat([0, 1, 2], 4)
    for rounds in (0, 1, 6):
        paths = draw_run(tmp_path, "a run", lines(rounds, 0.8) if rounds else lines(1, 0.8)[:1], rates, factories, 0.7)
        assert [path.name for path in paths] == ["learning.png", "divergence.png", "selection.png"]
        for path in paths:
            with Image.open(path) as picture:
                assert min(picture.size) > 400
                assert len(set(picture.convert("RGB").resize((64, 64)).get_flattened_data())) > 5


def test_runs_of_different_length_are_laid_over_each_other(tmp_path: Path) -> None:
    one = draw_comparison(tmp_path / "one.png", {"a": lines(6, 0.8)}, 0.5).read_bytes()
    two = draw_comparison(tmp_path / "two.png", {"a": lines(6, 0.8), "b": lines(10, 0.4)}).read_bytes()
    assert one != two


def test_accuracy_over_simulated_time_stands_beside_that_over_rounds(tmp_path: Path) -> None:
    metrics = lines(6, 0.8)
    clock = [{"round": number, "elapsed": 100.0 * number} for number in range(5)]  # it lacks the last rounds
    assert simulated(metrics, clock) == ([0.0, 200.0, 400.0], [metrics[number]["accuracy"] for number in (0, 2, 4)])
    plain = draw_comparison(tmp_path / "plain.png", {"a": metrics, "b": metrics}, 0.5, clocks={"a": None, "b": None})
    timed = draw_comparison(tmp_path / "timed.png", {"a": metrics, "b": metrics}, 0.5, clocks={"a": clock, "b": None})
    with Image.open(plain) as three, Image.open(timed) as four:
        assert four.height > three.height + 200  # a second row
