"""From the settings, and from objects given in Python, to the task and the algorithm of a run.

A run from Python may hold objects that its settings cannot name: a lambda that prepares inputs, a server rule. Its
folder keeps a description of task and algorithm; :func:`check_same_components` compares it when the run is resumed, so
that it goes on with the same loss, options and functions. A solver is named by its settings, and imported.

Pre-training is FedAvg on the plain network before the first round of a baseline that asks for it (CGAU). It is a run
like any other, in the folder ``pretraining`` of the run it belongs to: it has a display, checkpoints and metrics of its
own, can be interrupted and resumed, and ``fedgs compare`` takes it. Its participants and mini-batches come from random
streams of their own, so that the rounds that follow are paired with those of other baselines.
"""

import functools
import inspect
import types
from collections.abc import Mapping
from dataclasses import dataclass, fields, is_dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from fedgs.algorithms import BASELINES, Baseline, make_baseline
from fedgs.algorithms.algorithm import Algorithm
from fedgs.algorithms.fedgs import FedGS
from fedgs.data.arrays import digest_of
from fedgs.errors import ConfigError
from fedgs.imports import is_import_path, load_object, make_object, path_of
from fedgs.selection.solve import Solver, resolve_solver
from fedgs.settings import LOGGERS, Settings, TaskSettings
from fedgs.tasks.task import Task, describe, task_from
from fedgs.training.objective import Objective

PRETRAINING = "pretraining"
"""The folder of a pre-training."""
PURPOSE = "pretrain"
"""Begins the names of its random streams."""
_LEFT_OUT = {"model", "path"}
"""Fields of a task that say nothing more: a checkpoint knows its network by its weights."""


@dataclass(frozen=True)
class Components:
    """The objects of a run: task, algorithm and solver."""

    task: Task
    algorithm: Algorithm
    solver: Solver | None = None
    """One of the user's own; None: that of the settings."""


def resolve(
    settings: Settings,
    *,
    task: Task | None = None,
    algorithm: Any = None,
    solver: Any = None,
    classes: int | None = None,
) -> tuple[Settings, Components]:
    """Return the components of a run, and its settings with their names in them.

    ``task``, ``algorithm`` and ``solver`` are objects that take the place of what the settings name. ``classes``: of
    the task, for baselines whose rule wants to know.
    """
    found_task = task_from(settings.task) if task is None else task
    found_algorithm = algorithm_of(settings, classes) if algorithm is None else _checked(algorithm)
    found_solver = None if solver is None or isinstance(solver, str) else resolve_solver(solver)
    own_solver = found_solver if isinstance(found_solver, Solver) else None
    changes: dict[str, Any] = {}
    if task is not None:
        changes["task"] = _named_task(task)
    named = settings.algorithm
    if algorithm is not None:
        named = named.model_copy(update={"options": {}, "objective": None, **_named_algorithm(found_algorithm)})
    if named.kind is None and (named.name not in ("fedgs", *BASELINES)):
        named = named.model_copy(update={"kind": found_algorithm.kind})
    changes["algorithm"] = named
    if own_solver is not None:
        changes["selection"] = settings.selection.model_copy(update={"solver": path_of(solver)})
    return settings.model_copy(update=changes), Components(found_task, found_algorithm, own_solver)


def _named_task(task: Task) -> TaskSettings | str:
    """Return what settings can say of a task that was given as an object."""
    if task.path is not None:
        return task.path
    said = describe(task)
    return TaskSettings(
        model=said["model"],
        options=dict(task.options),
        loss=said["loss"],
        metrics=_named_metrics(task.metrics),
        score=task.score,
        mode=task.mode,
        balance=_named_function(task.balance),
        bins=task.bins if task.bins is None or isinstance(task.bins, int) else len(task.bins),
        prepare=_named_function(task.prepare),
        augment=_named_function(task.augment),
        features=task.features,
        head=task.head,
        keep_local=list(task.keep_local),
    )


def _named_function(function: Any) -> str | None:
    """Return the name a function can be imported by; None where it has none."""
    if not isinstance(function, types.FunctionType) or "<" in function.__qualname__:
        return None
    return path_of(function)


def _named_metrics(metrics: Any) -> list[str] | None:
    if isinstance(metrics, list | tuple) and all(isinstance(one, str) for one in metrics):
        return list(metrics)
    return None


def algorithm_of(settings: Settings, classes: int | None = None) -> Algorithm:
    """Return the algorithm the settings name, with its options."""
    named = settings.algorithm
    if named.name == "fedgs":
        return FedGS(objective_of(settings))
    if is_import_path(named.name):
        found, setting = load_object(named.name, "algorithm.name"), f"algorithm.name={named.name!r}"
        return _checked(make_object(found, named.options, setting, lambda one: hasattr(one, "kind")))
    options = dict(named.options)
    if classes is not None and classes > 1 and "classes" in BASELINES[named.name].options:
        options.setdefault("classes", classes)
    return make_baseline(named.name, **options)


def objective_of(settings: Settings) -> Objective:
    """Return the local objective of FedGS."""
    name, options = settings.algorithm.objective, settings.algorithm.options
    if name is None:
        return Objective()
    if not is_import_path(name):
        return make_baseline(name, **options)
    named, setting = load_object(name, "algorithm.objective"), f"algorithm.objective={name!r}"
    found = make_object(named, options, setting, lambda one: isinstance(one, Objective))
    if not isinstance(found, Objective):
        raise ConfigError(f"algorithm.objective={name!r}: gives a {type(found).__name__}, not an Objective")
    return found


def _checked(algorithm: Any) -> Algorithm:
    if isinstance(algorithm, type) or not callable(getattr(algorithm, "bind", None)) or not hasattr(algorithm, "kind"):
        what = algorithm.__name__ if isinstance(algorithm, type) else type(algorithm).__name__
        raise ConfigError(
            f"algorithm {what!r} is no algorithm; give FedGS(…), a baseline such as FedProx(mu=0.1), or an object "
            "with kind and bind"
        )
    found: Algorithm = algorithm
    return found


def _named_algorithm(algorithm: Algorithm) -> dict[str, Any]:
    """Return what settings can say of an algorithm that was given as an object."""
    if type(algorithm) is FedGS:
        if type(algorithm.objective) is Objective:
            return {"name": "fedgs"}
        name, options = _named_baseline(algorithm.objective)
        return {"name": "fedgs", "objective": name, "options": options}
    name, options = _named_baseline(algorithm)
    return {"name": name, "options": options}


def _named_baseline(found: Any) -> tuple[str, dict[str, Any]]:
    """Return the name of a baseline and the options that make it; of others where they were made."""
    for name, entry in BASELINES.items():
        if type(found) is entry.make and not entry.fixed and entry.rule == "fedavg":
            options = {key: getattr(found, key) for key in entry.own_options}
            changed = {key: value for key, value in options.items() if value != entry.own_options[key]}
            if make_baseline(name, **changed) == found:
                return name, changed
    return path_of(found), {}


def pretraining_of(settings: Settings, components: Components) -> tuple[Settings, Components] | None:
    """Return settings and components of the run that comes before this one; None where there is none."""
    rounds = pretraining_rounds(settings, components)
    if not rounds:
        return None
    plain = settings.algorithm.model_copy(update={"name": "fedavg", "options": {}, "kind": None})
    training = settings.training.model_copy(update={"rounds": rounds})
    quiet = dict.fromkeys(LOGGERS, False)
    before = settings.model_copy(update={"algorithm": plain, "training": training, "baseline": [], **quiet})
    return before, replace(components, algorithm=Baseline())


def pretraining_rounds(settings: Settings, components: Components | None = None) -> int:
    """Return how many rounds of FedAvg come before the first one."""
    if not settings.algorithm.is_baseline:
        return 0
    algorithm = algorithm_of(settings) if components is None else components.algorithm
    if getattr(algorithm, "pretrain_model", None) is not None:
        return 0
    return int(getattr(algorithm, "pretrain_rounds", 0))


def pretraining_facts(
    settings: Settings, before: dict[str, Any] | None, components: Components | None = None
) -> dict[str, Any] | None:
    """Return what a summary says of the model a run began with; ``before`` is the summary of the run that made it."""
    rounds = pretraining_rounds(settings, components)
    if not rounds:
        model = getattr(None if components is None else components.algorithm, "pretrain_model", None)
        return None if model is None else {"model": model}
    return {"rounds": rounds} | ({"accuracy": before["accuracy"]["final"]} if before else {})


def describe_components(components: Components) -> dict[str, Any]:
    """Return the description of a run's components, as JSON has it."""
    task = {key: value for key, value in as_data(components.task).items() if key not in _LEFT_OUT}
    if isinstance(task["bins"], list):  # their names are the federation's affair
        task["bins"] = len(task["bins"])
    for key in ("loss", "balance"):
        if is_import_path(task[key]):  # as settings name a function
            task[key] = task[key].partition(":")[2]
    solver = None if components.solver is None else as_data(components.solver)
    return {"task": task, "algorithm": as_data(components.algorithm), "solver": solver}


def check_same_components(folder: Path, before: Any, components: Components) -> None:
    """Refuse components that are others than those the run was begun with."""
    if not isinstance(before, dict):
        return  # a run that kept no description
    now = describe_components(components)
    named = () if components.solver is not None else ("solver",)  # by the settings, which have been compared
    for part in now.keys() - named:
        if before.get(part, now[part]) != now[part]:
            where, old, new = _difference(part, before.get(part), now[part])
            raise ConfigError(
                f"{folder}: {where} was {_shown(old)} when the run began and is {_shown(new)} now; give the {part} it "
                f"was begun with: fedgs.resume(…, {part}=…)"
            )


def as_data(thing: Any, above: tuple[Any, ...] = ()) -> Any:
    """Return an object as plain data: values as they are, arrays by a digest, functions and classes by name.

    ``above``: functions it was found in, for one may hold itself.
    """
    if thing is None or isinstance(thing, bool | int | float | str):
        return thing
    if isinstance(thing, Mapping):
        return {str(key): as_data(value, above) for key, value in thing.items()}
    if isinstance(thing, list | tuple | set | frozenset):
        ordered = thing if isinstance(thing, list | tuple) else sorted(thing, key=repr)
        return [as_data(value, above) for value in ordered]
    if isinstance(thing, Tensor):
        return f"Tensor {digest_of(thing.detach().cpu().numpy())}"
    if isinstance(thing, np.ndarray):
        return f"array {digest_of(thing)}"
    kind = type(thing)
    if is_dataclass(thing) and not isinstance(thing, type):
        values = {one.name: as_data(getattr(thing, one.name), above) for one in fields(thing)}
        own = (
            vars(kind) if "<" in kind.__qualname__ else {}
        )  # a class made within a function: its methods may hold values
        methods = {name: as_data(one, above) for name, one in own.items() if isinstance(one, types.FunctionType)}
        return {"is": kind.__qualname__, **values, **methods}
    if isinstance(thing, functools.partial):
        return {"is": "partial", "of": as_data(thing.func, above), "with": as_data([thing.args, thing.keywords], above)}
    if isinstance(thing, types.FunctionType) and "<" in thing.__qualname__ and thing not in above:
        # A lambda, or made within a function. Instructions differ between versions of Python; names and constants do
        # not.
        code = thing.__code__
        constants = [as_data(value) for value in code.co_consts if not isinstance(value, types.CodeType)]
        held = inspect.getclosurevars(thing).nonlocals
        return {
            "is": thing.__name__, "names": list(code.co_names), "constants": constants,
            **as_data(dict(sorted(held.items())), (*above, thing)),
        }  # fmt: skip
    return str(getattr(thing, "__qualname__", kind.__qualname__))


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
    text = "not set" if value is None else str(value)
    return text if len(text) <= 80 else f"{text[:77]}..."
