"""Settings and fixtures for all tests."""

import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import settings

# The first example of a test may compile a kernel; time is measured in benchmarks, not here. Examples are the same in
# every run, so that a change is blamed for its own faults alone; whoever looks for more of them asks for others.
settings.register_profile("fedgs", deadline=None, derandomize=not os.environ.get("FEDGS_OTHER_EXAMPLES"))
settings.load_profile("fedgs")


Here = Callable[..., tuple[int, str, str]]


@pytest.fixture
def here(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Here:
    """Run a command in this process, in the folder of the test; exit code, stdout, stderr."""
    from fedgs.cli import main

    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")

    def run(*arguments: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["fedgs", *arguments])
        with pytest.raises(SystemExit) as ended:
            main()
        said = capsys.readouterr()
        return int(ended.value.code or 0), said.out, said.err

    return run
