"""``fedgs.sweep``: a run for every combination of some values, with several seeds each."""

import copy
import inspect
import itertools
import multiprocessing
import os
import re
import signal
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from fedgs.config import assign, load_settings, plain
from fedgs.data import Federation
from fedgs.errors import ConfigError, TrainingError
from fedgs.settings import Settings
from fedgs.simulation.compare import mean_row, row_of
from fedgs.simulation.history import data_frame
from fedgs.simulation.run import (
    KEYWORDS,
    OF_ALGORITHM,
    check_arguments,
    check_effect,
    overrides_of,
    plain_values,
    run,
    settings_for,
)
from fedgs.tasks.task import Task

if TYPE_CHECKING:
    import pandas


@dataclass(frozen=True)
class _Point:
    """One run of a sweep."""

    values: dict[str, Any]
    """By key, its seed among them."""
    labels: dict[str, Any]
    """The same as a row shows them: objects by names that differ."""
    folder: str
    """The name of its folder: learning_rate=0.1-seed=0."""


_jobs: tuple[Any, ...] = ()
"""What the processes of a sweep work on: inherited when they are forked, for a network of a notebook cannot be sent."""


def sweep(
    task: Task | None,
    federation: Federation | None,
    grid: Mapping[str, Sequence[Any]],
    *,
    seeds: int | Sequence[int] = 1,
    workers: int = 1,
    out: str | Path | None = None,
    **options: Any,
) -> "pandas.DataFrame":
    """Run every combination of a grid with every seed; return a DataFrame with one row per run.

    Args:
        task: as for :func:`fedgs.run`.
        federation: as for :func:`fedgs.run`.
        grid: values by keyword of :func:`fedgs.run` (``learning_rate``) or by key of the settings
            (``training.weight_decay``).
        seeds: the number of seeds (0, 1, …), or a list of seeds.
        workers: number of parallel runs, each in its own process.
        out: a folder for the folders of all runs; None: they stay in memory. A second call with the same folder resumes
            interrupted runs and does not repeat finished ones.
        options: other keywords of :func:`fedgs.run`, the same for all runs.

    A run that diverges has a row with its ``error`` and no score.

    Examples:
        >>> import fedgs, numpy as np, torch
        >>> x, y = np.random.rand(200, 4), np.arange(200) % 3
        >>> federation = fedgs.Federation.from_arrays(x, y, devices=np.arange(200) % 10, factories=2)
        >>> task = fedgs.classification(lambda: torch.nn.Linear(4, 3))
        >>> found = fedgs.sweep(task, federation, {"learning_rate": [0.03, 0.1]}, seeds=2, rounds=1, pick=2)
        >>> found.groupby("learning_rate")["final"].count().to_dict()
        {0.03: 2, 0.1: 2}
    """
    rows = sweep_rows(task, federation, grid, seeds=seeds, workers=workers, out=out, **options)
    return data_frame(rows, "fedgs.sweep()", "sweep_rows")


def sweep_rows(
    task: Task | None,
    federation: Federation | None,
    grid: Mapping[str, Sequence[Any]],
    *,
    seeds: int | Sequence[int] = 1,
    workers: int = 1,
    out: str | Path | None = None,
    **options: Any,
) -> Iterator[dict[str, Any]]:
    """Yield the rows of a sweep, run by run."""
    check_arguments(task, federation)
    points = _points(plain(grid), plain(seeds), plain(workers), options)
    for point in points:  # so that none is refused hours later
        settings, given = _settings(point.values, options, task), {**options, **point.values}
        check_effect(settings, task, given.get("algorithm"))
        settings_for(federation, settings, overrides_of(given))
    global _jobs  # see above
    _jobs = (task, federation, options, None if out is None else Path(out))
    try:
        if workers <= 1:
            for point in points:
                yield _one(point)
        else:
            yield from _in_processes(points, workers)
    finally:
        _jobs = ()


def sweep_means(rows: Sequence[Mapping[str, Any]], grid: Iterable[str]) -> list[dict[str, Any]]:
    """Return a row for each combination of the grid: means over its seeds, and how many ``failed``; the best first."""
    keys, found = list(grid), []
    for chosen in dict.fromkeys(tuple(row[key] for key in keys) for row in rows):
        own = [row for row in rows if tuple(row[key] for key in keys) == chosen]
        good = [{key: row[key] for key in row if key not in (*keys, "error")} for row in own if row["error"] is None]
        values = {**dict(zip(keys, chosen, strict=True)), "failed": len(own) - len(good)}
        found.append((mean_row("", good) if good else {"final": None, "seeds": 0}) | values)
    sign = -1 if any(row.get("mode") == "max" for row in rows) else 1
    return sorted(found, key=lambda row: (row["failed"], sign * row["final"] if row["final"] is not None else 0.0))


def _points(grid: Any, seeds: Any, workers: Any, options: Mapping[str, Any]) -> list[_Point]:
    """Return the runs."""
    if not isinstance(grid, Mapping):
        raise ConfigError(f"sweep: the grid is a {type(grid).__name__}; give a dict from keyword to a list of values")
    for key in options:
        if key not in list(inspect.signature(run).parameters)[2:]:
            raise ConfigError(f"sweep: fedgs.run has no keyword {key!r}")
    if "seed" in options or "seed" in grid:
        raise ConfigError("sweep: seed has another keyword here; give seeds=3, or seeds=[0, 1, 2]")
    for key, values in grid.items():
        if key not in KEYWORDS and "." not in str(key):
            known = ", ".join(one for one in KEYWORDS if one != "seed")
            raise ConfigError(f"sweep: fedgs.run has no keyword {key!r} for a grid; there are {known}, or section.key")
        if isinstance(values, str) or not isinstance(values, Sequence) or not values:
            raise ConfigError(f"sweep: {key}={values!r}; give a list of values")
    if not isinstance(seeds, int | Iterable) or not isinstance(workers, int):
        raise ConfigError(f"sweep: seeds={seeds!r}, workers={workers!r}; give whole numbers, or a list of seeds")
    numbers = list(range(seeds)) if isinstance(seeds, int) else list(seeds)
    if not numbers:
        raise ConfigError("sweep: give at least one seed")
    keys = [*grid, "seed"]
    values = list(itertools.product(*grid.values(), numbers))
    labels = list(itertools.product(*map(_labels, grid.values()), numbers))
    apart = list(dict.fromkeys(labels))
    folders = dict(zip(apart, _distinct([_folder_name(keys, one) for one in apart]), strict=True))
    return [
        _Point(dict(zip(keys, chosen, strict=True)), dict(zip(keys, shown, strict=True)), folders[shown])
        for chosen, shown in zip(values, labels, strict=True)
    ]


def _in_processes(points: Sequence[_Point], workers: int) -> Iterator[dict[str, Any]]:
    """Yield the rows of runs in forked processes; those that are interrupted keep their last round."""
    if "fork" not in multiprocessing.get_all_start_methods():
        raise ConfigError("sweep: several workers need a system that can fork processes; use workers=1")
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        raise ConfigError("sweep: this process uses a GPU already, which other processes cannot share; use workers=1")
    threads = max(1, (os.cpu_count() or 1) // workers)
    others = set(multiprocessing.active_children())
    pool = ProcessPoolExecutor(workers, multiprocessing.get_context("fork"), _begin_worker, (threads,))
    try:
        yield from pool.map(_one_of_worker, points)
    except BaseException:  # an error, Ctrl-C, or nobody wants more rows
        pool.shutdown(wait=False, cancel_futures=True)
        for child in set(multiprocessing.active_children()) - others:
            if child.pid is not None:
                os.kill(child.pid, signal.SIGINT)
        raise
    finally:
        pool.shutdown()


def _begin_worker(threads: int) -> None:
    torch.set_num_threads(threads)
    signal.signal(signal.SIGINT, lambda *_: os._exit(130))  # it waits for work


def _one_of_worker(point: _Point) -> dict[str, Any]:
    waiting = signal.signal(signal.SIGINT, _interrupt_once)
    try:
        return _one(point)
    except KeyboardInterrupt:
        os._exit(130)  # or the pool would give this process another run
    finally:
        signal.signal(signal.SIGINT, waiting)


def _interrupt_once(*_: Any) -> None:
    """Raise Ctrl-C, and let nothing disturb the checkpoint that is written then."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    raise KeyboardInterrupt


def _one(point: _Point) -> dict[str, Any]:
    task, federation, options, out = _jobs
    keywords = {key: value for key, value in point.values.items() if "." not in key}
    place = {} if out is None else {"out": out / point.folder, "resume": True}
    row = {**point.labels, "error": None}
    settings = _settings(point.values, options, task)
    try:
        history = run(task, federation, **{**options, **keywords, **place, "settings": settings})
    except TrainingError as error:
        return row | {"final": None, "error": str(error)}
    found = row_of("", history)
    drop = ("run", "solver", "pretraining_rounds")
    return row | {key: value for key, value in found.items() if key not in drop and key not in row}


def _settings(point: Mapping[str, Any], options: Mapping[str, Any], task: Task | None) -> Any:
    """Return the settings of a run: those of the sweep, with the keys of the point; a given task replaces a file's."""
    nested = {key: value for key, value in point.items() if "." in key}
    settings = options.get("settings")
    if not nested:
        return settings
    if isinstance(settings, str | Path):
        settings = load_settings(settings)
    values = plain_values(settings) if isinstance(settings, Settings) else copy.deepcopy(dict(settings or {}))
    if isinstance(settings, Settings):  # objects take the place of what it names
        if task is not None:
            del values["task"]
        if not isinstance({**options, **point}.get("algorithm", ""), str):
            values["algorithm"] = {key: value for key, value in values["algorithm"].items() if key not in OF_ALGORITHM}
    for key, value in nested.items():
        assign(values, key, value, f"sweep: {key}")
    return values


def _folder_name(keys: Sequence[str], labels: Sequence[Any]) -> str:
    parts = (f"{key.rpartition('.')[2]}={label}" for key, label in zip(keys, labels, strict=True))
    return re.sub(r"[^\w.=+-]+", "_", "-".join(parts))


def _labels(values: Sequence[Any]) -> list[Any]:
    """Return plain values as they are, and objects by names that differ."""
    simple = [isinstance(value, str | int | float | bool | None) for value in values]
    named = iter(_distinct([_named(value) for value, plain in zip(values, simple, strict=True) if not plain]))
    return [value if plain else next(named) for value, plain in zip(values, simple, strict=True)]


def _named(value: Any) -> str:
    return str(getattr(value, "__name__", repr(value)))


def _distinct(names: Sequence[str]) -> list[str]:
    """Return the names; where one is there several times, the second is name-2."""
    return [name if not (before := names[:place].count(name)) else f"{name}-{before + 1}"
            for place, name in enumerate(names)]  # fmt: skip
