"""docs/reference/server-rules.md: its examples run as they stand, and its table lists every rule and option."""

import re
from pathlib import Path

from fedgs.algorithms import RULES

PAGE = (Path(__file__).parents[2] / "docs" / "reference" / "server-rules.md").read_text(encoding="utf-8")


def test_examples_run() -> None:
    names: dict[str, object] = {}
    examples = re.findall(r"^```python\n(.*?)^```", PAGE, flags=re.MULTILINE | re.DOTALL)
    assert len(examples) == 3
    for code in examples:
        exec(compile(code, "server-rules.md", "exec"), names)
    assert names["numbers"] == {"round": 3}


def test_every_rule_has_a_row_with_its_options_and_defaults() -> None:
    rows = dict(re.findall(r"^\| `([a-z+]+)` \| [^|]+ \| (.+) \|$", PAGE, flags=re.MULTILINE))
    assert rows.keys() == RULES.keys()
    for name, row in rows.items():
        if row.startswith("as "):
            continue
        listed = dict(re.findall(r"`(\w+)`(?: ([^,]+))?", row))
        options = {key: value for key, value in RULES[name].options.items() if (name, key) != ("fedadagrad", "beta2")}
        assert listed.keys() == options.keys()
        for key, shown in listed.items():
            if shown:
                assert eval(shown) == options[key]


def test_every_option_with_a_choice_is_explained() -> None:
    for rule in RULES.values():
        for option in rule.options:
            assert f"`{option}" in PAGE
