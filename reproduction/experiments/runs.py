"""What runs come to: measures of a curve, runs that differ by their seed alone, runs that can be compared.

One test is noisy, so runs are judged by the mean of their late tests. The test before the first round never counts.

A folder may hold runs of another seed or another number of rounds under the names of the same experiment. Cells of a
map are compared with each other, so a map shows one kind, and its section says how many runs were left out.
"""

from collections import Counter
from collections.abc import Callable, Collection, Hashable, Iterable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from reproduction.experiments.jobs import Result, Results

LEARNT = 0.2
"""An accuracy that no constant answer has: below, up and down mean nothing."""
MADE_WITH = ("learning_rate", "momentum", "clip", "precision", "schedule")


def last_ten(result: Result) -> float:
    """Return the mean accuracy of the last ten tests."""
    return float(np.mean(result["curve"]["accuracy"][1:][-10:]))


def last_quarter(result: Result) -> float:
    """Return the mean accuracy of the tests in the last quarter of a run's rounds."""
    rounds = result["settings"]["training"]["rounds"]
    return float(np.mean([accuracy for number, accuracy in _points(result, "accuracy") if number > 0.75 * rounds]))


def late_tests(result: Result) -> int:
    """Return of how many tests that is the mean."""
    rounds = result["settings"]["training"]["rounds"]
    return sum(number > 0.75 * rounds for number in result["curve"]["round"])


def at_round(result: Result, number: int, key: str = "accuracy") -> float | None:
    """Return what was measured in this round; None if it was not tested then."""
    return next((value for tested, value in _points(result, key) if tested == number), None)


def round_of(result: Result, target: float) -> int | None:
    """Return the first tested round at or above a target; None: never."""
    return next((number for number, accuracy in _points(result, "accuracy") if accuracy >= target), None)


def collapse(result: Result) -> tuple[float, float] | None:
    """Return the accuracies before and after the first drop below half of the highest so far; None: no such drop."""
    highest = 0.0
    for _, accuracy in _points(result, "accuracy"):
        if accuracy < 0.5 * highest and highest > LEARNT:
            return highest, accuracy
        highest = max(highest, accuracy)
    return None


def mean_of(values: Iterable[float | None]) -> float | None:
    """Return the mean of what is there; None if nothing is."""
    known = [value for value in values if value is not None]
    return float(np.mean(known)) if known else None


def _points(result: Result, key: str) -> list[tuple[int, Any]]:
    return [point for point in zip(result["curve"]["round"], result["curve"][key], strict=True) if point[0] > 0]


@dataclass(frozen=True)
class RunGroup:
    """Runs by seed; tuples go seed by seed."""

    key: str
    """Of the row, or the policy."""
    runs: tuple[Result, ...]
    """Those that came to their end."""
    failed: tuple[str, ...] = ()
    """Why, for each seed that diverged."""

    @classmethod
    def of(cls, key: str, runs: Iterable[Result]) -> "RunGroup":
        """Return the group of these runs."""
        ordered = sorted(runs, key=lambda run: int(run["settings"]["seed"]))
        failed = tuple(run["failed"] for run in ordered if run.get("failed"))
        return cls(key, tuple(run for run in ordered if run.get("summary")), failed)

    def on(self, seeds: Collection[int]) -> "RunGroup":
        """Return the runs with these seeds alone."""
        return replace(self, runs=tuple(run for run in self.runs if run["settings"]["seed"] in seeds))

    @property
    def ran(self) -> bool:
        """Whether a run came to its end."""
        return bool(self.runs)

    @property
    def seeds(self) -> tuple[int, ...]:
        """In ascending order."""
        return tuple(run["settings"]["seed"] for run in self.runs)

    def _summaries(self, section: str, key: str) -> tuple[Any, ...]:
        return tuple(run["summary"][section][key] for run in self.runs)

    @property
    def final(self) -> tuple[float, ...]:
        """Accuracies of the last round."""
        return tuple(float(run["curve"]["accuracy"][-1]) for run in self.runs)

    @property
    def best(self) -> tuple[float, ...]:
        """Accuracies of the best test."""
        return self._summaries("accuracy", "best")

    @property
    def loss(self) -> tuple[float, ...]:
        """Losses of the last round."""
        return self._summaries("loss", "final")

    @property
    def rounds(self) -> tuple[int | None, ...]:
        """First tested round at the target; None: never."""
        return self._summaries("target", "round")

    @property
    def last_ten(self) -> tuple[float, ...]:
        """Mean accuracies of the last ten tests."""
        return tuple(last_ten(run) for run in self.runs)

    @property
    def late(self) -> tuple[float, ...]:
        """Mean accuracies of the tests in the last quarter of the rounds."""
        return tuple(last_quarter(run) for run in self.runs)

    @property
    def mean(self) -> float:
        """The mean accuracy of the last round."""
        return float(np.mean(self.final))

    @property
    def score(self) -> float:
        """The mean accuracy of the late tests, by which the selection study judges."""
        return float(np.mean(self.late))

    @property
    def mean_loss(self) -> float:
        """The mean loss of the last round."""
        return float(np.mean(self.loss))

    @property
    def mean_rounds(self) -> float | None:
        """The mean round of the target; None if a seed never reached it."""
        return None if None in self.rounds else mean_of(self.rounds)

    def facts(self, key: str) -> list[float | None]:
        """Return a fact of the summary, such as divergence, seed by seed."""
        return [run["summary"].get(key, run["summary"]["selection"].get(key)) for run in self.runs]

    def fact(self, key: str, seeds: Collection[int] | None = None) -> float | None:
        """Return the mean of a fact over these seeds, or all."""
        return mean_of((self if seeds is None else self.on(seeds)).facts(key))

    def at(self, number: int) -> float | None:
        """Return the mean accuracy in a round; None where it was not tested."""
        found = [at_round(run, number) for run in self.runs]
        return None if None in found else mean_of(found)


def by_seed(one: RunGroup, other: RunGroup, what: str) -> dict[int, float]:
    """Return by how much one is better than another, seed by seed, on the seeds both have.

    ``what`` names the property that is compared: ``final``, ``late``, ….
    """
    ours, theirs = (dict(zip(group.seeds, getattr(group, what), strict=True)) for group in (one, other))
    return {seed: ours[seed] - theirs[seed] for seed in ours if seed in theirs}


def comparable(results: Results, prefix: str, one_seed: bool = False) -> tuple[Results, int]:
    """Return the runs of an experiment that are of its most common kind, and how many others there are.

    ``one_seed``: a map or a table in which a run stands for all; else runs differ by their seeds too.
    """
    own = {name: result for name, result in results.items() if name.startswith(prefix)}
    found = usual(own, lambda run: (made_with(run, "rounds"), run["settings"]["seed"] if one_seed else None))
    return found, len(own) - len(found)


def usual(results: Results, kind: Callable[[Result], Hashable]) -> Results:
    """Return the runs of the most common kind."""
    kinds = {name: kind(result) for name, result in results.items()}
    most = Counter(kinds.values()).most_common(1)
    return {name: result for name, result in results.items() if kinds[name] == most[0][0]}


def made_with(result: Result, *further: str) -> tuple[str, ...]:
    """Return what must be the same in runs that are compared, and ``further`` settings of the training."""
    training = result["settings"]["training"]
    return (network_of(result["settings"]), *(repr(training.get(key)) for key in (*MADE_WITH, *further)))


def network_of(settings: dict[str, Any]) -> str:
    """Return the network of a run; results of older versions have it among the settings of training."""
    task = settings.get("task")
    return str(task["model"] if isinstance(task, dict) else task or settings["training"].get("model"))
