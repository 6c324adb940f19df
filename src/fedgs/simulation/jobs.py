"""A run in a folder and, where the settings ask for it, a baseline beside it: ``fedgs run`` and ``resume``."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from fedgs.config import apply_overrides
from fedgs.data import Federation
from fedgs.errors import ConfigError, FedgsError, OutputError, WorkerError
from fedgs.settings import Settings
from fedgs.simulation import folder as folders
from fedgs.simulation.checkpoint import list_checkpoints
from fedgs.simulation.history import History
from fedgs.simulation.process_group import ProcessGroup, join_process_group
from fedgs.simulation.run import execute
from fedgs.simulation.simulator import Simulator
from fedgs.simulation.source import load_federation


@dataclass(frozen=True)
class Job:
    """One run to be carried out."""

    folder: Path
    settings: Settings


class NotSpeaking(Exception):  # noqa: N818  (a process that says nothing: the first one does)
    """Something is wrong, and another process says what."""


def jobs_of(folder: Path, settings: Settings) -> list[Job]:
    """Return the run and, where the settings ask for it, the one beside it."""
    jobs = [Job(folder, settings)]
    if settings.baseline:
        jobs.append(Job(_baseline_folder(folder, settings.baseline), _baseline(settings)))
    return jobs


def carry_out(
    jobs: Sequence[Job],
    device: torch.device,
    new: bool,
    callbacks: Callable[[Job], Sequence[Any]],
    done: Callable[[Job, History | None], None],
) -> None:
    """Carry out runs one after the other, or go on with them.

    ``callbacks`` gives those of a run; ``done`` is told of each one that has ended, with None where there was nothing
    left to do. Whatever would stop the second run is found before the first begins.
    """
    with join_process_group(device) as group, _rank0_only(group), ExitStack() as made:
        # Every rank asks before the first of them has had time to finish anything.
        pending = [new or not folders.is_finished(job.folder) for job in jobs]
        failure: FedgsError | None = None
        if group.first:
            try:
                for job in jobs:
                    if new or not job.folder.exists():
                        folders.create_run(job.folder, job.settings)
                        made.callback(folders.discard_if_unused, job.folder)
                    elif folders.read_settings(job.folder) != job.settings:
                        raise OutputError(
                            f"{job.folder}: holds a run with other settings than the baseline's; move it away"
                        )
            except FedgsError as error:
                failure = error
        if group.any(failure is not None):  # nobody waits for a rank that has given up
            raise failure or NotSpeaking
        federations = _load_and_check(jobs, pending, device, group)
        for job, federation in zip(jobs, federations, strict=True):
            history = None
            if federation is not None:
                own = callbacks(job) if group.first else ()
                history = execute(job.settings, federation, device, group, folder=job.folder, callbacks=own)
            if group.first:
                done(job, history)


def _load_and_check(
    jobs: Sequence[Job], pending: Sequence[bool], device: torch.device, group: ProcessGroup
) -> list[Federation | None]:
    """Return the federation of each job that is to be done, before any begins: a second may not fail hours later."""
    federations: list[Federation | None] = []
    loaded: tuple[Settings, Federation] | None = None
    for number, (job, wanted) in enumerate(zip(jobs, pending, strict=True)):
        if not wanted:
            federations.append(None)
            continue
        try:
            if loaded is None or _data(loaded[0]) != _data(job.settings):
                loaded = job.settings, load_federation(job.settings)
            if number > 0:  # the first is checked when it begins
                with Simulator(job.settings, loaded[1], device, group) as simulator:
                    simulator.check(begun=bool(list_checkpoints(job.folder / folders.CHECKPOINTS)))
        except FedgsError as error:
            if number == 0:
                raise
            raise type(error)(_of_baseline(str(error))) from None
        federations.append(loaded[1])
    return federations


def _data(settings: Settings) -> tuple[Any, ...]:
    return settings.data, settings.federation, settings.seed


def _baseline(settings: Settings) -> Settings:
    """Return the settings of the second run."""
    base = settings.model_copy(update={"baseline": []})
    names = [value for key, value in map(key_and_value, settings.baseline) if key == "algorithm.name"]
    if names and names[-1] != "fedgs":
        base = base.without_fedgs()
    try:
        second = apply_overrides(base, settings.baseline)
    except ConfigError as error:
        raise ConfigError(_of_baseline(str(error).replace("--set ", "baseline "))) from None
    if second.baseline:
        raise ConfigError("baseline: it sets baseline itself; remove that")
    return second


def _of_baseline(message: str) -> str:
    return message if message.startswith("baseline") else f"baseline: {message}"


def _baseline_folder(folder: Path, overrides: Sequence[str]) -> Path:
    """Return the folder of the second run: it says which algorithm it is, or else all that differs."""
    changes = [key_and_value(text) for text in overrides]
    values = [value for key, value in changes if key == "algorithm.name"] or [value for _, value in changes]
    if folder.name in ("", ".."):  # "." has no name to put anything behind
        folder = folder.resolve()
    return folder.with_name("-".join([folder.name, *(value.replace("/", "_") for value in values)]))


def key_and_value(override: str) -> tuple[str, str]:
    """Return key and value of ``key.path=value``, the value without its quotes."""
    key, _, value = override.partition("=")
    return key.strip(), value.strip().strip("'\"")


@contextmanager
def _rank0_only(group: ProcessGroup) -> Iterator[None]:
    """Let only one process say what is wrong with the settings or the data: all find the same."""
    try:
        yield
    except WorkerError:
        raise  # the one that speaks may be the one that was lost
    except FedgsError:
        if group.first:
            raise
        raise NotSpeaking from None
