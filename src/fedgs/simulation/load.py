"""Reading a run back from its folder: ``load_history``, and the network it trained."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from fedgs.errors import ConfigError, InputFileError
from fedgs.simulation import folder as folders
from fedgs.simulation.history import History
from fedgs.tasks.bind import build_module
from fedgs.tasks.from_settings import stand_in, task_from
from fedgs.tasks.prepare import NormalisedInputs
from fedgs.tasks.task import Task

if TYPE_CHECKING:
    from torch import nn


def load_history(folder: str | Path, task: Task | None = None) -> History:
    """Read the history of a run from its folder, finished or not.

    Args:
        folder: that ``fedgs run`` or ``History.save`` wrote.
        task: the run's task, where ``History.model`` cannot import it: a network of a notebook, say.

    Examples:
        >>> import fedgs
        >>> history = fedgs.load_history("runs/mine")        # doctest: +SKIP
    """
    path = Path(folder)
    settings = folders.read_settings(path)
    metrics = folders.read_metrics(path)
    facts = folders.read_task(path)
    return History(
        settings,
        tuple(metrics),
        tuple(folders.read_clock(path) or ()),
        tuple(folders.read_timings(path)),
        folders.read_summary(path) or {},
        facts["score"],
        facts["mode"],
        path.resolve().name,
        path,
        task=task,
    )


def model_of_folder(history: History) -> "nn.Module":
    """Return the trained network of a run that lies in a folder."""
    assert history.folder is not None
    facts = folders.read_task(history.folder)
    if "inputs" not in facts:
        raise InputFileError(f"{history.folder}: was made by an older version; its weights are in History.weights")
    try:
        task = history.task or task_from(history.settings.task)
        module = build_module(task, stand_in(facts["inputs"], facts["classes"]), history.settings.seed)
    except ConfigError as error:
        raise ConfigError(
            f"{history.folder}: its network cannot be made again ({error}); give it: load_history(…, task=task)"
        ) from None
    weights = history.weights
    if any(name.startswith("network.") for name in weights):
        statistics: list[Any] = []
        for number in range(sum(name.startswith("mean_") for name in weights)):
            statistics.append((weights[f"mean_{number}"], weights[f"deviation_{number}"]))
        module = NormalisedInputs(module, statistics)
    known = {**dict(module.named_parameters()), **dict(module.named_buffers())}
    with torch.no_grad():
        for name, value in weights.items():
            if name not in known or known[name].shape != value.shape:
                raise ConfigError(f"{history.folder}: weight {name!r} does not fit the network of the task")
            known[name].copy_(value)
    return module.eval()
