"""``fedgs run`` and ``fedgs resume``: a run in a folder and, where the settings ask for it, its baseline after it."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from fedgs.config import apply_overrides, parse_override
from fedgs.data import Federation
from fedgs.errors import ConfigError, DataError, FedgsError, InputFileError, OutputError, WorkerError
from fedgs.settings import Settings
from fedgs.simulation import folder as folders
from fedgs.simulation.checkpoint import list_checkpoints
from fedgs.simulation.federations import load_federation
from fedgs.simulation.history import History
from fedgs.simulation.lock import locked
from fedgs.simulation.process_group import ProcessGroup, join_process_group
from fedgs.simulation.run import Run


@dataclass(frozen=True)
class PlannedRun:
    """A run and its folder."""

    folder: Path
    settings: Settings


class FirstRankReports(Exception):  # noqa: N818
    """Something is wrong, and the first rank says what: all ranks find the same."""


def planned_runs(folder: Path, settings: Settings) -> list[PlannedRun]:
    """Return the run and, where the settings ask for it, its baseline.

    The folder of the baseline says which algorithm it is, or else all that differs.
    """
    runs = [PlannedRun(folder, settings)]
    if settings.baseline:
        changes = [parse_override(text, "baseline") for text in settings.baseline]
        names = [value for key, value in changes if key == "algorithm.name"]
        base = settings.model_copy(update={"baseline": []})
        if names and names[-1] != "fedgs":
            base = base.for_baseline()
        second = apply_overrides(base, settings.baseline, "baseline")
        if second.baseline:
            raise ConfigError("baseline: it sets baseline itself; remove that")
        if folder.name in ("", ".."):  # "." has no name to put anything behind
            folder = folder.resolve()
        differs = [str(value).replace("/", "_") for value in names or [value for _, value in changes]]
        runs.append(PlannedRun(folder.with_name("-".join([folder.name, *differs])), second))
    return runs


def free_runs(folder: Path, settings: Settings) -> list[PlannedRun]:
    """Return the run and its baseline in the first folders that are free: NAME, NAME-2, NAME-3, …"""
    runs, number = planned_runs(folder, settings), 1
    while any(run.folder.exists() for run in runs):
        number += 1
        runs = planned_runs(folder.with_name(f"{folder.name}-{number}"), settings)
    return runs


def launch(
    runs: Sequence[PlannedRun],
    device: torch.device,
    new: bool,
    callbacks: Callable[[PlannedRun], Sequence[Any]],
    done: Callable[[PlannedRun, History | None], None],
    overwrite: bool = False,
    federation: Federation | None = None,
) -> None:
    """Execute runs one after the other, or go on with them; ``overwrite``: new runs replace those in their folders.

    ``callbacks`` gives those of a run; ``done`` is called for each one that has ended, with None where there was
    nothing left to do. All runs are prepared before the first begins, so that none is refused hours later.
    ``federation``: that of the first run, where it is loaded already.
    """
    with join_process_group(device) as group, _first_rank_reports(group), ExitStack() as stack:
        # Every rank asks before the first of them has had time to finish anything.
        pending = [new or not folders.is_finished(run.folder) or folders.has_stopped_early(run.folder) for run in runs]
        failure: FedgsError | None = None
        if group.first:
            try:
                for run, wanted in zip(runs, pending, strict=True):
                    if not wanted:
                        folders.check_finished(run.folder)
                    if new or not run.folder.exists():
                        stack.enter_context(folders.new_run(run.folder, run.settings, overwrite))
                        continue
                    if wanted:
                        stack.enter_context(locked(run.folder))
                    if folders.read_settings(run.folder) != run.settings:
                        raise OutputError(
                            f"{run.folder}: holds a run with other settings than the baseline's; move it away"
                        )
            except FedgsError as error:
                failure = error
        if group.any(failure is not None):  # nobody waits for a rank that has given up
            raise failure or FirstRankReports
        prepared: list[Run | None] = []
        for number, (run, wanted) in enumerate(zip(runs, pending, strict=True)):
            if not wanted:
                prepared.append(None)
                continue
            with _of_baseline(number > 0):
                if federation is None or _data(runs[0].settings) != _data(run.settings):
                    federation = load_federation(run.settings) if new else _data_again(run)
                own = callbacks(run) if group.first else ()
                ready = Run(run.settings, federation, device, group, folder=run.folder, callbacks=own)
                prepared.append(stack.enter_context(ready))
                if number > 0:  # the first is checked when it begins
                    begun = bool(list_checkpoints(run.folder / folders.CHECKPOINTS))
                    ready.simulator.rounds_of.check(begun)
        for run, one in zip(runs, prepared, strict=True):
            history = None if one is None else one.execute()
            if group.first:
                done(run, history)


def _data_again(run: PlannedRun) -> Federation:
    """Load the data of a run that goes on; where they have gone or changed meanwhile, that is what is said."""
    place = Path(run.settings.data.name)
    todo = "restore them, or begin a new run in another folder"
    if place.is_absolute() and not place.exists():
        raise InputFileError(f"{run.folder}: its data {place} are not there any more; {todo}")
    try:
        return load_federation(run.settings)
    except (DataError, InputFileError, ConfigError) as error:
        raise type(error)(f"{run.folder}: its data are not as they were ({error}); {todo}") from None


def _data(settings: Settings) -> tuple[Any, ...]:
    return settings.data, settings.federation, settings.seed


@contextmanager
def _of_baseline(baseline: bool) -> Iterator[None]:
    """Let errors say that they are the baseline's."""
    try:
        yield
    except FedgsError as error:
        if not baseline or str(error).startswith("baseline"):
            raise
        raise type(error)(f"baseline: {error}") from None


@contextmanager
def _first_rank_reports(group: ProcessGroup) -> Iterator[None]:
    """Let only the first rank report what is wrong with the settings or the data."""
    try:
        yield
    except WorkerError:
        raise  # the first rank may be the one that was lost
    except FedgsError:
        if group.first:
            raise
        raise FirstRankReports from None
