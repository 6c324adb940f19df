"""docs/reference/baselines.md: its examples run as they stand, its tables name every baseline and every option."""

import re
from pathlib import Path

import pytest

from fedgs.algorithms import BASELINES, RULES

PAGE = (Path(__file__).parents[2] / "docs" / "reference" / "baselines.md").read_text(encoding="utf-8")


def test_the_examples_run(capsys: pytest.CaptureFixture[str]) -> None:
    examples = re.findall(r"^```python\n(.*?)^```", PAGE, flags=re.MULTILINE | re.DOTALL)
    assert len(examples) == 2
    names: dict[str, object] = {}
    try:
        for code in examples:
            exec(compile(code, "baselines.md", "exec"), names)
    finally:
        BASELINES.pop("distilled", None)
    assert 0 <= float(capsys.readouterr().out) <= 1


def test_every_baseline_has_a_row() -> None:
    table = PAGE[PAGE.index("| `algorithm.name` | what differs") : PAGE.index("Formulas and choices")]
    first = [row.split("|")[1] for row in table.splitlines()[2:] if row.startswith("|")]
    assert set(re.findall(r"`([a-z0-9+-]+)`", " ".join(first))) == set(BASELINES)


def test_every_option_is_explained_with_its_default() -> None:
    options = PAGE[PAGE.index("## Options") : PAGE.index("## Pre-training")]
    for name, entry in BASELINES.items():
        for option, default in entry.options.items():
            if option in RULES[entry.rule].options:
                assert f"`{option}`" in options, (name, option)
                continue
            shown = re.findall(rf"`{option}`(?: \(([^)]*)\))?", options)
            assert shown, (name, option)
            if default is not None and option != "client_lr":
                written = {text.strip("`") for text in shown}
                assert str(default).lower() in written or any(_equal(text, default) for text in written), (name, option)


def _equal(text: str, default: object) -> bool:
    try:
        return float(text) == default
    except ValueError:
        return False
