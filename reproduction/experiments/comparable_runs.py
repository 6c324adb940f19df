"""Runs that can be compared in one figure or table: those with the settings that most runs of an experiment have.

A folder may hold runs of another seed or another number of rounds under the names of the same experiment. Cells of a
map are compared with each other, so a map shows one kind, and its section says how many runs were left out.
"""

from collections import Counter
from typing import Any

from reproduction.experiments.jobs import Result, Results

MADE_WITH = ("learning_rate", "momentum", "clip", "precision", "schedule")


def comparable(results: Results, prefix: str, one_seed: bool = False) -> tuple[Results, int]:
    """Return the runs of an experiment that are of its most common kind, and how many others there are.

    ``one_seed``: a map or a table in which a run stands for all; else runs differ by their seeds too.
    """
    own = {name: result for name, result in results.items() if name.startswith(prefix)}
    kinds = {name: (made_with(result, "rounds"), result["settings"]["seed"] if one_seed else None)
             for name, result in own.items()}  # fmt: skip
    if not kinds:
        return {}, 0
    usual = Counter(kinds.values()).most_common(1)[0][0]
    found = {name: result for name, result in own.items() if kinds[name] == usual}
    return found, len(own) - len(found)


def made_with(result: Result, *further: str) -> tuple[str, ...]:
    """Return what must be the same in runs that are compared, and ``further`` settings of the training."""
    training = result["settings"]["training"]
    return (network_of(result["settings"]), *(repr(training.get(key)) for key in (*MADE_WITH, *further)))


def network_of(settings: dict[str, Any]) -> str:
    """Return the network of a run; results of older versions have it among the settings of training."""
    task = settings.get("task")
    return str(task["model"] if isinstance(task, dict) else task or settings["training"].get("model"))
