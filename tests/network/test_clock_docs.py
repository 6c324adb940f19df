"""docs/explanation/clock.md: its examples run as they stand, its tables list what there is."""

import re
from pathlib import Path

import pytest

from fedgs.network import ClockSettings, Schedule, load_profile
from fedgs.network.settings import LinksSettings

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
    (text,) = re.findall(r"^```toml\n(.*?)^```", PAGE, flags=re.MULTILINE | re.DOTALL)
    (tmp_path / "hall.toml").write_text(text)
    assert load_profile(str(tmp_path / "hall.toml")).network().internal.down.rate == pytest.approx(400e6)


def test_the_table_lists_every_setting() -> None:
    own = ClockSettings.model_fields.keys() - LinksSettings.model_fields.keys()
    rows = re.findall(r"^\| `(\w+)` \| (?:`\"?)?(\w+)", PAGE, flags=re.MULTILINE)
    assert {name for name, _ in rows} == own
    defaults = ClockSettings()
    for name, shown in rows:
        value = getattr(defaults, name)
        assert shown == (value if isinstance(value, str) else f"{value:g}")
