"""Runs that can stand beside each other in one picture: those made as most of an experiment were.

A folder may hold runs of another seed or another number of rounds under the names of the same experiment. Cells of a
map are compared with each other, so a map shows one kind, and its section says how many runs were left out.
"""

from collections import Counter
from typing import Any

from fedgs.experiments.parts import Result, Results


def alike(results: Results, prefix: str) -> tuple[Results, int]:
    """Return the runs of an experiment that are of its most common kind, and how many others there are."""
    own = {name: result for name, result in results.items() if name.startswith(prefix)}
    kinds = Counter(_kind(result) for result in own.values())
    if not kinds:
        return {}, 0
    usual = kinds.most_common(1)[0][0]
    found = {name: result for name, result in own.items() if _kind(result) == usual}
    return found, len(own) - len(found)


def _kind(result: Result) -> tuple[Any, ...]:
    training = result["settings"]["training"]
    same = ("rounds", "model", "learning_rate", "momentum", "precision", "schedule")
    return result["settings"]["seed"], *(repr(training.get(key)) for key in same)
