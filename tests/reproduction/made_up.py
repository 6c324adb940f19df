"""Results as jobs leave them, with made-up curves: for tables and figures without any training."""

import json
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from fedgs.data import DataSet
from reproduction.experiments.catalogue import stages_of
from reproduction.experiments.jobs import Job, Result, Results, as_text
from reproduction.experiments.reproduction import Reproduction

HARDWARE = {"device": "a GPU", "cores": 4, "torch": "2.9", "python": "3.12"}


def full_size(seeds: Sequence[int] = (0, 1)) -> Reproduction:
    """Return a reproduction at the paper's size that never loads anything."""
    reproduction = Reproduction(Path("nowhere.npz"), seeds)
    nobody = np.zeros(0, np.int32)
    reproduction._dataset = DataSet(
        "femnist", np.zeros((0, 28, 28), np.uint8), nobody.astype(np.uint8), nobody, (), ("0", "1"), {"hsf": nobody}
    )
    return reproduction


def run(job: Job, end: float, jain: float = 0.9, divergence: float = 0.04) -> Result:
    """Return the result of a job whose accuracy rises in a straight line up to ``end``."""
    training, tests = job.settings.training, job.settings.eval
    numbers = [*range(0, training.rounds, tests.every), training.rounds]
    accuracy = [end * number / training.rounds for number in numbers]
    wanted = 2.0 if tests.target is None else tests.target
    target = next((n for n, a in zip(numbers, accuracy, strict=True) if n and a >= wanted), None)
    nothing = [None] * len(numbers)
    return shell(job) | {
        "curve": {
            "round": numbers,
            "accuracy": accuracy,
            "loss": [4 - 3.5 * value for value in accuracy],
            "train_loss": nothing,
            "divergence": nothing,
            "divergence_of_round": nothing,
            "missing_classes": nothing,
        },
        "summary": {
            "accuracy": {"final": end, "best": end, "last_10": end},
            "loss": {"final": 4 - 3.5 * end, "least": 4 - 3.5 * end},
            "target": {"accuracy": tests.target, "round": target},
            "divergence": divergence,
            "divergence_of_round": divergence / 2,
            "missing_classes": 6.0,
            "selection": {"jain_of_epochs": jain, "longest_wait": 47},
        },
    }


def diverged(job: Job) -> Result:
    """Return the result of a run whose loss was no number."""
    curve = {key: values[:1] for key, values in run(job, 0.5)["curve"].items()}
    return shell(job) | {"failed": "round 1: the loss is no finite number", "curve": curve, "summary": None}


def shell(job: Job) -> Result:
    """Return what every result has."""
    return {
        "format": 1,
        "part": job.name,
        "title": job.title,
        "federation": job.federation,
        "data": "d" * 32,
        "devices": 350,
        "factories": 10,
        "train_samples": 71000,
        "test_samples": 8000,
        "settings": json.loads(job.settings.model_dump_json()),
        "fedgs": "0.1.0",
        "hardware": dict(HARDWARE),
        "seconds": 60.0,
    }


def results_of(
    what: str, end: Callable[[Job], float], reproduction: Reproduction | None = None, **facts: Any
) -> Results:
    """Return made-up results of all training jobs of an experiment, stage after stage."""
    reproduction = reproduction or full_size()
    first = _first_jobs(what, tuple(reproduction.seeds or ()), reproduction.rounds)
    results = {job.name: run(job, end(job), **facts) for job in first}
    for stage in stages_of(what)[1:]:
        results |= {job.name: run(job, end(job), **facts) for job in stage(reproduction, results)}
    return results


@cache
def _first_jobs(what: str, seeds: tuple[int, ...], rounds: int | None) -> list[Job]:
    """Return the jobs of the first stage; to check the settings of hundreds of them takes a second."""
    reproduction = full_size(seeds)
    reproduction.rounds = rounds
    return stages_of(what)[0](reproduction, {})


def write(folder: Path, results: Results) -> Path:
    """Write results as jobs do."""
    (folder / "parts").mkdir(parents=True, exist_ok=True)
    for name, result in results.items():
        (folder / "parts" / f"{name}.json").write_text(as_text(result), encoding="utf-8")
    return folder
