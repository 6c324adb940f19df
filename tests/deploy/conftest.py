"""Tests may be coroutines, and get a park that ends with them."""

import asyncio
import inspect
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path

import pytest

from tests.deploy.processes import Park


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run a test that is a coroutine."""
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    arguments = {name: pyfuncitem.funcargs[name] for name in pyfuncitem._fixtureinfo.argnames}

    async def run() -> None:
        async with arguments["park"].served if "park" in arguments else nullcontext():
            await pyfuncitem.obj(**arguments)

    asyncio.run(run())
    return True


@pytest.fixture
def park(tmp_path: Path) -> Iterator[Park]:
    """Processes with certificates in the folder of the test."""
    made = Park(tmp_path)
    yield made
    made.end()
