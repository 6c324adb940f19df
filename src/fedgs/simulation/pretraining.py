"""Pre-training: FedAvg on the plain network before the first round of a baseline that asks for it (CGAU).

It is a run like any other, in the folder ``pretraining`` of the run it belongs to: it has a display, checkpoints and
metrics of its own, can be interrupted and resumed, and ``fedgs compare`` takes it. Its participants and mini-batches
come from random streams of their own, so that the rounds that follow are paired with those of other baselines.
"""

from dataclasses import replace
from typing import Any

from fedgs.algorithms import Baseline
from fedgs.settings import Settings
from fedgs.simulation.components import Components, algorithm_of, resolve

FOLDER = "pretraining"
PURPOSE = "pretrain"
"""Begins the names of its random streams."""


def pretraining_of(settings: Settings, components: Components | None = None) -> tuple[Settings, Components] | None:
    """Return settings and components of the run that comes before this one; None where there is none."""
    rounds = pretraining_rounds(settings, components)
    if not rounds:
        return None
    plain = settings.algorithm.model_copy(update={"name": "fedavg", "options": {}, "kind": None})
    training = settings.training.model_copy(update={"rounds": rounds})
    before = settings.model_copy(
        update={"algorithm": plain, "training": training, "baseline": [], "tensorboard": False}
    )
    if components is None:
        return resolve(before)
    return before, replace(components, algorithm=Baseline())


def pretraining_rounds(settings: Settings, components: Components | None = None) -> int:
    """Return how many rounds of FedAvg come before the first one."""
    if not settings.algorithm.is_baseline:
        return 0
    algorithm = algorithm_of(settings) if components is None else components.algorithm
    if getattr(algorithm, "pretrain_model", None) is not None:
        return 0
    return int(getattr(algorithm, "pretrain_rounds", 0))


def facts(
    settings: Settings, before: dict[str, Any] | None, components: Components | None = None
) -> dict[str, Any] | None:
    """Return what a summary says of the model a run began with; ``before`` is the summary of the run that made it."""
    rounds = pretraining_rounds(settings, components)
    if not rounds:
        model = getattr(None if components is None else components.algorithm, "pretrain_model", None)
        return None if model is None else {"model": model}
    return {"rounds": rounds} | ({"accuracy": before["accuracy"]["final"]} if before else {})
