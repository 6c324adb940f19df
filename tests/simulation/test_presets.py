from pathlib import Path

import pytest

from fedgs.config import PRESETS, apply_overrides, load_settings
from fedgs.settings import Settings
from fedgs.simulation.launch import planned_runs


@pytest.mark.parametrize("name", PRESETS)
def test_presets_are_valid(name: str) -> None:
    settings = load_settings(preset=name)
    apply_overrides(settings, settings.baseline)


def test_the_papers_preset_is_the_papers() -> None:
    paper = load_settings(preset="paper")
    assert (paper.federation.devices, paper.federation.factories) == (350, 10)
    assert (paper.selection.solver, paper.selection.pick, paper.selection.presample) == ("gbp-cs", 10, 2)
    training = paper.training
    assert (paper.task.model, training.rounds, training.iterations) == ("paper", 500, 50)
    assert (training.batch_size, training.learning_rate, training.momentum) == (32, 0.01, 0.0)
    assert (paper.server.rule, paper.streams.mode, paper.dynamics.active) == ("mean", "sticky", False)
    assert paper.model_copy(update={"eval": Settings().eval}) == Settings()


def test_a_file_lies_over_a_preset_and_overrides_over_both(tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    file.write_text("seed = 7\n[training]\nrounds = 5\n[server.options]\nbeta = 0.5\n")
    settings = load_settings(file, ["training.rounds=6"], preset="quick")
    assert (settings.seed, settings.training.rounds, settings.task.model) == (7, 6, "compact")
    assert settings.server.options == {"beta": 0.5}


def test_settings_that_conflict_with_the_presets_baseline_remove_it(tmp_path: Path) -> None:
    assert load_settings(preset="quick").baseline == ["algorithm.name=fedavg"]
    assert load_settings(None, ["training.rounds=3"], "quick").baseline == ["algorithm.name=fedavg"]
    assert load_settings(None, ["algorithm.name=fedprox"], "quick").baseline == []
    assert load_settings(None, ["algorithm.name=fedavg"], "quick").baseline == []
    file = tmp_path / "mine.toml"
    file.write_text("[algorithm]\nname = 'ida'\n")
    assert load_settings(file, [], "quick").baseline == []
    kept = ["baseline=['algorithm.name=fedavg']", "algorithm.name=ida"]
    assert load_settings(None, kept, "paper").baseline == ["algorithm.name=fedavg"]


def test_the_presets_baseline_does_not_take_over_the_objective_of_fedgs() -> None:
    chosen = ["algorithm.objective=fedprox", "algorithm.options.mu=0.5"]
    first, second = (run.settings.algorithm for run in planned_runs(Path("a"), load_settings(None, chosen, "bearings")))
    assert (first.name, first.objective, first.options) == ("fedgs", "fedprox", {"mu": 0.5})
    assert (second.name, second.objective, second.options) == ("fedavg", None, {})
