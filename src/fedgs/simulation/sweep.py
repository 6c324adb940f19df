"""``fedgs.sweep``: a run for every combination of some values, with several seeds each."""

import copy
import inspect
import itertools
import multiprocessing
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from typing import TYPE_CHECKING, Any

import torch

from fedgs.config import assign
from fedgs.data import Federation
from fedgs.errors import ConfigError, TrainingError
from fedgs.simulation.compare import row_of
from fedgs.simulation.history import data_frame
from fedgs.simulation.run import run
from fedgs.tasks.task import Task

if TYPE_CHECKING:
    import pandas

_jobs: tuple[Any, ...] = ()
"""What the processes of a sweep work on: inherited when they are forked, for a network of a notebook cannot be sent."""


def sweep(
    task: Task | None,
    federation: Federation | None,
    grid: Mapping[str, Sequence[Any]],
    *,
    seeds: int | Sequence[int] = 1,
    workers: int = 1,
    **options: Any,
) -> "pandas.DataFrame":
    """Run every combination of a grid with every seed; return a frame with a row a run.

    Args:
        task: as for :func:`fedgs.run`.
        federation: as for :func:`fedgs.run`.
        grid: values by keyword of :func:`fedgs.run` (``learning_rate``) or by key of the settings
            (``training.weight_decay``).
        seeds: how many, from 0 on, or which.
        workers: runs at a time, each in a process of its own.
        options: other keywords of :func:`fedgs.run`, the same for all runs.

    A run that diverges has a row with its ``error`` and no score.

    Examples:
        >>> import fedgs
        >>> fedgs.sweep(task, federation, {"learning_rate": [0.03, 0.1]}, seeds=3)       # doctest: +SKIP
    """
    rows = sweep_rows(task, federation, grid, seeds=seeds, workers=workers, **options)
    return data_frame(rows, "fedgs.sweep()", "sweep_rows")


def sweep_rows(
    task: Task | None,
    federation: Federation | None,
    grid: Mapping[str, Sequence[Any]],
    *,
    seeds: int | Sequence[int] = 1,
    workers: int = 1,
    **options: Any,
) -> Iterator[dict[str, Any]]:
    """Yield the rows of a sweep, run by run."""
    if not isinstance(grid, Mapping):
        raise ConfigError(f"sweep: the grid is a {type(grid).__name__}; give a dict from keyword to a list of values")
    keywords = list(inspect.signature(run).parameters)[2:]
    for key in (*grid, *options):
        if key not in keywords and (key in options or "." not in str(key)):
            raise ConfigError(
                f"sweep: fedgs.run has no keyword {key!r}; there are {', '.join(keywords)}, or section.key"
            )
    for key, values in grid.items():
        if isinstance(values, str) or not isinstance(values, Sequence) or not values:
            raise ConfigError(f"sweep: {key}={values!r}; give a list of values")
    if not isinstance(seeds, int | Iterable) or not isinstance(workers, int):
        raise ConfigError(f"sweep: seeds={seeds!r}, workers={workers!r}; give whole numbers, or a list of seeds")
    numbers = list(range(seeds)) if isinstance(seeds, int) else list(seeds)
    points = [
        {**dict(zip(grid, chosen, strict=True)), "seed": seed}
        for chosen in itertools.product(*grid.values())
        for seed in numbers
    ]
    if not points:
        raise ConfigError("sweep: give at least one seed")
    global _jobs  # see above
    _jobs = (task, federation, options)
    try:
        if workers <= 1:
            for point in points:
                yield _one(point)
            return
        if "fork" not in multiprocessing.get_all_start_methods():
            raise ConfigError("sweep: several workers need a system that can fork processes; use workers=1")
        if torch.cuda.is_available() and torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
            raise ConfigError(
                "sweep: this process uses a GPU already, which other processes cannot share; use workers=1"
            )
        threads = max(1, (os.cpu_count() or 1) // workers)
        context = multiprocessing.get_context("fork")
        with ProcessPoolExecutor(workers, context, torch.set_num_threads, (threads,)) as pool:
            yield from pool.map(_one, points)
    finally:
        _jobs = ()


def _one(point: dict[str, Any]) -> dict[str, Any]:
    task, federation, options = _jobs
    keywords = {key: value for key, value in point.items() if "." not in key}
    nested = {key: value for key, value in point.items() if "." in key}
    settings = options.get("settings")
    if nested:
        if settings is not None and not isinstance(settings, Mapping):
            raise ConfigError("sweep: keys of the settings in the grid go with settings= as a dict")
        values = copy.deepcopy(dict(settings or {}))
        for key, value in nested.items():
            assign(values, key, value, f"sweep: {key}")
        settings = values
    row = {**{key: _plain(value) for key, value in point.items()}, "error": None}
    try:
        history = run(task, federation, **{**options, **keywords, "settings": settings})
    except TrainingError as error:
        return row | {"error": str(error)}
    found = row_of("", history)
    drop = ("run", "solver", "of_rounds", "pretraining_rounds")
    return row | {key: value for key, value in found.items() if key not in drop and key not in row}


def _plain(value: Any) -> Any:
    return value if isinstance(value, str | int | float | bool | None) else getattr(value, "__name__", repr(value))
