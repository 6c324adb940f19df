"""A description of a run's task and algorithm, so that a run is resumed with the same loss, options and functions.

A run from Python may hold objects that its settings cannot name: a lambda that prepares inputs, a server rule. Its
folder keeps a description of task and algorithm; :func:`check_same_components` compares it when the run is resumed. A
solver is named by its settings, and imported.
"""

import functools
import types
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

from fedgs.errors import ConfigError
from fedgs.imports import is_import_path
from fedgs.simulation.components import Components

_LEFT_OUT = {"model", "path"}
"""Fields of a task that say nothing more: a checkpoint knows its network by its weights."""


def describe_components(components: Components) -> dict[str, Any]:
    """Return the description of a run's components, as JSON has it."""
    task = {key: value for key, value in describe(components.task).items() if key not in _LEFT_OUT}
    if isinstance(task["bins"], list):  # their names are the federation's affair
        task["bins"] = len(task["bins"])
    for key in ("loss", "balance"):
        if is_import_path(task[key]):  # as settings name a function
            task[key] = task[key].partition(":")[2]
    return {"task": task, "algorithm": describe(components.algorithm)}


def check_same_components(folder: Path, before: Any, components: Components) -> None:
    """Refuse components that are others than those the run was begun with."""
    if not isinstance(before, dict):
        return  # a run that kept no description
    now = describe_components(components)
    for part in ("task", "algorithm"):
        if before.get(part) != now[part]:
            where, old, new = _difference(part, before.get(part), now[part])
            raise ConfigError(
                f"{folder}: {where} was {_shown(old)} when the run began and is {_shown(new)} now; give the {part} it "
                f"was begun with: fedgs.resume(…, {part}=…)"
            )


def describe(thing: Any) -> Any:
    """Return an object as plain data: values as they are, functions and classes by name."""
    if thing is None or isinstance(thing, bool | int | float | str):
        return thing
    if isinstance(thing, Mapping):
        return {str(key): describe(value) for key, value in thing.items()}
    if isinstance(thing, list | tuple):
        return [describe(value) for value in thing]
    if is_dataclass(thing) and not isinstance(thing, type):
        values = {one.name: describe(getattr(thing, one.name)) for one in fields(thing)}
        return {"is": type(thing).__qualname__, **values}
    if isinstance(thing, functools.partial):
        return {"is": "partial", "of": describe(thing.func), "with": describe([thing.args, thing.keywords])}
    if isinstance(thing, types.FunctionType) and "<" in thing.__qualname__:  # a lambda, or made within a function
        code = thing.__code__  # its instructions differ between versions of Python; names and constants do not
        constants = [value for value in code.co_consts if not isinstance(value, types.CodeType)]
        held = [cell.cell_contents for cell in thing.__closure__ or ()]
        plain = [value for value in held if isinstance(value, bool | int | float | str)]
        return f"{thing.__name__} {list(code.co_names)} {constants} {plain}"
    return str(getattr(thing, "__qualname__", type(thing).__qualname__))


def _difference(where: str, before: Any, now: Any) -> tuple[str, Any, Any]:
    """Return the first place where two descriptions differ."""
    if isinstance(before, dict) and isinstance(now, dict) and before.get("is") == now.get("is"):
        for key in (*before, *now):
            if before.get(key) != now.get(key):
                return _difference(f"{where}.{key}", before.get(key), now.get(key))
    return where, before, now


def _shown(value: Any) -> str:
    if isinstance(value, dict) and "is" in value:
        return str(value["is"])
    return "not set" if value is None else str(value)
