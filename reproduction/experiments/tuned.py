"""Rows that are tuned alike: each tries its configurations with the first seed, the best runs in full with every seed.

Chosen is the configuration with the highest mean accuracy over the tests of the last quarter of its rounds. Rows have
the same number of trials, so that none is tuned better than another.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from fedgs.settings import Settings
from reproduction.experiments.jobs import Job, Result, Results
from reproduction.experiments.runs import RunGroup, last_quarter

Make = Callable[..., Settings]
"""From overrides to settings."""


@dataclass(frozen=True)
class Row:
    """One algorithm, and the configurations it tries."""

    title: str
    trials: Mapping[str, Sequence[str]]
    """Overrides of the settings by a short name, which stands in the names of files."""
    overrides: Sequence[str] = ()
    """Those that all of them have."""


@dataclass(frozen=True)
class Tuning:
    """An experiment of such rows."""

    prefix: str
    rows: dict[str, Row]
    federation: Callable[[str], str]
    """From a row to the key of its federation."""
    trial: Sequence[str] = ()
    """Further overrides of every trial: fewer rounds, or other samples to test on."""

    def trial_jobs(self, make: Make, seed: int) -> list[Job]:
        """Return the trials of every row."""
        return [
            self.job(make, key, name, seed, f"trial-{name}", self.trial)
            for key, row in self.rows.items()
            for name in row.trials
        ]

    def final_jobs(self, make: Make, seeds: Sequence[int], results: Results) -> list[Job]:
        """Return the runs of what every row chose, one seed of all before the second."""
        choices = {key: self.chosen(key, results) for key in self.rows}
        return [self.job(make, key, name, seed) for seed in seeds for key, name in choices.items() if name is not None]

    def job(self, make: Make, key: str, name: str, seed: int, kind: str = "", last: Sequence[str] = ()) -> Job:
        """Return the run of a row with one of its configurations; ``kind`` says what else it has (``last``)."""
        row, words = self.rows[key], kind.partition("-")[0]
        settings = make(*row.overrides, *row.trials[name], *last, f"seed={seed}")
        title = f"{self.prefix.rstrip('-')}: {row.title}, {name}, seed {seed}{words and f', {words}'}"
        return Job(f"{self.prefix}{kind}{kind and '-'}{key}-seed-{seed}", title, settings, self.federation(key))

    def trials(self, key: str, results: Results) -> dict[str, Result]:
        """Return the trials of a row that were made, by name."""
        starts = {name: f"{self.prefix}trial-{name}-{key}-seed-" for name in self.rows[key].trials}
        return {name: run for name, start in starts.items() for job, run in results.items() if job.startswith(start)}

    def chosen(self, key: str, results: Results) -> str | None:
        """Return the trial a row goes on with; None before all of them are there, or where all diverged."""
        made = self.trials(key, results)
        scores = {name: last_quarter(run) for name, run in made.items() if not run.get("failed")}
        whole = len(made) == len(self.rows[key].trials)
        return max(scores, key=lambda name: scores[name]) if whole and scores else None

    def outcomes(self, results: Results, kind: str = "") -> dict[str, RunGroup]:
        """Return what the rows came to in full, or their runs of one kind."""
        found = {}
        for key in self.rows:
            start = f"{self.prefix}{kind}{kind and '-'}{key}-seed-"
            runs = [run for name, run in results.items() if name.startswith(start)]
            if runs:
                found[key] = RunGroup.of(key, runs)
        return found
