"""The task that settings describe, and a stand-in for data that nobody has here."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from fedgs.data import Federation
from fedgs.data.dataset import IndexLists
from fedgs.imports import load_object
from fedgs.settings import TaskSettings
from fedgs.tasks.task import Task, load_task


def task_from(given: TaskSettings | str) -> Task:
    """Return the task that a section of settings, or ``package.module:name``, describes."""
    if isinstance(given, str):
        return load_task(given)
    values = given.model_dump()
    values["options"] = dict(given.options)
    values["metrics"] = None if given.metrics is None else tuple(given.metrics)
    values["keep_local"] = tuple(given.keep_local)
    for key in ("prepare", "augment"):
        if values[key] is not None:
            values[key] = load_object(values[key], f"task.{key}")
    return Task(**values)


def stand_in(inputs: Any, classes: int | Sequence[str]) -> Federation:
    """Return a federation of one sample with these shapes: networks are built to them, without any data.

    ``inputs``: shape and type of one sample, a list of both; or a list or dict of such; None: nobody knows.
    """

    def array(described: Any) -> Any:
        return np.zeros((1, *described[0]), np.dtype(described[1]))

    if inputs is None:
        found: Any = np.zeros((1, 1), np.float32)
    elif isinstance(inputs, Mapping):
        found = {key: array(one) for key, one in inputs.items()}
    elif isinstance(inputs[1], str):
        found = array(inputs)
    else:
        found = tuple(array(one) for one in inputs)
    names = tuple(map(str, range(classes))) if isinstance(classes, int) else tuple(classes)
    none, one = IndexLists.of([np.empty(0, np.int64)]), IndexLists.of([np.zeros(1, np.int64)])
    return Federation(
        "stand-in", found, np.zeros(1, np.int64), np.zeros(1, np.int32), names, ("one",), ("one",),
        np.zeros(1, np.int32), one, none,
    )  # fmt: skip
