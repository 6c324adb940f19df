"""What the paper claims of FedGS, measured here: against the other rows of Table II, and with other selections.

The arithmetic behind the sentences of its section VII-B, for its own table and for ours:

accuracy    86.0 % is 3.9 points over FedAvg and 3.5 over the mean of the other fourteen rows (82.507 %)
rounds      147 to 82 % are 59 % fewer than the mean of the others, where a row that never gets there counts as
            500 (358.57), and 3.3 times fewer than FedAvg's 478
families    FedOpt is 1.7 to 2.9 points over FedAvg, CGAU 1.2, FedMMD 0.9; FedProx and FedFusion are at it or below
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from reproduction.experiments import paper
from reproduction.experiments.runs import RunGroup, by_seed
from reproduction.experiments.samplers import Comparison
from reproduction.experiments.table2 import ROWS, outcomes, papers_row, runs_of
from reproduction.report.markdown import THIN, number, percent, plural, points, rounds, share, signed, table, with_range
from reproduction.report.report_inputs import ReportInputs

Numbers = tuple[float, float, float | None]
"""Accuracy, loss, rounds to the target (None: never)."""
LOST = 0.3
"""A row so far below the paper's has learnt nothing; no mean is taken over it."""
OWN_SEEDS = "each row's own"
SELECTIONS = ("fedgs", "fedgs-random", "fedgs-exact", "coverage")


@dataclass(frozen=True)
class Derived:
    """What follows from a table."""

    others: int
    """Rows besides FedGS."""
    mean_accuracy: float
    """Of the others."""
    over_mean: float
    over_baseline: float
    mean_rounds: float
    """Of the others, never counted as ``never``."""
    fewer_rounds: float | None
    """Share of rounds saved against that mean; None: FedGS never gets there."""
    times_faster: float | None
    """Than the baseline; None if either never gets there."""


def section(inputs: ReportInputs) -> dict[str, Any]:
    """Return the table of claims beside the paper's, and the table of selections."""
    found = {key: row for key, row in outcomes(inputs.results).items() if row.ran}
    if "fedgs" not in found:
        return {}
    settings = next(iter(runs_of(inputs.results)[0].values()))["settings"]
    target, length = settings["eval"]["target"], settings["training"]["rounds"]
    compare = inputs.papers_size and "fedavg" in found
    return {
        "papers_size": inputs.papers_size,
        "left_out": _left_out(found) if compare else [],
        "table": _against_others(found, target, length, inputs) if compare else "",
        "selection": _selection(found, target),
        "titles": {"section": ""} | {key: ROWS[key].title for key in SELECTIONS if key in found},
    }


def _papers() -> dict[str, Numbers]:
    return {key: row for key in ROWS if (row := papers_row(key)) is not None}


def _lost(found: dict[str, RunGroup]) -> list[str]:
    theirs = _papers()
    return [key for key in found if key in theirs and theirs[key][0] - found[key].mean > LOST]


def _left_out(found: dict[str, RunGroup]) -> list[str]:
    """Return over which of the paper's rows no mean is taken, and why."""
    missing = [f"{ROWS[key].title} (no result)" for key in _papers() if key not in found]
    return missing + [f"{ROWS[key].title} (more than {100 * LOST:g} points below the paper)" for key in _lost(found)]


def _against_others(found: dict[str, RunGroup], target: float, length: int, inputs: ReportInputs) -> str:
    lost = set(_lost(found)) - {"fedgs", "fedavg"}
    theirs = {key: row for key, row in _papers().items() if key in found and key not in lost}
    # Means over rows are of the seeds that all of them have, and of the same rows in the paper.
    seeds = set.intersection(*(set(found[key].seeds) for key in theirs))
    rows = {key: found[key].on(seeds) if seeds else found[key] for key in theirs}
    here: dict[str, Numbers] = {key: (row.mean, row.mean_loss, row.mean_rounds) for key, row in rows.items()}
    claimed, measured = derive(theirs), derive(here, never=length)
    fedgs, fedavg = found["fedgs"], found["fedavg"]
    both = set(fedgs.seeds) & set(fedavg.seeds)
    if both:
        fedgs, fedavg = fedgs.on(both), fedavg.on(both)
    of_both, of_all = _seeds(both), _seeds(seeds)
    lines = [
        ["FedGS over FedAvg, points", points(claimed.over_baseline), points(fedgs.mean - fedavg.mean), of_both],
        [f"FedGS over the mean of the other {plural(measured.others, 'row')}, points", points(claimed.over_mean),
         points(measured.over_mean), of_all],
        [f"fewer rounds to {share(target)} than that mean (never counts as {length})",
         percent(claimed.fewer_rounds, 0), percent(measured.fewer_rounds, 0), of_all],
        [f"times faster to {share(target)} than FedAvg", f"{claimed.times_faster:.2f} ×",
         _times(fedgs, fedavg, length), of_both],
        ["rank by accuracy", _rank(theirs, 0), _rank(here, 0), of_all],
        ["rank by loss", _rank(theirs, 1), _rank(here, 1), of_all],
        *_families(theirs, found),
    ]  # fmt: skip
    if "fedgs-random" in found and (gaps := by_seed(found["fedgs-random"], found["fedavg"], "final")):
        lines.append(["FedGS with random selection over FedAvg, points", "", points(fmean(gaps.values())),
                      _seeds(gaps)])  # fmt: skip
    samplers = inputs.first("samplers-")
    timed = Comparison.from_dict(samplers["comparison"]).rows if samplers is not None else ()
    seconds = {row.solver: row.seconds for row in timed if row.instances}
    if "genetic" in seconds and "gbp-cs" in seconds:
        times = seconds["genetic"] / seconds["gbp-cs"]
        claim = paper.facts()["claims"]["gbp_cs_times_faster_than_ga"]
        lines.append(["GBP-CS: times faster than the genetic sampler", f"{claim} ×", f"{times:.0f} ×", ""])
    return table(["claim", "paper", "here", "seeds"], lines)


def _seeds(seeds: Collection[int]) -> str:
    """Name the seeds a number is of; those of each row where they have none in common."""
    return ", ".join(str(seed) for seed in sorted(seeds)) or OWN_SEEDS


def _families(theirs: dict[str, Numbers], found: dict[str, RunGroup]) -> list[list[str]]:
    """Return by how much the rows of each family are over FedAvg, on the seeds both have."""
    families = {key: ROWS[key].family for key in theirs if ROWS[key].family != "reference"}
    gaps = {key: gap for key in families if (gap := by_seed(found[key], found["fedavg"], "final"))}
    claimed = by_family({key: theirs[key][0] - theirs["fedavg"][0] for key in families}, families)
    here = by_family({key: fmean(gap.values()) for key, gap in gaps.items()}, families)
    lines = []
    for family, least_and_most in here.items():
        seeds = {_seeds(gaps[key]) for key in gaps if families[key] == family}
        lines.append([f"{family} over FedAvg, points", _from_to(claimed[family]), _from_to(least_and_most),
                      seeds.pop() if len(seeds) == 1 else OWN_SEEDS])  # fmt: skip
    return lines


def _from_to(gaps: tuple[float, float]) -> str:
    least, most = (points(gap) for gap in gaps)
    return least if least == most else f"{least} to {most}"


def _times(fedgs: RunGroup, fedavg: RunGroup, length: int) -> str:
    reached, theirs = fedgs.mean_rounds, fedavg.mean_rounds
    if reached is None:
        return "FedGS: not with every seed" if any(fedgs.rounds) else "FedGS: never"
    if theirs is not None:
        return f"{theirs / reached:.2f} ×"
    # A seed that never reaches the target counts as the last round, which is less than it would need.
    at_least = fmean(length if number is None else number for number in fedavg.rounds)
    never = "not with every seed" if any(fedavg.rounds) else "never"
    return f"> {at_least / reached:.2f} × (FedAvg: {never} in {length})"


def _rank(numbers: dict[str, Numbers], column: int) -> str:
    ordered = sorted(numbers, key=lambda key: numbers[key][column] or 0.0, reverse=column == 0)
    return f"{ordered.index('fedgs') + 1} of {len(ordered)} (first: {ROWS[ordered[0]].title})"


def _selection(found: dict[str, RunGroup], target: float) -> str:
    """Compare the selections of FedGS; differences are to GBP-CS, of the last ten tests, on the seeds both have."""
    keys = [key for key in SELECTIONS if key in found]
    if len(keys) < 2:
        return ""
    base, lines = found["fedgs"], []
    for key in keys:
        row = found[key]
        gaps = by_seed(row, base, "last_ten") if key != "fedgs" else {}
        ours, theirs = row.fact("divergence", gaps), base.fact("divergence", gaps)
        change = f"{signed(100 * (ours / theirs - 1), 0)}{THIN}%" if ours and theirs else ""
        lines.append([
            "GBP-CS (the paper's)" if key == "fedgs" else ROWS[key].title.removeprefix("FedGS, "),
            with_range(row.final, 2), percent(fmean(row.last_ten), 2),
            points(fmean(gaps.values()), 2) if gaps else "", ", ".join(points(gap, 2) for gap in gaps.values()),
            number(row.mean_loss), rounds(row.rounds),
            number(row.fact("divergence"), 4), change,
        ])  # fmt: skip
    heads = ["selection", "accuracy", "last ten", "Δ to GBP-CS", "by seed", "loss", f"rounds to {share(target)}",
             "divergence", "Δ to GBP-CS"]  # fmt: skip
    return table(heads, lines)


def derive(table: Mapping[str, Numbers], ours: str = "fedgs", baseline: str = "fedavg", never: float = 500) -> Derived:
    """Return what the paper derives from its table, from any table with these two rows."""
    others = {key: numbers for key, numbers in table.items() if key != ours}
    accuracy, _, rounds = table[ours]
    mean_accuracy = fmean(numbers[0] for numbers in others.values())
    mean_rounds = fmean(never if numbers[2] is None else numbers[2] for numbers in others.values())
    base_accuracy, _, base_rounds = table[baseline]
    return Derived(
        others=len(others),
        mean_accuracy=mean_accuracy,
        over_mean=accuracy - mean_accuracy,
        over_baseline=accuracy - base_accuracy,
        mean_rounds=mean_rounds,
        fewer_rounds=None if rounds is None else 1 - rounds / mean_rounds,
        times_faster=None if rounds is None or base_rounds is None else base_rounds / rounds,
    )


def by_family(gaps: Mapping[str, float], families: Mapping[str, str]) -> dict[str, tuple[float, float]]:
    """Return the least and the most of what is given row by row, for each family."""
    found: dict[str, list[float]] = {}
    for key, gap in gaps.items():
        found.setdefault(families[key], []).append(gap)
    return {family: (min(several), max(several)) for family, several in found.items()}
