"""The command of this folder is ``python -m reproduction``."""

from collections.abc import Callable
from pathlib import Path

import pytest

from reproduction.__main__ import main

ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def _importable(monkeypatch: pytest.MonkeyPatch) -> None:
    """Processes that a test starts find the package, wherever they are started."""
    monkeypatch.setenv("PYTHONPATH", str(ROOT), prepend=":")


@pytest.fixture
def program() -> tuple[str, Callable[[], None]]:
    return "reproduction", main
