"""Runs that differ by nothing but their seed: what a row of Table II or a cell of the selection study comes to."""

from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from reproduction.experiments.jobs import Result
from reproduction.experiments.measures import at_round, last_quarter, last_ten, mean_of


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
