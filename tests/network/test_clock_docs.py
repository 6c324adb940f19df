"""docs/explanation/clock.md: its examples run as they stand, its tables list what there is."""

import re
from pathlib import Path

import pytest

from fedgs.config import load_settings
from fedgs.network import ClockSettings, Schedule, load_profile
from fedgs.network.settings import LinksSettings, PlanSettings
from fedgs.settings import PlannerSettings

PAGE = (Path(__file__).parents[2] / "docs" / "explanation" / "clock.md").read_text(encoding="utf-8")


def test_examples_run(capsys: pytest.CaptureFixture[str]) -> None:
    names: dict[str, object] = {}
    examples = re.findall(r"^```python\n(.*?)^```", PAGE, flags=re.MULTILINE | re.DOTALL)
    assert len(examples) == 3
    for code in examples:
        exec(compile(code, "clock.md", "exec"), names)
    numbers = [float(word) for word in capsys.readouterr().out.split()]
    assert numbers[:4] == pytest.approx([120, 200, 50 / 9, 50 / 9])
    assert isinstance(names["best"], Schedule)


def test_the_profile_of_the_page_is_one(tmp_path: Path) -> None:
    park, profile = re.findall(r"^```toml\n(.*?)^```", PAGE, flags=re.MULTILINE | re.DOTALL)
    (tmp_path / "hall.toml").write_text(profile)
    assert load_profile(str(tmp_path / "hall.toml")).network().internal.down.rate == pytest.approx(400e6)
    (tmp_path / "park.toml").write_text(park)
    settings = load_settings(tmp_path / "park.toml", kind=PlannerSettings)
    assert isinstance(settings, PlannerSettings)
    assert (settings.plan.divergence, settings.clock.external.up.rate) == (1, 50e6)


def test_the_tables_list_every_setting() -> None:
    assert PlanSettings.model_fields.keys() <= set(re.findall(r"`(\w+)`", PAGE))
    own = ClockSettings.model_fields.keys() - LinksSettings.model_fields.keys()
    rows = re.findall(r"^\| `(\w+)` \| (?:`\"?)?(\w+)", PAGE.split("key of `ClockSettings`")[1], flags=re.MULTILINE)
    assert {name for name, _ in rows} == own
    defaults = ClockSettings()
    for name, shown in rows:
        value = getattr(defaults, name)
        assert shown == (value if isinstance(value, str) else f"{value:g}")
