"""Beyond the paper: FedGS and FedAvg both tuned, as fairly as we know how.

The paper's FedAvg runs at learning rate 0.01, which is low for it, and so is FedGS's. Here both try the same
configurations, as many for one as for the other: four learning rates, momentum in the SGD of devices (FedAvg) or
stations (FedGS), clipped gradients (of devices or stations), and two other server rules. Each is tried once, with the
first seed and a fifth of the rounds; chosen is the one with the highest mean accuracy over the tests of the last
quarter of these rounds, by the same rule for both. The chosen one then runs in full with every seed, only the first of
which had a say. What looks best after a fifth of the rounds can still fail: a configuration that diverges in full with
any seed, or collapses (loses half of its accuracy), is rejected, and the side goes on with its next best trial. A third
row is the chosen FedGS with coverage-aware selection in the place of GBP-CS, nothing tuned for it.

What this leaves out, for both sides: schedules of the rate, other numbers of local epochs or iterations, and a
validation set of its own: the choice looks at the test data.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from fedgs.settings import COVERAGE_WEIGHT
from reproduction.experiments.jobs import Job, Result, Results
from reproduction.experiments.reproduction import PAPER, Scale
from reproduction.experiments.runs import RunGroup, collapse, last_quarter

if TYPE_CHECKING:
    from reproduction.experiments.reproduction import Reproduction

FULL = Scale(rounds=500, rate=0.01, every=5)
SMALL = Scale(rounds=20, rate=0.15, every=2, target=0.25)
SHARE, SMALL_SHARE = 5, 2
"""A trial has so many times fewer rounds than the final run, at full and at small size."""
PREFIX = "beyond-"
CLIP = 2.0
"""The length gradients are clipped to where they are, as in the selection study."""


@dataclass(frozen=True)
class Trial:
    """One configuration that both sides try."""

    title: str
    rate: float
    """Of learning, in full size."""
    momentum: float = 0.0
    rule: str | None = None
    """Of the server, if not the mean."""
    clip: float | None = None


TRIALS: dict[str, Trial] = {
    "rate-0.01": Trial("0.01 (the paper's)", 0.01),
    "rate-0.03": Trial("0.03", 0.03),
    "rate-0.1": Trial("0.1", 0.1),
    "rate-0.3": Trial("0.3", 0.3),
    "momentum-0.01": Trial("0.01, momentum 0.9", 0.01, 0.9),
    "momentum-0.03": Trial("0.03, momentum 0.9", 0.03, 0.9),
    "momentum-0.1": Trial("0.1, momentum 0.9", 0.1, 0.9),
    "clip-0.1": Trial("0.1, clipped", 0.1, clip=CLIP),
    "clip-momentum-0.03": Trial("0.03, momentum 0.9, clipped", 0.03, 0.9, clip=CLIP),
    "fedavgm": Trial("0.03, server FedAvgM", 0.03, rule="fedavgm"),
    "fedadam": Trial("0.03, server FedAdam", 0.03, rule="fedadam"),
}
SIDES = {"fedgs": "FedGS", "fedavg": "FedAvg"}
FINALS = {"fedgs": "FedGS tuned", "fedavg": "FedAvg tuned", "coverage": "FedGS tuned, coverage-aware"}


def overrides_of(side: str, trial: Trial, factor: float = 1.0) -> list[str]:
    """Return the settings of one trial; ``factor`` scales the rates to the small size."""
    rate = f"training.learning_rate={trial.rate * factor:g}"
    common = [rate, f"training.momentum={trial.momentum}"]
    common += [] if trial.clip is None else [f"training.clip={trial.clip}"]
    if side == "fedavg":
        name = trial.rule or "fedavg"
        own = "algorithm.options.client_lr" if trial.rule else "algorithm.learning_rate"
        return [*common, f"algorithm.name={name}", f"{own}={trial.rate * factor:g}"]
    return [*common, *([f"server.rule={trial.rule}"] if trial.rule else [])]


def trial_jobs(reproduction: "Reproduction") -> list[Job]:
    """Return the trials of both sides, in turn."""
    seed = reproduction.seeds_or((0, 1))[0]
    return [
        _job(
            reproduction,
            f"{side}-{key}",
            f"{name}, rate {trial.title}",
            overrides_of(side, trial, _factor(reproduction)),
            seed,
            SMALL_SHARE if reproduction.quick else SHARE,
        )
        for key, trial in TRIALS.items()
        for side, name in SIDES.items()
    ]


def final_jobs(reproduction: "Reproduction", results: Results) -> list[Job]:
    """Return the runs of what was chosen; none before all trials are there."""
    seeds = reproduction.seeds_or((0, 1))
    if any(len(tried(side, results, seeds[0])) < len(TRIALS) for side in SIDES):
        return []
    chosen = {side: choose(side, results, seeds[0]) for side in SIDES}
    jobs = []
    for seed in seeds:
        for final, title in FINALS.items():
            side = "fedavg" if final == "fedavg" else "fedgs"
            key = chosen[side]
            if key is None:
                continue
            overrides = overrides_of(side, TRIALS[key], _factor(reproduction))
            if final == "coverage":
                overrides += ["selection.solver=auto", f"selection.coverage.weight={COVERAGE_WEIGHT}"]
                overrides += ["training.calibration=1"]
                # The classifier goes class by class where the server takes the mean; other rules have their own way.
                overrides += ["server.class_wise=true"] if TRIALS[key].rule is None else []
            words = f"{title}, rate {TRIALS[key].title}, seed {seed}"
            jobs.append(_job(reproduction, f"{final}-tuned-{key}", words, overrides, seed, 1))
    return jobs


def _factor(reproduction: "Reproduction") -> float:
    return SMALL.rate / FULL.rate / 3 if reproduction.quick else 1.0


def _job(reproduction: "Reproduction", name: str, title: str, overrides: Sequence[str], seed: int, share: int) -> Job:
    rounds = reproduction.rounds or (SMALL if reproduction.quick else FULL).rounds
    shorter = replace(reproduction, rounds=max(1, rounds // share))
    settings = shorter.settings(FULL, SMALL, *overrides, f"seed={seed}")
    return Job(f"{PREFIX}{name}-seed-{seed}", f"beyond: {title}", settings, PAPER)


@dataclass(frozen=True)
class Tried:
    """One trial and what it came to."""

    key: str
    score: float | None
    """Mean accuracy over the tests of the last quarter of its rounds; None: it diverged."""
    final: float | None
    failed: str = ""


def tried(side: str, results: Results, seed: int | None = None) -> dict[str, Tried]:
    """Return the trials of a side that have been made; ``seed`` None: with the seed of most."""
    return {key: _tried(key, run) for key, run in _trials(results, seed)[side].items()}


def _trials(results: Results, seed: int | None = None) -> dict[str, dict[str, Result]]:
    """Return the runs of trials by side and key; those of one number of rounds and one seed alone."""
    named = {f"{PREFIX}{side}-{key}": (side, key) for side in SIDES for key in TRIALS}
    runs = {name: result for name, result in results.items() if name.rpartition("-seed-")[0] in named}
    if seed is not None:
        runs = {name: result for name, result in runs.items() if name.endswith(f"-seed-{seed}")}
    usual = [size for size, _ in Counter(map(_size, runs.values())).most_common(1)]
    made = {named[name.rpartition("-seed-")[0]]: run for name, run in runs.items() if _size(run) in usual}
    return {side: {key: made[side, key] for key in TRIALS if (side, key) in made} for side in SIDES}


def _size(run: Result) -> tuple[int, ...]:
    """Return the seed and the number of rounds of a run: trials of one choice have the same."""
    return run["settings"]["seed"], run["settings"]["training"]["rounds"]


def _tried(key: str, result: Result) -> Tried:
    if result.get("failed"):
        return Tried(key, None, None, result["failed"])
    return Tried(key, last_quarter(result), result["summary"]["accuracy"]["final"])


def choose(side: str, results: Results, seed: int | None = None) -> str | None:
    """Return the trial a side goes on with; None before all of them are there, or if there is none left."""
    made, failed = tried(side, results, seed), rejected(side, results)
    scores = {key: trial.score for key, trial in made.items() if trial.score is not None and key not in failed}
    if len(made) < len(TRIALS) or not scores:
        return None
    return max(scores, key=lambda key: scores[key])


def rejected(side: str, results: Results) -> dict[str, list[Result]]:
    """Return the configurations of a side that diverged or collapsed in full, each with those of its runs that did."""
    found: dict[str, list[Result]] = {}
    for final, key, run in _in_full(results):
        if final == side and (run.get("failed") or collapse(run) is not None):
            found.setdefault(key, []).append(run)
    return found


def finals(results: Results) -> dict[str, RunGroup]:
    """Return what the chosen ones came to in full."""
    found, _ = final_runs(results)
    return {final: RunGroup.of(final, found[final]) for final in FINALS if final in found}


def final_runs(results: Results) -> tuple[dict[str, list[Result]], int]:
    """Return the full runs of what was chosen, and how many full runs there are of other choices.

    Trials with other seeds, or of another size, can choose otherwise. Runs of what was rejected count as neither.
    """
    chosen = {side: choose(side, results) for side in SIDES}
    failed = {side: rejected(side, results) for side in SIDES}
    found: dict[str, list[Result]] = {}
    others = 0
    for final, key, run in _in_full(results):
        side = "fedavg" if final == "fedavg" else "fedgs"
        if key == chosen[side]:
            found.setdefault(final, []).append(run)
        elif key not in failed[side]:
            others += 1
    return found, others


def _in_full(results: Results) -> Iterator[tuple[str, str, Result]]:
    """Go through the runs in full: whose it is, of which trial, and the run."""
    named = {f"{PREFIX}{final}-tuned-{key}": (final, key) for final in FINALS for key in TRIALS}
    for name, run in results.items():
        if whose := named.get(name.rpartition("-seed-")[0]):
            yield *whose, run
