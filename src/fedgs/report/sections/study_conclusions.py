"""Plain conclusions of the selection study, each a sentence that its own numbers decide."""

from collections.abc import Mapping
from statistics import fmean

import numpy as np

from fedgs.experiments.selection_study import CALIBRATED, DEALS, Study, common, title_of, with_all_seeds
from fedgs.experiments.study_bar import OTHERS, OURS, PUBLISHED, WITHIN, Verdict, difference, holds
from fedgs.report.markdown import listing, plural, points, share, signed

SMALL = 0.0015
"""Differences below are called none."""


def conclude(study: Study, decided: Mapping[str, Verdict]) -> list[str]:
    """Return the conclusions that the results so far allow."""
    sentences = [
        _published_against_random(study),
        _skew(study),
        _exact(study),
        _coverage(study, decided),
        _by_data(study),
        _parts(study),
        _what_goes_with_accuracy(study),
        _noise(study),
    ]
    return [sentence for sentence in sentences if sentence] or ["Too little has been run to conclude anything."]


def _gaps(study: Study, one: str, other: str) -> dict[str, float]:
    """Return by how much one policy is better than another, by federation."""
    found = {}
    for key, cells in study.items():
        if one in cells and other in cells and (by_seed := difference(cells[one], cells[other])):
            found[key] = fmean(by_seed.values())
    return found


def _tally(gaps: Mapping[str, float]) -> str:
    better = sum(gap > SMALL for gap in gaps.values())
    worse = sum(gap < -SMALL for gap in gaps.values())
    alike = len(gaps) - better - worse
    return (
        f"better on {better}, worse on {worse} and within {100 * SMALL:g} points on {alike} of "
        f"{plural(len(gaps), 'setting')}"
    )


def _range(gaps: Mapping[str, float]) -> str:
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
    gaps, divergences = _gaps(study, PUBLISHED, "random"), _divergences(study, PUBLISHED, "random")
    if not gaps or not divergences:
        return ""
    return (
        f"GBP-CS as published has {divergences} of the divergence of random selection, and in accuracy it is "
        f"{_tally(gaps)}: {_range(gaps)}."
    )


def _skew(study: Study) -> str:
    gaps = _gaps(study, PUBLISHED, "random")
    skewed = [gap for key, gap in gaps.items() if DEALS[key.partition("-T")[0]].skewed]
    mild = [gap for key, gap in gaps.items() if not DEALS[key.partition("-T")[0]].skewed]
    if not skewed or not mild:
        return ""
    return (
        f"Where α ≤ 0.1 GBP-CS differs from random selection by {points(fmean(skewed), 2)} points on average, "
        "elsewhere "
        f"by {points(fmean(mild), 2)}."
    )


def _exact(study: Study) -> str:
    gaps = _gaps(study, "exact", PUBLISHED)
    if not gaps:
        return ""
    closer = 0
    for key in gaps:
        exact, published = study[key]["exact"], study[key][PUBLISHED]
        seeds = common(exact, published)
        closer += (exact.fact("divergence", seeds) or 0) < (published.fact("divergence", seeds) or 0)
    change = fmean(gaps.values())
    moral = (
        " A closer match, where some devices are never selected for it, does not make a better model."
        if closer > len(gaps) / 2 and change < -SMALL
        else ""
    )
    return (
        "The optimum of every iteration, with nobody drawn beforehand, has a lower divergence than GBP-CS on "
        f"{closer} of {len(gaps)} and is in accuracy {_tally(gaps)}: {_range(gaps)}.{moral}"
    )


def _coverage(study: Study, decided: Mapping[str, Verdict]) -> str:
    gaps = _gaps(study, OURS, PUBLISHED)
    if not gaps or not decided:
        return ""
    near, over = holds(list(decided.values()))
    ahead = sum(verdict.to_best > SMALL for verdict in decided.values())
    behind = [
        f"{title_of(v.key)} ({points(v.to_best, 2)} to {v.best})" for v in decided.values() if v.to_best < -WITHIN
    ]
    text = (
        "Coverage (queues, calibration, classifier averaged class by class) is against GBP-CS, which has none of them, "
        f"{_tally(gaps)} ({_range(gaps)}), "
        f"and ahead of all of {listing(list(OTHERS))} by more than {100 * SMALL:g} points on {ahead} of {len(decided)}"
    )
    text += f"; it falls behind the best by more than {100 * WITHIN:g} points on {listing(behind)}" if behind else ""
    return text + (". It clears the bar set below." if near and over else ". It does not clear the bar set below.")


def _by_data(study: Study) -> str:
    ours = "queues"
    gaps, divergences = _gaps(study, ours, "random-by-data"), _divergences(study, ours, "random-by-data")
    if not gaps or not divergences:
        return ""
    even = []
    for policy in (ours, "random-by-data"):
        shared = {key: common(study[key][ours], study[key]["random-by-data"]) for key in gaps}
        even.append(fmean(study[key][policy].fact("jain_of_epochs", shared[key]) or 0.0 for key in gaps))
    return (
        "Against random selection in proportion to data, which matches nothing, the queues alone have "
        f"{divergences} of the divergence at a Jain's index of epochs of {even[0]:.3f} (to {even[1]:.3f}, means) and "
        "are "
        f"{_tally(gaps)}: {_range(gaps)}."
    )


def _parts(study: Study) -> str:
    """Say what each of the three parts of coverage does."""
    added, rows = _gaps(study, "queues-calibrated", "queues"), _gaps(study, OURS, "queues-calibrated")
    alone, matched = _gaps(study, "calibrated", "random-by-data"), _gaps(study, "queues-calibrated", "calibrated")
    if not added or not rows or not alone or not matched:
        return ""
    return (
        f"Of its parts, calibration adds {points(fmean(added.values()), 2)} points to the queues on average "
        f"({_range(added)}) and {points(fmean(alone.values()), 2)} to random selection by data ({_range(alone)}); "
        f"averaging the classifier class by class adds {points(fmean(rows.values()), 2)} more ({_range(rows)}). With "
        "calibration in both and the plain mean, the queues and their matching are against random selection by data "
        f"{_tally(matched)}: {_range(matched)}."
    )


def _what_goes_with_accuracy(study: Study) -> str:
    """Say whether divergence or even use tells more about accuracy, over all ways to select and federations."""
    divergence, evenness, accuracy = [], [], []
    for cells in study.values():
        whole = {
            policy: (cell.fact("divergence"), cell.fact("jain_of_epochs"))
            for policy, cell in with_all_seeds(cells).items()
            if policy not in CALIBRATED  # they differ by more than their selection
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
        return ""
    with_divergence = float(np.corrcoef(divergence, accuracy)[0, 1])
    with_evenness = float(np.corrcoef(evenness, accuracy)[0, 1])
    closer = "even use of the data" if abs(with_evenness) > abs(with_divergence) else "divergence"
    return (
        "Policies against each other within a setting: accuracy has a correlation of "
        f"{signed(with_evenness, 2)} with Jain's index of epochs and of {signed(with_divergence, 2)} with divergence "
        f"(where a minus means: the lower, the better). {closer.capitalize()} tells more about it."
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
