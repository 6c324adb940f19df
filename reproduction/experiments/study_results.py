"""The results of the selection study (reproduction.experiments.selection_study): cells of a federation and a policy.

A cell has all seeds of a policy on a federation. Cells are compared with each other, so they must have the same data,
network, precision and iterations; runs with other settings than most are left out and counted.

The targets of the study, what the preset ``coverage`` has to reach, both of the mean over seeds:

    1. on every federation within 0.15 points of the best of the other policies,
    2. at least 0.5 points better than GBP-CS as published where α ≤ 0.1.

A policy is compared with another on the seeds both have.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from fedgs.settings import COVERAGE_WEIGHT
from reproduction.experiments.jobs import Result, Results
from reproduction.experiments.runs import RunGroup, by_seed, made_with, usual
from reproduction.experiments.selection_study import (
    DEALS,
    MILD_TO_SKEWED,
    POLICIES,
    PREFIX,
    UNSKEWED,
    VARIANTS,
    WEIGHED,
    WEIGHTS,
    title_of,
    variant_of,
)

OURS, PUBLISHED = "coverage", "gbp-cs"
OTHERS = ("random", "random-by-data", PUBLISHED, "exact")
"""What ours is held against: ways to select as they are, without what ours adds to selecting."""
WITHIN, BETTER_BY = 0.0015, 0.005


def common(one: RunGroup, other: RunGroup) -> set[int]:
    """Return the seeds both have."""
    return set(one.seeds) & set(other.seeds)


def with_all_seeds(cells: Mapping[str, RunGroup]) -> dict[str, RunGroup]:
    """Return the policies of a federation that have run with as many seeds as any: means of others are of less."""
    most = max(len(cell.seeds) for cell in cells.values())
    return {policy: cell for policy, cell in cells.items() if len(cell.seeds) == most}


Study = dict[str, dict[str, RunGroup]]
"""By federation (with "-T200" behind it where rounds are long) and policy, in the order of the study."""


def read_study(results: Results) -> tuple[Study, int]:
    """Return the cells of which there are results, and how many runs are left out as made with other settings."""
    study, left_out = _read(results)
    without = {key: {policy: cells[policy] for policy in POLICIES if policy in cells} for key, cells in study.items()}
    return {key: cells for key, cells in without.items() if cells}, left_out


def read_unskewed(results: Results) -> dict[str, RunGroup]:
    """Return the reference of every federation: what it comes to without its skew."""
    return {key: cells[UNSKEWED] for key, cells in _read(results)[0].items() if UNSKEWED in cells}


def _read(results: Results) -> tuple[Study, int]:
    """Return all cells, the reference among them: all must be comparable."""
    cells = {name: run for name, run in results.items() if not variant_of(name) and _key_of(name)[0]}
    alike = usual(cells, lambda run: made_with(run, "batch_size")).keys()
    by_federation: dict[str, Results] = {}
    for name, result in cells.items():
        by_federation.setdefault(_key_of(name)[0], {})[name] = result
    # All policies of a federation have as many iterations. Long rounds can come to a few less than short ones, where
    # these are not a multiple of four.
    as_long = {name for own in by_federation.values() for name in usual(own, _iterations)}
    ended = {name: run for name, run in cells.items() if not run.get("failed")}
    groups: dict[tuple[str, str], list[Result]] = {}
    for name, result in ended.items():
        if name in alike and name in as_long:
            groups.setdefault(_key_of(name), []).append(result)
    study: Study = {}
    for key in sorted({key for key, _ in groups}, key=_place):
        policies = [policy for policy in (*POLICIES, UNSKEWED) if (key, policy) in groups]
        study[key] = {policy: RunGroup.of(policy, groups[key, policy]) for policy in policies}
    return study, len(ended) - sum(map(len, groups.values()))


def read_weights(results: Results) -> dict[str, dict[float, Result]]:
    """Return the runs with the queues at several weights by federation and V; 0 is ``exact``.

    Of the first seed, which alone has all weights.
    """
    weights = {"exact": 0.0, "queues": COVERAGE_WEIGHT, **{f"queues-V{weight:g}": weight for weight in WEIGHTS}}
    found: dict[str, dict[float, Result]] = {}
    for name, result in sorted(results.items(), key=lambda item: int(item[1]["settings"]["seed"])):
        cell = name.rpartition("-seed-")[0]
        for key in WEIGHED:
            weight = weights.get(cell.removeprefix(f"{PREFIX}{key}-"))
            if weight is not None and not result.get("failed"):
                found.setdefault(key, {}).setdefault(weight, result)
    return {key: dict(sorted(found[key].items())) for key in WEIGHED if len(found.get(key, {})) > 2}


def in_variant(results: Results, variant: str) -> Results:
    """Return the runs of a variant, by the names they would have in the study itself."""
    return {
        name.replace(f"{PREFIX}{variant}-", PREFIX, 1): result
        for name, result in results.items()
        if variant_of(name) == variant
    }


def _key_of(name: str) -> tuple[str, str]:
    """Return federation and policy of a job's name; ("", "") if it is none of the study."""
    if not name.startswith(PREFIX):
        return "", ""
    cell = name.removeprefix(PREFIX).rpartition("-seed-")[0]
    policy = max((policy for policy in (*POLICIES, UNSKEWED) if cell.endswith(f"-{policy}")), key=len, default="")
    key = cell.removesuffix(f"-{policy}")
    return (key, policy) if policy and key.partition("-T")[0] in DEALS else ("", "")


def title_of_run(name: str, result: Result) -> str:
    """Return the title of a run; those of the study are made of its name, for titles in older files differ."""
    variant = variant_of(name)
    key, policy = _key_of(name.replace(f"{PREFIX}{variant}-", PREFIX, 1) if variant else name)
    if not key:
        return str(result["title"])
    title = f"{title_of(key)}: {policy}, seed {result['settings']['seed']}"
    return f"{title}, {VARIANTS[variant].title}" if variant else title


def _iterations(result: Result) -> int:
    return int(result["settings"]["training"]["rounds"] * result["settings"]["training"]["iterations"])


def _place(key: str) -> tuple[int, str]:
    return MILD_TO_SKEWED.index(key.partition("-T")[0]), key


@dataclass(frozen=True)
class Verdict:
    """One federation against the targets; differences are of accuracies, positive where coverage is better."""

    key: str
    best: str
    """The best of the others."""
    to_best: float
    to_published: float | None
    seeds: tuple[int, ...]
    by_seed: tuple[float, ...]
    """The difference to the best, seed by seed."""
    asked_over_published: bool
    """Whether the second target is asked here."""

    @property
    def near_the_best(self) -> bool:
        """Whether the first target is met."""
        return self.to_best >= -WITHIN - 1e-12

    @property
    def beats_published(self) -> bool | None:
        """Whether the second target is met; None where it is not asked, or GBP-CS has no result."""
        if not self.asked_over_published or self.to_published is None:
            return None
        return self.to_published >= BETTER_BY - 1e-12


def verdicts(study: Study, final: bool = False, ours: str = OURS) -> dict[str, Verdict]:
    """Return the verdict on every federation that ours and another policy have run on.

    ``final``: by the last test instead of the mean of the late ones. ``ours``: the policy that is judged.
    """
    found: dict[str, Verdict] = {}
    for key, cells in study.items():
        differences = {
            policy: by_seed(cells[ours], cells[policy], "final" if final else "late")
            for policy in OTHERS
            if ours in cells and policy in cells
        }
        differences = {policy: by_seed for policy, by_seed in differences.items() if by_seed}
        if not differences:
            continue
        best = min(differences, key=lambda policy: fmean(differences[policy].values()))
        published = differences.get(PUBLISHED)
        found[key] = Verdict(
            key,
            best,
            fmean(differences[best].values()),
            None if published is None else fmean(published.values()),
            tuple(differences[best]),
            tuple(differences[best].values()),
            DEALS[key.partition("-T")[0]].skewed,
        )
    return found


def met(found: Sequence[Verdict]) -> tuple[bool, bool]:
    """Return whether the two targets are met on all of these."""
    return (
        all(verdict.near_the_best for verdict in found),
        all(verdict.beats_published is not False for verdict in found),
    )
