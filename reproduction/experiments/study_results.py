"""The results of the selection study (reproduction.experiments.selection_study): cells of a federation and a policy.

A cell has all seeds of a policy on a federation. Cells are compared with each other, so they must have the same data,
network, precision and iterations; runs with other settings than most are left out and counted.
"""

from collections import Counter
from collections.abc import Mapping

from fedgs.settings import COVERAGE_WEIGHT
from reproduction.experiments.comparable_runs import made_with
from reproduction.experiments.jobs import Result, Results
from reproduction.experiments.run_group import RunGroup
from reproduction.experiments.selection_study import (
    DEALS,
    MILD_TO_SKEWED,
    POLICIES,
    PREFIX,
    VARIANTS,
    WEIGHED,
    WEIGHTS,
    title_of,
    variant_of,
)
from reproduction.experiments.unskewed import UNSKEWED


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
    results = {name: result for name, result in results.items() if not variant_of(name)}
    groups: dict[tuple[str, str], list[Result]] = {}
    left_out = 0
    kinds: Counter[tuple[str, ...]] = Counter()
    lengths: dict[str, Counter[int]] = {}
    for name, result in results.items():
        if key := _key_of(name)[0]:
            kinds[_kind(result)] += 1
            lengths.setdefault(key, Counter())[_iterations(result)] += 1
    usual_kind = kinds.most_common(1)[0][0] if kinds else None
    usual_length = {key: counted.most_common(1)[0][0] for key, counted in lengths.items()}
    for name, result in results.items():
        key, policy = _key_of(name)
        if result.get("failed") or not key:
            continue
        if _kind(result) != usual_kind or _iterations(result) != usual_length[key]:
            left_out += 1
        else:
            groups.setdefault((key, policy), []).append(result)
    study: Study = {}
    for key in sorted({key for key, _ in groups}, key=_place):
        policies = [policy for policy in (*POLICIES, UNSKEWED) if (key, policy) in groups]
        study[key] = {policy: RunGroup.of(policy, groups[key, policy]) for policy in policies}
    return study, left_out


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


def _kind(result: Result) -> tuple[str, ...]:
    """Return what must be the same in all cells that are compared."""
    return made_with(result, "batch_size")


def _iterations(result: Result) -> int:
    """Return how many iterations a run has: the same for all policies of a federation.

    Long rounds can come to a few less than short ones, where these are not a multiple of four.
    """
    return int(result["settings"]["training"]["rounds"] * result["settings"]["training"]["iterations"])


def _place(key: str) -> tuple[int, str]:
    return MILD_TO_SKEWED.index(key.partition("-T")[0]), key
