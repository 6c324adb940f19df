"""Tests of the Flower carrier; without Flower (pip install 'fedgs[flower]') they are skipped."""

from importlib.util import find_spec

import pytest

from tests.deploy.conftest import park

__all__ = ["park"]


@pytest.fixture(autouse=True)
def _inside_a_task() -> None:
    """Messages can be made only inside a task of Flower's; these tests are one."""
    if find_spec("flwr") is not None:
        from flwr.supercore.task_identity import TaskIdentity

        TaskIdentity.run_id = TaskIdentity.node_id = TaskIdentity.task_id = 1
