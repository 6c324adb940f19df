"""The selection study with longer steps, as they are and clipped: who gains, who falls, what the bar comes to there."""

from collections.abc import Sequence
from statistics import fmean

from reproduction.experiments.measures import fell
from reproduction.experiments.selection_study import PREFIX, STRIDES, title_of
from reproduction.experiments.study_bar import OTHERS, OURS, PUBLISHED, difference, verdicts
from reproduction.experiments.study_results import Study, common, in_stride, read_study, read_unskewed
from reproduction.experiments.unskewed import UNSKEWED
from reproduction.report.markdown import bullets, listing, percent, plural, points
from reproduction.report.report_inputs import Material
from reproduction.report.sections import study_unskewed
from reproduction.report.sections.study_conclusions import (
    ALIKE_BUT_SELECTION,
    conditions,
    extremes,
    gaps_between,
    tally,
)
from reproduction.report.sections.study_tables import FEWER, means_table


def write(material: Material, short: Study) -> list[str]:
    """Write the parts on longer steps; ``short`` is the study itself."""
    return [line for stride in STRIDES for line in _write(material, short, stride)]


def conclude(material: Material) -> list[str]:
    """Return a conclusion for each of these studies: what selecting is worth there, and how many runs do not hold."""
    told = []
    for name, stride in STRIDES.items():
        results = in_stride(material.starting_with(PREFIX), name)
        study, _ = read_study(results)
        against = [
            f"{tally(gaps)} against {words}"
            for words, other in (
                ("random selection by data as it is", "random-by-data"),
                ("random selection by data that is given the same additions", "by-data-full"),
                ("GBP-CS", PUBLISHED),
            )
            if (gaps := gaps_between(study, OURS, other))
        ]
        if not against:
            continue
        runs = [run for part, run in results.items() if f"-{UNSKEWED}-" not in part]
        fallen = sum(bool(run.get("failed")) or fell(run) is not None for run in runs)
        clipped = "" if stride.clip is None else ", clipped"
        told.append(
            f"**{stride.title}.** With steps {stride.times:g} times as long{clipped} (below), coverage is "
            f"{'; it is '.join(against)}. {fallen} of {plural(len(runs), 'run')} went astray or lost more than half of "
            "what they had learnt."
        )
    return told


def _write(material: Material, short: Study, name: str) -> list[str]:
    stride = STRIDES[name]
    results = in_stride(material.starting_with(PREFIX), name)
    study, astray = read_study(results)
    if not study:
        return []
    cells = [cell for by_policy in study.values() for cell in by_policy.values()]
    seeds = sorted({seed for cell in cells for seed in cell.seeds})
    fewer = any(len(cell.seeds) < len(seeds) for cell in cells)
    whole = set(study) == set(short) and all(set(stride.policies) <= set(by_policy) for by_policy in study.values())
    training = cells[0].runs[0]["settings"]["training"]
    rate, clip = training["learning_rate"], training.get("clip")
    remark = material.remark("study", name).strip()
    unskewed = read_unskewed(results)
    return [
        f"### {stride.title}",
        f"The same with {stride.times:g} times the learning rate ({rate:g})"
        + ("" if clip is None else f" and gradients of a length of {clip:g} at most (`training.clip`)")
        + f", {plural(len(seeds), 'seed')}"
        + ("" if whole else f", on {len(study)} of {len(short)} settings so far")
        + "; "
        "means of the late tests, per cent."
        + (f" {FEWER}: fewer seeds than others of the line." if fewer else ""),
        means_table(study, stride.policies),
        bullets([
            *_missing(short, study),
            *_against_short(short, study, stride.policies),
            *_falls(study),
            *_selection_itself(study),
            *_coverage(study, whole),
            *study_unskewed.conclude(study, unskewed, verdicts(study) if whole else {}),
            *[f"Went astray: {text}." for text in astray],
        ]),
        *study_unskewed.write(study, unskewed),
        *([remark] if remark else []),
    ]  # fmt: skip


def _missing(short: Study, study: Study) -> list[str]:
    gone = [title_of(key) for key in short if key not in study]
    return [f"Not run with these steps: {listing(gone)}."] if gone else []


def _against_short(short: Study, study: Study, policies: Sequence[str]) -> list[str]:
    """Say what longer steps are worth to each policy, on the seeds both have."""
    told = []
    for policy in policies:
        changes = [
            fmean(difference(study[key][policy], short[key][policy]).values())
            for key in study
            if key in short and policy in study[key] and policy in short[key]
            and common(study[key][policy], short[key][policy])
        ]  # fmt: skip
        if changes:
            told.append(f"{policy} {points(fmean(changes), 2)}")
    return [f"Against the shorter steps, mean of the settings run with both: {listing(told)} points."] if told else []


def _falls(study: Study) -> list[str]:
    """Name the runs that lost what they had learnt."""
    told = [
        f"{policy} ({title_of(key)}, seed {seed}: from {percent(drop[0], 0)} to {percent(drop[1], 0)})"
        for key, by_policy in study.items()
        for policy, cell in by_policy.items()
        for seed, run in zip(cell.seeds, cell.runs, strict=True)
        if (drop := fell(run)) is not None
    ]
    number = sum(len(cell.seeds) for by_policy in study.values() for cell in by_policy.values())
    if not told:
        return [f"None of {plural(number, 'run')} lost half of what it had learnt."]
    return [f"Of {plural(number, 'run')}, {len(told)} lost more than half of what had been learnt: {listing(told)}."]


def _selection_itself(study: Study) -> list[str]:
    told = []
    for what, one, other in ALIKE_BUT_SELECTION:
        if gaps := gaps_between(study, one, other):
            told.append(f"{what} {tally(gaps)} ({extremes(gaps)})")
    return [f"Selecting by queues and match against random selection by data: {listing(told)}."] if told else []


def _coverage(study: Study, whole: bool) -> list[str]:
    decided = verdicts(study)
    if not decided:
        return []
    against = [policy for policy in OTHERS if any(policy in cells for cells in study.values())]
    sentences = [
        f"Coverage against {words}: {tally(gaps)} ({extremes(gaps)})."
        for words, other in (("random selection by data as it is", "random-by-data"), ("GBP-CS", PUBLISHED))
        if (gaps := gaps_between(study, OURS, other))
    ]
    if not whole:
        return [
            *sentences,
            "What the bar comes to with these steps is told once all these cells have been run.",
        ]
    return [*sentences, f"The bar with these steps, against the best of {listing(against)}: {conditions(decided)}."]
