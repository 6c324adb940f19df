"""The examples of docs/reference/data.md run as they stand, one after the other."""

import re
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "data.md"
CHAPTERS = ("Federations", "Statistics", "Streams")


def test_examples_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    chapters = re.split(r"^## ", PAGE.read_text(encoding="utf-8"), flags=re.MULTILINE)
    examples = [
        code
        for chapter in chapters
        if chapter.startswith(CHAPTERS)
        for code in re.findall(r"^```python\n(.*?)^```", chapter, flags=re.MULTILINE | re.DOTALL)
    ]
    assert len(examples) >= 7
    for code in examples:
        exec(compile(code, str(PAGE), "exec"), names)
    assert (tmp_path / "parts-report" / "contact_sheet.png").is_file()
