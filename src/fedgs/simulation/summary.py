"""The results of a run: accuracies, rounds to the target, and how evenly the devices were used.

Fairness of use: the rate of a device is its share of all iterations in which it was selected; its epochs are the
samples it gave divided by those it has; Jain's index of the epochs, (Σx)² / (K Σx²), is 1 when all devices' data are
used alike and 1/K when one device is used alone; the longest wait counts iterations without a turn. Baselines
have rounds where FedGS has iterations.

There are two divergences: the mean over iterations, and the mean over rounds of all samples of a round pooled. Missing
classes are those of P_real that a super node had no sample of in an iteration, on average.
"""

import csv
import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedgs import __version__
from fedgs.algorithms.client_server import participants
from fedgs.algorithms.run_state import RunState
from fedgs.data import Federation
from fedgs.data.statistics import team_divergence
from fedgs.files import write_text
from fedgs.settings import Settings
from fedgs.simulation.components import Components, pretraining_facts
from fedgs.simulation.evaluate import Evaluation
from fedgs.simulation.run_clock import clock_summary, traffic
from fedgs.tasks.bind import BoundTask

Lines = Sequence[Mapping[str, Any]]
ONE_CLASS_TESTS = 5
"""Tests in a row with one class only after which the user is told."""
LOW_RATE = 0.003
"""A learning rate of momentum or Adam that is not to blame."""


def summarise(
    settings: Settings,
    task: BoundTask,
    state: RunState,
    timings: Sequence[dict[str, Any]] = (),
    before: dict[str, Any] | None = None,
    components: Components | None = None,
) -> dict[str, Any]:
    """Return the summary of a run; everything but ``machine`` and measured times of ``clock`` follows from the seed.

    ``before`` is the summary of the pre-training.
    """
    federation, name = task.federation, task.score
    tested = [line for line in state.metrics if line.get(name) is not None]
    scores = score_facts(state.metrics, name, task.mode, settings.eval.target)
    reached = scores["target_round"]
    reaching: dict[str, Any] = {name: settings.eval.target, "round": reached}
    pretraining = pretraining_facts(settings, before, components)
    if pretraining is not None and "rounds" in pretraining:  # both counts, for papers differ in which they give
        reaching["round_with_pretraining"] = None if reached is None else reached + pretraining["rounds"]
    events: dict[str, int] = {}
    for line in state.metrics:
        for event, count in line.get("events", {}).items():
            events[event] = events.get(event, 0) + count
    use = usage(federation, state)
    shown = dict.fromkeys([*task.metrics, *(["balanced_accuracy"] if task.classifies else [])])
    last = {key: tested[-1].get(key) for key in shown if key != name} if tested else {}
    return {
        "fedgs": __version__,
        "data": federation.name,
        "fingerprint": federation.fingerprint(),
        **_algorithm(settings, federation, state),
        "score": {"name": name, "mode": task.mode},
        **({} if name == "loss" or not tested else {name: {
            **{key: scores[key] for key in ("final", "best", "best_round", "last_10")},
            "percentiles": tested[-1]["percentiles"],
        }}),
        **{key: {"final": value} for key, value in last.items()},
        "loss": {"final": tested[-1]["loss"], "least": min(line["loss"] for line in tested)} if tested else {},
        "target": reaching,
        **({"one_class_since": one_class_since(state.metrics)} if task.classifies else {}),
        **{key: mean_of(state.metrics, key) for key in ("divergence", "divergence_of_round", "missing_classes")},
        "selection": {
            "rate_min": float(use["rate"].min()),
            "rate_max": float(use["rate"].max()),
            "coverage": settings.selection.coverage.weight,
            "jain_of_epochs": jain(use["epochs"]),
            "jain_of_turns": jain(use["rate"]),
            "epochs_min": float(use["epochs"].min()),
            "epochs_max": float(use["epochs"].max()),
            "longest_wait": int(use["longest_wait"].max()),
            "never_selected": int((use["selected"] == 0).sum()),
            **_team_divergence(settings, federation),
        },
        "events": events,
        **({} if pretraining is None else {"pretraining": pretraining}),
        "clock": clock_summary(settings, state.clock, reached),
        "traffic": traffic(state.clock, state.round),
        "machine": _machine(timings, before),
    }  # fmt: skip


def score_facts(metrics: Lines, score: str, mode: str, target: float | None) -> dict[str, Any]:
    """Return final and best score, mean of the last ten, and the first tested round at the target.

    The best is the first of equals. At the target: as high, or as low where less is better.
    """
    tested = [line for line in metrics if line.get(score) is not None]
    sign = 1 if mode == "max" else -1
    best = max(tested, key=lambda line: sign * line[score], default={})
    there = (line["round"] for line in tested if target is not None and sign * line[score] >= sign * target)
    return {
        "final": tested[-1][score] if tested else None,
        "best": best.get(score),
        "best_round": best.get("round"),
        "last_10": float(np.mean([line[score] for line in tested[-10:]])) if tested else None,
        "loss": tested[-1]["loss"] if tested else None,
        "target_round": next(there, None),
    }


def one_class_since(metrics: Lines, tests: int = 1) -> int | None:
    """Return the first of the rounds up to now whose model said the same class of all test samples, wrongly of some.

    None where it does not, or where these are not exactly ``tests`` rounds that were tested (1: or more).
    """
    rounds: list[int] = []
    for line in reversed([line for line in metrics if line.get("predicted_classes") is not None]):
        if line["predicted_classes"] > 1 or line["balanced_accuracy"] == 1 or not line["round"]:
            break
        rounds.append(line["round"])
    return rounds[-1] if len(rounds) == tests or (rounds and tests == 1) else None


def one_class_warning(settings: Settings, metrics: Lines) -> str:
    """Return a line about a model that stays at one constant answer: what to try."""
    training, wanted = settings.training, []
    own = settings.algorithm.learning_rate if settings.algorithm.is_baseline else None
    key, rate = ("training", training.learning_rate) if own is None else ("algorithm", own)
    if settings.data.normalise == "none":
        wanted.append("data.normalise=per-channel")
    if training.optimizer == "sgd":
        wanted += ["training.optimizer=adam", f"{key}.learning_rate=0.001"]
    elif rate > LOW_RATE:
        wanted.append(f"{key}.learning_rate={rate / 10:g}")
    else:
        wanted.append(f"training.rounds={4 * training.rounds}")
    return f"predicts one class only since round {one_class_since(metrics)}; try {', '.join(wanted)}"


def mean_of(metrics: Lines, name: str) -> float | None:
    """Return the mean over the rounds that have this number."""
    found = [line[name] for line in metrics if line.get(name) is not None]
    return float(np.mean(found)) if found else None


def _algorithm(settings: Settings, federation: Federation, state: RunState) -> dict[str, Any]:
    algorithm = settings.algorithm
    if not algorithm.is_baseline:
        return {
            "baseline": algorithm.name,
            "solver": settings.selection.solver,
            "rounds": state.round,
            "iterations": state.round * settings.training.iterations,
        }
    return {
        "baseline": algorithm.name,
        "options": algorithm.options,
        "rounds": state.round,
        "devices_per_round": participants(settings, len(federation)),
        "local_epochs": algorithm.local_epochs,
    }


def _team_divergence(settings: Settings, federation: Federation) -> dict[str, float]:
    """Return what selection can gain: how far teams at random, whole factories and independent samples are."""
    if settings.algorithm.is_baseline or len(federation.classes) < 2:
        return {}
    found = team_divergence(federation, settings.selection.pick, settings.training.batch_size)
    return {f"{name}_divergence": value for name, value in found._asdict().items()}


def _machine(timings: Sequence[dict[str, Any]], before: dict[str, Any] | None) -> dict[str, Any]:
    at_ten = next((line["megabytes"] for line in timings if line["round"] == 10), None)
    return {
        "seconds": round(sum(line["seconds"] for line in timings), 2),
        **({"seconds_of_pretraining": before["machine"]["seconds"]} if before else {}),
        "waiting_for_selection": round(sum(line["waiting"] for line in timings), 2),
        "megabytes_at_round_10": at_ten,
        "megabytes_at_the_end": timings[-1]["megabytes"] if timings else None,
    }


def jain(values: NDArray[np.float64]) -> float:
    """Return Jain's index of fairness; 1 when nobody had anything."""
    squares = float(np.square(values).sum())
    return float(values.sum() ** 2 / (len(values) * squares)) if squares else 1.0


def usage(federation: Federation, state: RunState) -> dict[str, NDArray[Any]]:
    """Return how each device was used: selected, rate, epochs, longest_wait."""
    plan = state.plan
    iterations = int(plan["streams"]["iteration"])
    selected = np.asarray(plan["selected"], dtype=np.int64)
    used = np.asarray(plan["streams"]["samples_used"], dtype=np.int64)
    since = iterations - np.asarray(plan["last"], dtype=np.int64)
    return {
        "selected": selected,
        "rate": selected / max(iterations, 1),
        "epochs": used / federation.train.sizes,
        "longest_wait": np.maximum(np.asarray(plan["longest_wait"], dtype=np.int64), since),
    }


def write_devices(path: Path, federation: Federation, state: RunState, tested: Evaluation, score: str) -> None:
    """Write a CSV table with a row a device."""
    use = usage(federation, state)
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["device", "factory", "train_samples", "selected", "rate", "epochs", "longest_wait", score])
    for device, name in enumerate(federation.device_names):
        writer.writerow(
            [
                name,
                federation.factory_names[federation.factory_of[device]],
                federation.train.sizes[device],
                use["selected"][device],
                f"{use['rate'][device]:.6f}",
                f"{use['epochs'][device]:.4f}",
                use["longest_wait"][device],
                f"{tested.devices[device]:.6f}" if np.isfinite(tested.devices[device]) else "",
            ]
        )
    write_text(path, text.getvalue())
