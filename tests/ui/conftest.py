"""A run to look at, the page as a real process, and a real browser."""

import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("starlette")
pytest.importorskip("uvicorn")

SMALL = [
    "data.samples_per_device=40", "federation.devices=12", "federation.factories=3", "selection.pick=2",
    "training.iterations=3", "training.batch_size=8", "algorithm.local_epochs=1", "clock.step_seconds=0.001",
]  # fmt: skip
FLAGS = [
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync",
]  # fmt: skip


def browser_path() -> str | None:
    """Return the browser of this machine."""
    return next(
        (path for name in ("chromium", "chromium-browser", "google-chrome") if (path := shutil.which(name))), None
    )


def until(holds: Callable[[], bool], seconds: float = 10.0) -> None:
    """Wait until something holds."""
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end, "it never came to hold"
        time.sleep(0.05)


@contextmanager
def serving(*arguments: object) -> Iterator[str]:
    """Run ``fedgs ui`` as a process and yield its address."""
    command = [sys.executable, "-m", "fedgs", "ui", "--listen", "127.0.0.1:0", *map(str, arguments)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            found = re.match(r"(https?://\S+)", process.stdout.readline())
            assert found, "fedgs ui printed no address"
            yield found[1]
        finally:
            process.terminate()


@pytest.fixture(scope="session")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a finished run of FedGS; beside it that of FedAvg."""
    from fedgs.config import load_settings
    from fedgs.simulation.launch import launch, planned_runs
    from fedgs.simulation.simulator import pick_device

    folder = tmp_path_factory.mktemp("ui") / "plant"
    settings = load_settings(None, [*SMALL, "training.rounds=4"], "quick")
    launch(planned_runs(folder, settings), pick_device("cpu"), True, lambda run: [], lambda run, history: None)
    return folder


@pytest.fixture(scope="session")
def served(finished: Path) -> Iterator[str]:
    """The address of a page of both."""
    with serving(finished, finished.with_name("plant-fedavg")) as address:
        yield address


@pytest.fixture(scope="package")
def browser() -> Iterator[Any]:
    """A real browser, or the test is skipped with the reason.

    Playwright leaves an event loop running in this thread: it ends before a test of another package may want its own.
    """
    sync_api = pytest.importorskip("playwright.sync_api")
    path = browser_path()
    if path is None:
        pytest.skip("no Chromium on this machine: the live page is not tested in a browser")
    with sync_api.sync_playwright() as playwright:
        opened = playwright.chromium.launch(executable_path=path, args=FLAGS)
        yield opened
        opened.close()


@pytest.fixture
def open_page(browser: Any) -> Iterator[Callable[..., Any]]:
    """Open an address in a fresh window; an error of the page's script fails the test."""
    errors: list[str] = []
    contexts = []

    def note(message: Any) -> None:
        # That the server has ended before the window is no fault of the page.
        if message.type == "error" and "Failed to load resource" not in message.text:
            errors.append(message.text)

    def open_it(address: str, **options: Any) -> Any:
        context = browser.new_context(**options)
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(10_000)
        page.on("pageerror", lambda error: errors.append(str(error)))
        page.on("console", note)
        page.goto(address)
        return page

    yield open_it
    for context in contexts:
        context.close()
    assert not errors
