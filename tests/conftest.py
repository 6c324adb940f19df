"""Settings and fixtures for all tests."""

import logging
import os
import re
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from hypothesis import settings

# The first example of a test may compile a kernel; time is measured in benchmarks, not here. Examples are the same in
# every run, so that a change is blamed for its own faults alone; whoever looks for more of them asks for others.
settings.register_profile("fedgs", deadline=None, derandomize=not os.environ.get("FEDGS_OTHER_EXAMPLES"))
settings.load_profile("fedgs")

# gRPC would make children that are forked in a process that has used it, as most tests are, abort now and then.
os.environ["GRPC_ENABLE_FORK_SUPPORT"] = "0"

# Tests send Ctrl-C to processes they start. A shell that starts the tests in the background has them, and so their
# children, ignore it.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(autouse=True)
def _same_draws_in_every_run() -> None:
    """Seed torch's global generator, so that a test whose numbers come from it cannot fail once in a hundred runs."""
    if "torch" in sys.modules:
        sys.modules["torch"].manual_seed(0)


@pytest.fixture(autouse=True)
def _log_as_it_was() -> Iterator[None]:
    """A command that ran in this process leaves the log on the stderr of its test, which is closed afterwards."""
    log = logging.getLogger("fedgs.deploy")
    handlers, level, propagate = log.handlers[:], log.level, log.propagate
    yield
    log.handlers[:], log.propagate = handlers, propagate
    log.setLevel(level)


@pytest.fixture(autouse=True)
def _what_grpc_logs_as_it_was() -> Iterator[None]:
    """A command that ran in this process has chosen it; processes of later tests would fill their stderr with it."""
    yield
    for name in ("GRPC_VERBOSITY", "GRPC_TRACE"):
        os.environ.pop(name, None)


class Done(NamedTuple):
    """What a command left: its exit code and what it printed."""

    code: int
    out: str
    err: str


Here = Callable[..., Done]


@pytest.fixture
def program() -> tuple[str, Callable[[], None]]:
    """The name of the command that ``here`` runs, and its function."""
    from fedgs.cli import main

    return "fedgs", main


@pytest.fixture
def here(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    program: tuple[str, Callable[[], None]],
) -> Here:
    """Run a command in this process, in the folder of the test."""
    from fedgs.compiled import told

    name, main = program
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    # What a slow machine, or one on which nothing is compiled yet, prints besides.
    monkeypatch.setattr("fedgs.cli.run.PROGRESS_EVERY", 3600.0)
    told.set()

    def run(*arguments: object) -> Done:
        monkeypatch.setattr(sys, "argv", [name, *map(str, arguments)])
        with pytest.raises(SystemExit) as ended:
            main()
        return Done(int(ended.value.code or 0), *capsys.readouterr())

    return run


@pytest.fixture
def unpainted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Figures are made and written without being painted, which takes longest; other tests look at what they show."""
    monkeypatch.setattr("matplotlib.figure.Figure.savefig", lambda figure, file, **_: file.write(b"<svg></svg>"))


def error_of(done: Done) -> str:
    """Return the one line in which a command says what the user got wrong."""
    assert (done.code, done.out) == (2, "")
    assert re.fullmatch(r"\w+: error: .*\n", done.err)
    return done.err
