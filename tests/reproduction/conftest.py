"""The command of this folder is ``python -m reproduction``."""

import sys
from pathlib import Path

import pytest

from reproduction.__main__ import main
from tests.conftest import Here

ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def _importable(monkeypatch: pytest.MonkeyPatch) -> None:
    """Processes that a test starts find the package, wherever they are started."""
    monkeypatch.setenv("PYTHONPATH", str(ROOT), prepend=":")


@pytest.fixture
def here(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Here:
    """Run a command in this process, in the folder of the test; exit code, stdout, stderr."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")

    def run(*arguments: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["reproduction", *map(str, arguments)])
        with pytest.raises(SystemExit) as ended:
            main()
        said = capsys.readouterr()
        return int(ended.value.code or 0), said.out, said.err

    return run
