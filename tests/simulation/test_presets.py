from pathlib import Path

import pytest

from fedgs.config import PRESETS, apply_overrides, load_settings
from fedgs.errors import ConfigError
from fedgs.settings import Settings


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


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("training.learning_rate=0", "greater than 0"),
        ("training.schedule.kind=linear", "'constant', 'step' or 'cosine'"),
        ("training.schedule.warm=2", "did you mean warmup?"),
        ("streams.drift.kind=fast", "streams.drift.kind='fast'"),
        ("dynamics.leave=1.5", "less than or equal to 1"),
        ("eval.every=0", "greater than or equal to 1"),
    ],
)
def test_wrong_settings_name_the_key(override: str, words: str) -> None:
    with pytest.raises(ConfigError) as error:
        load_settings(overrides=[override])
    assert override.partition("=")[0] in str(error.value)
    assert words in str(error.value)
    assert "\n" not in str(error.value)
