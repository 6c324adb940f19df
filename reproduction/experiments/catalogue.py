"""The experiments of ``python -m reproduction`` by name: what they show, and the jobs they are made of.

An experiment goes in stages, for some jobs follow from the results of others (what was chosen is run in full). A stage
is asked again until it names no new job, for its own results may change what follows (what does not hold in full).
Curves have no runs of their own: they are those of Table II. The functions that make jobs are named and looked up when
they are called, so that the command line can list the experiments without loading what they need.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from reproduction.experiments.jobs import Job, Results
    from reproduction.experiments.reproduction import Reproduction

Stage = Callable[["Reproduction", "Results"], "list[Job]"]


@dataclass(frozen=True)
class Experiment:
    """One figure, table or study."""

    summary: str
    stages: Sequence[Stage]
    one_seed: bool = False
    """Whether it has jobs for the first seed alone."""
    trains: bool = True
    """Whether its jobs are training runs."""
    in_all: bool = True
    """Whether ``all`` runs it."""


def _stage(module: str, function: str = "make_jobs", follows: bool = False) -> Stage:
    """Return the stage whose jobs a function of this package makes; ``follows``: from the results before it."""

    def jobs(reproduction: "Reproduction", results: "Results") -> "list[Job]":
        make = getattr(import_module(f"reproduction.experiments.{module}"), function)
        made: list[Job] = make(reproduction, results) if follows else make(reproduction)
        return made

    return jobs


EXPERIMENTS: dict[str, Experiment] = {
    "initialisers": Experiment(
        "GBP-CS from its three initialisers", [_stage("samplers", "initialiser_jobs")], one_seed=True, trains=False
    ),
    "samplers": Experiment("divergence and time of all samplers", [_stage("samplers")], one_seed=True, trains=False),
    "table2": Experiment("FedGS against ten baselines", [_stage("table2")]),
    "curves": Experiment("their accuracy and loss, from the same runs", [_stage("table2")], in_all=False),
    "surfaces": Experiment("FedGS over T, n, M and L", [_stage("surfaces")], one_seed=True),
    "fedopt-rates": Experiment("FedOpt over its learning rates", [_stage("fedopt_rates")], one_seed=True),
    "beyond": Experiment(
        "FedGS and FedAvg both tuned", [_stage("beyond", "trial_jobs"), _stage("beyond", "final_jobs", follows=True)]
    ),
    "best": Experiment(
        "our best recipe, FedAvg, FedAvgM and central training, all tuned",
        [_stage("best", "trial_jobs"), _stage("best", "final_jobs", follows=True)],
        in_all=False,
    ),
    "gaps": Experiment(
        "what could explain the rows of Table II below the paper", [_stage("gaps")], one_seed=True, in_all=False
    ),
    "bearings": Experiment(
        "FedGS and others on vibration signals",
        [
            _stage("bearings", "trial_jobs"),
            _stage("bearings", "final_jobs", follows=True),
            _stage("bearings", "condition_jobs", follows=True),
            _stage("bearings", "same_rate_jobs", follows=True),
            _stage("bearings", "length_jobs", follows=True),
        ],
        in_all=False,
    ),
    "selection-study": Experiment("does selection earn its keep", [_stage("selection_study")]),
}
ALL = tuple(name for name, experiment in EXPERIMENTS.items() if experiment.in_all)


def stages_of(what: str) -> list[Stage]:
    """Return the stages of an experiment; those of ``all`` one after the other, first stages first."""
    names = ALL if what == "all" else (what,)
    depth = max(len(EXPERIMENTS[name].stages) for name in names)
    return [_together([EXPERIMENTS[name] for name in names], stage) for stage in range(depth)]


def _together(experiments: Sequence[Experiment], stage: int) -> Stage:
    def jobs(reproduction: "Reproduction", results: "Results") -> "list[Job]":
        found = []
        for experiment in experiments:
            if stage < len(experiment.stages):
                asked = reproduction.asked(experiment.trains, experiment.one_seed)
                made = experiment.stages[stage](reproduction, results)
                found += [replace(job, asked=asked) for job in made]
        return found

    return jobs
