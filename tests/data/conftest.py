from pathlib import Path

import pytest


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache of its own; it is looked at afterwards, so it does not exist before the first set."""
    folder = tmp_path / "cache"
    monkeypatch.setenv("FEDGS_DATA", str(folder))
    return folder
