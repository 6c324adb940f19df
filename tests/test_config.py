"""Settings: defaults of the paper, files, overrides, and one line for everything that is wrong."""

from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from fedgs.config import RENAMED, assign, load_settings, settings_from
from fedgs.errors import ConfigError
from fedgs.settings import PlannerSettings, Settings
from reproduction.experiments.paper import facts


def test_the_defaults_are_the_papers() -> None:
    settings, paper = load_settings(), facts()["setup"]
    assert settings.federation.devices == paper["K"]
    assert settings.federation.factories == paper["M"]
    assert settings.federation.devices_per_factory == paper["K_m"]
    assert (settings.selection.pick, settings.selection.presample) == (paper["L"], paper["L_rnd"])
    assert settings.training.batch_size == paper["n"]
    assert settings.selection.solver == "gbp-cs"


def test_a_file_and_then_the_overrides(tmp_path: Path) -> None:
    file = tmp_path / "park.toml"
    file.write_text('seed = 4\n[selection]\npick = 6\nsolver = "swap"\n')
    settings = load_settings(file, ["selection.pick=7", "selection.solver=exact", 'selection.start="zero"'])
    assert settings.seed == 4
    assert (settings.selection.pick, settings.selection.solver, settings.selection.start) == (7, "exact", "zero")


def test_none_takes_back_what_need_not_be_there() -> None:
    settings = load_settings(None, ["data.normalise=none", "task.options.norm=none"], preset="quick")
    assert settings.eval.target is not None
    assert settings.data.normalise == settings.task.options["norm"] == "none"  # type: ignore[union-attr]
    changed = load_settings(None, ["eval.target=none", "training.clip=none", "algorithm.objective=none"], "quick")
    assert changed.eval.target is changed.training.clip is changed.algorithm.objective is None
    plan = load_settings(None, ["plan.rounds=3", "plan.rounds=none"], kind=PlannerSettings)
    assert isinstance(plan, PlannerSettings)
    assert plan.plan.rounds is None
    for override in ("seed=none", "eval.aim=none", "a.b=none"):
        with pytest.raises(ConfigError, match=r"valid integer|not a known setting"):
            load_settings(None, [override])


def test_settings_cannot_be_changed() -> None:
    with pytest.raises(ValidationError, match="frozen"):
        Settings().seed = 3  # type: ignore[misc]


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["selection.pick=40"], "--set selection.pick=40: selection.pick=40 is more than the 35 devices of a factory"),
        (["selection.presample=11"], "selection.presample=11 is more than pick=10"),
        (["federation.factories=400"], "federation.factories=400 is more than devices=350"),
        (["selection.solver=best"], "selection.solver='best' is not a solver; there are random, "),
        (["selection.solver=exakt"], "did you mean 'exact'"),
        (["selection.pik=3"], "selection.pik=3 is not a known setting; did you mean 'pick'?"),
        (["zzz=1"], "zzz=1 is not a known setting; known keys here: seed, "),
        (["selection.pick=ten"], "selection.pick='ten' is not possible: input should be a valid integer"),
        (["selection.pick=2.5"], "valid integer"),
        (["selection.pick=0"], "greater than or equal to 1"),
        (["selection.cap=1"], "valid boolean"),
        (["seed=-1"], "greater than or equal to 0"),
        (["selection.start=middle"], "'mpinv', 'zero' or 'random'"),
        (["seed.a=3"], "seed={'a': 3} is not possible"),
        (["selection=3"], "selection=3 is not possible: input should be a section"),
        (["selection.pick"], "expected key.path=value"),
        (["=3"], "expected key.path=value"),
        (["a..b=3"], "expected key.path=value"),
        (["training.learning_rate=0"], "greater than 0"),
        (["training.learning_rate=1e300"], "input should be less than or equal to 1e+30"),
        (["preset=own"], "preset='own' is not a setting but an option of fedgs run and fedgs sweep: --preset"),
        *(([f"training.clip={value}"], "training.clip=") for value in ("0", "-1", "inf", "'much'")),
        (["algorithm.name=fedavg", "training.calibration=1"], "training.calibration"),
        (["server.rule=fedadam", "server.class_wise=true"], "server.class_wise"),
        (["training.schedule.kind=linear"], "'constant', 'step' or 'cosine'"),
        (["training.schedule.warm=2"], "did you mean 'warmup'?"),
        (["streams.drift.kind=fast"], "streams.drift.kind='fast'"),
        (["dynamics.leave=1.5"], "less than or equal to 1"),
        (["eval.every=0"], "greater than or equal to 1"),
        (["selection.coverage.weight=-1"], "selection.coverage.weight=-1 is not possible"),
        (["selection.coverage.share=age"], "'data', 'turns' or 'fresh'"),
        (["selection.coverage.wieght=1"], "did you mean 'weight'?"),
        (["selection.solver=random", "selection.coverage.weight=1.0"], "which solver='random' does not"),
        (["algorithm.name=fedavgg"], "algorithm.name='fedavgg' is not a baseline; did you mean 'fedavg'?"),
        (["algorithm.name=fedfoo"], "is not a baseline; there are fedgs, fedavg, "),
        (["algorithm.objective=fedgs"], "algorithm.objective='fedgs' is not a baseline; there are fedavg, "),
        (
            ["algorithm.objective=fedadam"],
            "algorithm.objective='fedadam' is not possible: FedGS cannot take this objective",
        ),
        (["algorithm.objective=ida"], "has no local objective of its own"),
        (["algorithm.objective=cgau"], "changes the network"),
        (["algorithm.name=5"], "algorithm.name=5 is not possible: input should be a valid string"),
        (["algorithm.name=fedprox", "algorithm.options.muu=1"], "fedprox has no option 'muu'; did you mean 'mu'?"),
        (["algorithm.name=fedprox", "algorithm.options.mu=big"], "mu='big' is not possible; it must be a number"),
        (["algorithm.name=fedprox", "algorithm.options=3"], "algorithm.options=3 is not possible"),
        (["algorithm.options.mu=0.1"], "has no meaning with algorithm.name='fedgs'"),
        (["algorithm.devices_per_round=4"], "has no meaning with algorithm.name='fedgs'"),
        (["algorithm.name=fedavg", "server.rule=fedavgm"], "server={'rule': 'fedavgm'} has no meaning with"),
        (["algorithm.name=fedavg", "streams.mode=fresh"], "streams={'mode': 'fresh'} has no meaning with"),
        (["algorithm.name=fedavg", "dynamics.leave=0.1"], "dynamics={'leave': 0.1} has no meaning with"),
        (["algorithm.name=fedavg", "training.engine=fused"], "training.engine='fused' is for FedGS"),
        (["algorithm.name=fedavg", "algorithm.devices_per_round=351"], "is more than federation.devices=350"),
        (["algorithm.name=fedavg", "algorithm.learning_rate=0"], "algorithm.learning_rate=0 is not possible"),
        (["algorithm.name=cgau", "algorithm.options.pretrain_model=7"], "it is the path of a model"),
    ],
)
def test_wrong_overrides_are_one_line_with_key_and_value(overrides: list[str], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_settings(None, overrides)
    assert message in str(caught.value)
    assert any(str(caught.value).startswith(f"--set {override}") for override in overrides)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(("old", "new"), RENAMED.items())
def test_keys_of_older_versions_name_the_new_key_and_stored_ones_are_understood(old: str, new: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_settings(None, [f"{old}=true"])
    assert str(caught.value).startswith(f"--set {old}=true: {old}=")
    assert str(caught.value).endswith(f"is now called {new}")
    assert "\n" not in str(caught.value)
    default = Settings().model_dump()
    for key in new.split("."):
        default = default[key]
    stored: dict[str, Any] = {}
    assign(stored, old, default, old)
    assert settings_from(stored) == Settings()


def test_the_cap_allows_more_than_a_factory_has() -> None:
    assert load_settings(None, ["selection.pick=40", "selection.cap=true"]).selection.pick == 40


def test_what_comes_from_a_file_is_blamed_on_the_file(tmp_path: Path) -> None:
    file = tmp_path / "park.toml"
    file.write_text("[selection]\npick = 99\n")
    with pytest.raises(ConfigError, match=r"park\.toml: selection\.pick=99 is more than the 35 devices"):
        load_settings(file)
    # The combination is impossible because of the override, but the key at fault is the file's.
    with pytest.raises(ConfigError, match=r"selection\.pick=99"):
        load_settings(file, ["federation.devices=500"])


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"seed = ", "not valid TOML"),
        (b"\xff\xfe", "cannot be read as UTF-8"),
        (b"[selection]\nsped = 3\n", r"selection.sped=3 is not a known setting"),
    ],
)
def test_broken_files(tmp_path: Path, content: bytes, message: str) -> None:
    file = tmp_path / "park.toml"
    file.write_bytes(content)
    with pytest.raises(ConfigError, match=message) as caught:
        load_settings(file)
    assert str(file) in str(caught.value)


def test_missing_file_and_section_of_a_value(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no such file"):
        load_settings(tmp_path / "none.toml")
    with pytest.raises(ConfigError, match="cannot be read"):
        load_settings(tmp_path)
    file = tmp_path / "park.toml"
    file.write_text("seed = 1\n")
    with pytest.raises(ConfigError, match="seed is a value, not a section"):
        load_settings(file, ["seed.deep=3"])
