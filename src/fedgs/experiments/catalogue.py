"""The experiments of ``fedgs reproduce`` by name: what they show, and the parts they are made of.

An experiment goes in stages, for some parts follow from the results of others (what was chosen is run in full). Curves
have no runs of their own: they are those of Table II.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from fedgs.experiments import beyond, fedopt_rates, initialisers, samplers, selection_study, surfaces, table2
from fedgs.experiments.parts import Part, Results
from fedgs.experiments.reproduction import Reproduction

Stage = Callable[[Reproduction, Results], list[Part]]


@dataclass(frozen=True)
class Experiment:
    """One figure, table or study."""

    summary: str
    stages: Sequence[Stage]


def _plain(make: Callable[[Reproduction], list[Part]]) -> Stage:
    return lambda reproduction, results: make(reproduction)


EXPERIMENTS: dict[str, Experiment] = {
    "initialisers": Experiment("GBP-CS from its three starts", [_plain(initialisers.make_parts)]),
    "samplers": Experiment("divergence and time of all samplers", [_plain(samplers.make_parts)]),
    "table2": Experiment("FedGS against ten approaches", [_plain(table2.make_parts)]),
    "curves": Experiment("their accuracy and loss, from the same runs", [_plain(table2.make_parts)]),
    "surfaces": Experiment("FedGS over T, n, M and L", [_plain(surfaces.make_parts)]),
    "fedopt-rates": Experiment("FedOpt over its learning rates", [_plain(fedopt_rates.make_parts)]),
    "beyond": Experiment("FedGS and FedAvg both tuned", [_plain(beyond.trial_parts), beyond.final_parts]),
    "selection-study": Experiment("does selection earn its keep", [_plain(selection_study.make_parts)]),
}
ALL = ("initialisers", "samplers", "table2", "surfaces", "fedopt-rates", "beyond", "selection-study")


def stages_of(what: str) -> list[Stage]:
    """Return the stages of an experiment; those of ``all`` one after the other, first stages first."""
    names = ALL if what == "all" else (what,)
    depth = max(len(EXPERIMENTS[name].stages) for name in names)
    return [_together([EXPERIMENTS[name] for name in names], stage) for stage in range(depth)]


def _together(experiments: Sequence[Experiment], stage: int) -> Stage:
    def parts(reproduction: Reproduction, results: Results) -> list[Part]:
        found = []
        for experiment in experiments:
            if stage < len(experiment.stages):
                found += experiment.stages[stage](reproduction, results)
        return found

    return parts
