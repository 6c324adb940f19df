"""Plain conclusions of the selection study, each a sentence that its own numbers decide."""

from collections.abc import Collection, Mapping
from statistics import fmean

import numpy as np

from reproduction.experiments.selection_study import DEALS, SELECTIONS, title_of
from reproduction.experiments.study_bar import OTHERS, OURS, PUBLISHED, WITHIN, Verdict, difference, holds
from reproduction.experiments.study_results import Study, common, with_all_seeds
from reproduction.report.markdown import listing, plural, points, share, signed

SMALL = WITHIN
"""Differences below are called none."""
ALIKE_BUT_SELECTION = (
    ("with the paper's loss and mean", "queues", "random-by-data"),
    ("with calibration in both", "queues-calibrated", "calibrated"),
    ("with all that coverage adds in both", OURS, "by-data-full"),
)
"""Pairs of policies that differ by selecting with queues and match, or at random by data, and by nothing else."""


def conclude(study: Study, decided: Mapping[str, Verdict]) -> list[str]:
    """Return the conclusions that the results so far allow, each under a few words that name it."""
    sentences = {
        "The match as published": _published_against_random(study),
        "Where skew is strong": _skew(study),
        "The closest match": _exact(study),
        "Selecting, all else alike": _selection_itself(study),
        "All of ours": _coverage(study, decided),
        "Early and late": _shrinking(study),
        "The queues alone": _by_data(study),
        "The additions": _parts(study),
        "What goes with accuracy": _what_goes_with_accuracy(study),
        "Waits and missing classes": _waits(study),
        "Noise": _noise(study),
    }
    told = [f"**{what}.** {sentence}" for what, sentence in sentences.items() if sentence]
    return told or ["Too little has been run to conclude anything."]


def gaps_between(study: Study, one: str, other: str) -> dict[str, float]:
    """Return by how much one policy is better than another, by federation."""
    found = {}
    for key, cells in study.items():
        if one in cells and other in cells and (by_seed := difference(cells[one], cells[other])):
            found[key] = fmean(by_seed.values())
    return found


def tally(gaps: Mapping[str, float]) -> str:
    """Say on how many settings something is better, worse, and neither."""
    better = sum(gap > SMALL for gap in gaps.values())
    worse = sum(gap < -SMALL for gap in gaps.values())
    alike = len(gaps) - better - worse
    return (
        f"better on {better}, worse on {worse} and within {100 * SMALL:g} points on {alike} of "
        f"{plural(len(gaps), 'setting')}"
    )


def extremes(gaps: Mapping[str, float]) -> str:
    """Say where a difference is least and most."""
    low, high = min(gaps, key=lambda key: gaps[key]), max(gaps, key=lambda key: gaps[key])
    return f"from {points(gaps[low], 2)} points ({title_of(low)}) to {points(gaps[high], 2)} ({title_of(high)})"


def _divergences(study: Study, one: str, other: str) -> str:
    """Return the divergence of one policy as shares of another's, least to most; empty: not measured."""
    ratios = [
        mine / theirs
        for cells in study.values()
        if one in cells
        and other in cells
        and (mine := cells[one].fact("divergence", common(cells[one], cells[other])))
        and (theirs := cells[other].fact("divergence", common(cells[one], cells[other])))
    ]
    return f"{share(min(ratios))} to {share(max(ratios))}" if ratios else ""


def _published_against_random(study: Study) -> str:
    gaps, divergences = gaps_between(study, PUBLISHED, "random"), _divergences(study, PUBLISHED, "random")
    if not gaps or not divergences:
        return ""
    return (
        f"GBP-CS as published has {divergences} of the divergence of random selection, and in accuracy it is "
        f"{tally(gaps)}: {extremes(gaps)}."
    )


def _skew(study: Study) -> str:
    gaps = gaps_between(study, PUBLISHED, "random")
    skewed = [gap for key, gap in gaps.items() if DEALS[key.partition("-T")[0]].skewed]
    mild = [gap for key, gap in gaps.items() if not DEALS[key.partition("-T")[0]].skewed]
    if not skewed or not mild:
        return ""
    return (
        f"Where α ≤ 0.1 GBP-CS differs from random selection by {points(fmean(skewed), 2)} points on average, "
        f"elsewhere by {points(fmean(mild), 2)}."
    )


def _exact(study: Study) -> str:
    gaps = gaps_between(study, "exact", PUBLISHED)
    if not gaps:
        return ""
    closer = 0
    for key in gaps:
        exact, published = study[key]["exact"], study[key][PUBLISHED]
        seeds = common(exact, published)
        closer += (exact.fact("divergence", seeds) or 0) < (published.fact("divergence", seeds) or 0)
    change = fmean(gaps.values())
    moral = " A closer match alone does not make a better model." if closer > len(gaps) / 2 and change < -SMALL else ""
    return (
        "The optimum of every iteration, with nobody drawn beforehand, has a lower divergence than GBP-CS on "
        f"{closer} of {len(gaps)} and is in accuracy {tally(gaps)}: {extremes(gaps)}.{moral}"
    )


def _coverage(study: Study, decided: Mapping[str, Verdict]) -> str:
    gaps = gaps_between(study, OURS, PUBLISHED)
    if not gaps or not decided:
        return ""
    near, over = holds(list(decided.values()))
    ahead = sum(verdict.to_best > SMALL for verdict in decided.values())
    behind = [
        f"{title_of(v.key)} ({points(v.to_best, 2)} to {v.best})" for v in decided.values() if v.to_best < -WITHIN
    ]
    text = (
        "Coverage (queues, calibration, classifier averaged class by class) is against GBP-CS, which has none of them, "
        f"{tally(gaps)} ({extremes(gaps)}), "
        f"and ahead of all of {listing(list(OTHERS))} by more than {100 * SMALL:g} points on {ahead} of {len(decided)}"
    )
    text += f"; it falls behind the best by more than {100 * WITHIN:g} points on {listing(behind)}" if behind else ""
    return text + (". It clears the bar set below." if near and over else ". It does not clear the bar set below.")


def _by_data(study: Study) -> str:
    ours = "queues"
    gaps, divergences = gaps_between(study, ours, "random-by-data"), _divergences(study, ours, "random-by-data")
    if not gaps or not divergences:
        return ""
    even = []
    for policy in (ours, "random-by-data"):
        shared = {key: common(study[key][ours], study[key]["random-by-data"]) for key in gaps}
        even.append(fmean(study[key][policy].fact("jain_of_epochs", shared[key]) or 0.0 for key in gaps))
    return (
        "Against random selection in proportion to data, which matches nothing, the queues alone have "
        f"{divergences} of the divergence at a Jain's index of epochs of {even[0]:.3f} (to {even[1]:.3f}, means) and "
        f"are {tally(gaps)}: {extremes(gaps)}."
    )


def _parts(study: Study) -> str:
    """Say what calibration and averaging class by class add, to whichever selection."""
    sentences = []
    for what, to, one, other in (
        ("Calibration", "the queues", "queues-calibrated", "queues"),
        ("Calibration", "random selection by data", "calibrated", "random-by-data"),
        ("Averaging the classifier class by class", "queues with calibration", OURS, "queues-calibrated"),
        ("Averaging the classifier class by class", "random selection by data with calibration", "by-data-full",
         "calibrated"),
    ):  # fmt: skip
        if gaps := gaps_between(study, one, other):
            adds = f"{what} adds {points(fmean(gaps.values()), 2)} points to {to} on average ({extremes(gaps)})"
            sentences.append(f"{adds}{_of_fewer(study, gaps)}.")
    return " ".join(sentences)


def _selection_itself(study: Study) -> str:
    """Say what the selection of ours is worth, with all else alike."""
    told = []
    for what, one, other in ALIKE_BUT_SELECTION:
        if gaps := gaps_between(study, one, other):
            told.append(f"{what} {points(fmean(gaps.values()), 2)} points ({tally(gaps)}{_of_fewer(study, gaps)})")
    against = gaps_between(study, OURS, "gbp-cs-full")
    beside = (
        f" Against GBP-CS that is given the same additions it is {tally(against)}: {extremes(against)}."
        if against
        else ""
    )
    if not told:
        return ""
    return (
        "What selecting by queues and match is worth by itself, against random selection by data, on average: "
        f"{listing(told)}.{beside}"
    )


def _of_fewer(study: Study, gaps: Mapping[str, float]) -> str:
    return f", {len(gaps)} of {len(study)} settings" if len(gaps) < len(study) else ""


def _shrinking(study: Study) -> str:
    """Say whether the lead over the best other policy lasts: at half of the rounds and at the end."""
    leads = []
    for key, cells in study.items():
        if OURS not in cells:
            continue
        rounds = cells[OURS].runs[0]["settings"]["training"]["rounds"]
        at = [[cells[name].at(number) for name in (OURS, *OTHERS) if name in cells] for number in (rounds // 2, rounds)]
        if all(None not in values and len(values) == len(OTHERS) + 1 for values in at):
            halfway, end = ((values[0] or 0.0) - max(value or 0.0 for value in values[1:]) for values in at)
            leads.append((key, halfway, end))
    ahead = [(key, halfway, end) for key, halfway, end in leads if halfway > SMALL]
    if not ahead:
        return ""
    shrunk = sum(end < halfway for _, halfway, end in ahead)
    key, halfway, end = max(ahead, key=lambda lead: lead[1])
    return (
        "Where coverage is ahead of the best of the others at half of the rounds "
        f"({plural(len(ahead), 'setting')}), it is less so at the end on {shrunk} (the largest lead: "
        f"{points(halfway, 2)} points, in the last round {points(end, 2)}, {title_of(key)}). The "
        "study has no more rounds than these."
    )


def _what_goes_with_accuracy(study: Study) -> str:
    """Say whether divergence or even use tells more about accuracy, over all ways to select and federations."""
    found = _correlations(study, SELECTIONS)
    if found is None:
        return ""
    with_evenness, with_divergence = found
    moral = (
        " The more evenly data are used the more accurate; a lower divergence does not go with higher accuracy."
        if with_evenness > 0.3 and with_divergence > 0
        else " Neither explains it."
        if abs(with_evenness) < 0.3 and abs(with_divergence) < 0.3
        else ""
    )
    rest = _correlations(study, [policy for policy in SELECTIONS if policy != "exact"])
    without = f" Without `exact`, which is far off, {signed(rest[0], 2)} and {signed(rest[1], 2)}." if rest else ""
    return (
        "Ways to select against each other within a setting: accuracy has a correlation of "
        f"{signed(with_evenness, 2)} with Jain's index of epochs and of {signed(with_divergence, 2)} with divergence."
        f"{without}{moral}"
    )


def _correlations(study: Study, policies: Collection[str]) -> tuple[float, float] | None:
    """Return the correlation of accuracy with evenness and with divergence; None: too few cells, or all alike."""
    divergence, evenness, accuracy = [], [], []
    for cells in study.values():
        whole = {
            policy: (cell.fact("divergence"), cell.fact("jain_of_epochs"))
            for policy, cell in with_all_seeds(cells).items()
            if policy in policies  # the others differ by more
        }
        known = {policy: pair for policy, pair in whole.items() if None not in pair}
        if len(known) < 3:
            continue
        level = fmean(cells[policy].mean for policy in known)
        scale = fmean(pair[0] or 0.0 for pair in known.values())
        even = fmean(pair[1] or 0.0 for pair in known.values())
        for policy, pair in known.items():
            divergence.append((pair[0] or 0.0) / scale)
            evenness.append((pair[1] or 0.0) - even)
            accuracy.append(cells[policy].mean - level)
    if len(accuracy) < 6 or min(np.std(divergence), np.std(evenness), np.std(accuracy)) == 0:
        return None
    return float(np.corrcoef(evenness, accuracy)[0, 1]), float(np.corrcoef(divergence, accuracy)[0, 1])


def _waits(study: Study) -> str:
    """Say how long devices wait for a turn, and how many classes an iteration lacks."""
    waits, lacks = [], []
    for policy in SELECTIONS:
        cells = [cells[policy] for cells in study.values() if policy in cells]
        longest = [value for cell in cells for value in cell.facts("longest_wait") if value is not None]
        missing = [value for cell in cells if (value := cell.fact("missing_classes")) is not None]
        waits += [f"`{policy}` {max(longest):.0f}"] if longest else []
        lacks += [f"`{policy}` {min(missing):.1f} to {max(missing):.1f}"] if missing else []
    told = f"The longest wait for a turn in any run, in iterations: {listing(waits)}." if waits else ""
    return told + (f" Classes missing in a super node, means of the settings: {listing(lacks)}." if lacks else "")


def conditions(found: Mapping[str, Verdict]) -> str:
    """Say what both conditions of the bar come to: "the first condition holds, the second does not hold on …"."""
    near, over = holds(list(found.values()))
    far = [title_of(v.key) for v in found.values() if not v.near_the_best]
    short = [title_of(v.key) for v in found.values() if v.beats_published is False]
    return (
        f"the first condition {'holds' if near else f'does not hold on {listing(far)}'}, "
        f"the second {'holds' if over else f'does not hold on {listing(short)}'}"
    )


def _noise(study: Study) -> str:
    several = [cell for cells in study.values() for cell in cells.values() if len(cell.late) > 1]
    if not several:
        return "One seed only: differences of a few tenths of a point are within what another seed may give."
    spread = fmean(max(cell.late) - min(cell.late) for cell in several)
    errors = [
        float(np.std(gaps, ddof=1)) / len(gaps) ** 0.5
        for cells in study.values()
        for policy in cells
        if OURS in cells and policy != OURS and len(gaps := list(difference(cells[OURS], cells[policy]).values())) > 1
    ]
    text = f"From the least to the most of its seeds a cell differs by {100 * spread:.2f} points on average"
    if errors:
        text += (
            f"; a difference to coverage, mean over the same seeds, has a standard error of {100 * fmean(errors):.2f} "
            "points on average. The table of the bar says on how many seeds coverage is ahead"
        )
    return f"{text}."
