"""Pre-training: FedAvg on the plain network before the first round of an approach that asks for it (CGAU).

It is a run like any other, in the folder ``pretraining`` of the run it belongs to: it has a display, checkpoints and
metrics of its own, can be interrupted and resumed, and ``fedgs compare`` takes it. Its participants and mini-batches
come from random streams of their own, so that the rounds that follow are paired with those of other approaches.
"""

from pathlib import Path
from typing import Any

from torch import Tensor

from fedgs.algorithms import make_approach
from fedgs.errors import CheckpointError, ConfigError, DataError
from fedgs.settings import Settings
from fedgs.simulation.checkpoint import load_model
from fedgs.training.layout import Layout

FOLDER = "pretraining"
PURPOSE = "pretrain"
"""Begins the names of its random streams."""


def pretraining_of(settings: Settings) -> Settings | None:
    """Return the settings of the run that comes before this one; None where there is none."""
    algorithm = settings.algorithm
    if not algorithm.flat:
        return None
    approach = make_approach(algorithm.name, **algorithm.options)
    if approach.pretrain_model is not None or not approach.pretrain_rounds:
        return None
    plain = algorithm.model_copy(update={"name": "fedavg", "options": {}})
    training = settings.training.model_copy(update={"rounds": approach.pretrain_rounds})
    return settings.model_copy(update={"algorithm": plain, "training": training, "beside": [], "tensorboard": False})


def pretrained_model(path: str, layout: Layout) -> Tensor:
    """Read the plain network an approach starts from: a model.safetensors, or the folder of the run that made it."""
    file = Path(path) / "model.safetensors" if Path(path).is_dir() else Path(path)
    setting = f"algorithm.options.pretrain_model={path!r}"
    if not file.is_file():
        raise ConfigError(f"{setting}: there is no file {file}; give the model.safetensors of a finished run")
    try:
        return load_model(file, layout)
    except (CheckpointError, DataError) as error:
        raise ConfigError(
            f"{setting}: {error}; give the model of a run with the same training.model and classes"
        ) from None


def facts(settings: Settings, before: dict[str, Any] | None) -> dict[str, Any] | None:
    """Return what a summary says of the model a run began with; ``before`` is the summary of the run that made it."""
    if not settings.algorithm.flat:
        return None
    approach = make_approach(settings.algorithm.name, **settings.algorithm.options)
    if approach.pretrain_model is not None:
        return {"model": approach.pretrain_model}
    if not approach.pretrain_rounds:
        return None
    return {"rounds": approach.pretrain_rounds} | ({"accuracy": before["accuracy"]["final"]} if before else {})
