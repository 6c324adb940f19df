"""What has to be known of a trained model to use it; files of models carry it as JSON under the key ``fedgs``."""

from collections.abc import Sequence
from typing import Any

from pydantic import BaseModel

from fedgs import __version__
from fedgs.settings import Settings, TaskSettings
from fedgs.tasks.build import prepare_of
from fedgs.tasks.prepare import default_prepare, image_prepare
from fedgs.tasks.task import Task

KEY = "fedgs"
PREPARE = {"images": image_prepare, "default": default_prepare}


class ModelFacts(BaseModel):
    """What has to be known of a model to use it."""

    version: str
    """Of the fedgs that wrote it."""
    task: TaskSettings | str
    seed: int
    classes: list[str]
    """The names of the classes, or of the bins that selection balances."""
    classifies: bool
    """Whether the outputs stand for the classes, in their order; else they are values."""
    inputs: Any
    """Shape and type of one stored sample, a list of both; or a list or dict of such."""
    prepare: str | None
    """``images``, ``default``, package.module:name, or None: a function that nobody can import."""
    normalisation: dict[str, list[float]] = {}
    """Mean and deviation of each channel of each input, which the network takes off itself; empty: none."""
    reconstructs: bool = False
    """Whether the outputs are reconstructions of the inputs, as in anomaly detection."""


def model_facts(
    task: Task | None,
    settings: Settings,
    classes: Sequence[str],
    inputs: Any,
    classifies: bool,
    reconstructs: bool,
    normalisation: dict[str, list[float]] | None = None,
) -> ModelFacts:
    """Return the facts of the model of a task; None: nobody has the task itself."""
    function = None if task is None else prepare_of(task)
    named = next((name for name, known in PREPARE.items() if known is function), None)
    if named is None and isinstance(settings.task, TaskSettings):
        named = settings.task.prepare
    return ModelFacts(
        version=__version__, task=settings.task, seed=settings.seed, classes=list(classes), classifies=classifies,
        inputs=inputs, prepare=named, normalisation=normalisation or {}, reconstructs=reconstructs,
    )  # fmt: skip
