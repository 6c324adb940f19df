"""What skew costs each policy of the selection study, and how much of it ours wins back."""

from collections.abc import Mapping
from statistics import fmean

from fedgs.experiments.selection_study import Cell, Study, title_of
from fedgs.experiments.study_bar import BETTER_BY, OURS, PUBLISHED, Verdict, difference
from fedgs.report.markdown import points, table
from fedgs.report.sections.study_conclusions import extremes
from fedgs.report.sections.study_tables import FEWER

SHOWN = ("random-by-data", PUBLISHED, OURS)


def costs(study: Study, unskewed: Mapping[str, Cell], policy: str) -> dict[str, float]:
    """Return how far a policy is from what there is without skew, by federation, on the seeds both have."""
    return {
        key: fmean(by_seed.values())
        for key, cells in study.items()
        if key in unskewed and policy in cells and (by_seed := difference(cells[policy], unskewed[key]))
    }


def write(study: Study, unskewed: Mapping[str, Cell]) -> list[str]:
    """Write the table of what skew costs."""
    known = {policy: found for policy in SHOWN if (found := costs(study, unskewed, policy))}
    keys = [key for key in study if any(key in found for found in known.values())]
    if not keys:
        return []
    most = max(len(unskewed[key].seeds) for key in keys)
    lines = [
        [
            title_of(key),
            f"{100 * unskewed[key].mean:.2f}" + ("" if len(unskewed[key].seeds) == most else FEWER),
            *(points(known[policy].get(key), 2) for policy in known),
        ]
        for key in keys
    ]
    return [
        "What skew costs: the same devices, factories and test images with the train images dealt out at random, and "
        "random selection by data, in per cent; beside it how far the policies, which have the skew, are from that, in "
        "points, on the seeds both have.",
        table(["federation", "without skew", *known], lines),
    ]


def conclude(study: Study, unskewed: Mapping[str, Cell], decided: Mapping[str, Verdict]) -> list[str]:
    """Say what skew costs, and whether the bar asks for more than that where it is missed."""
    told = [f"`{policy}` {extremes(found)}" for policy in SHOWN if (found := costs(study, unskewed, policy))]
    if not told:
        return []
    sentences = [f"Against the same data without skew (table below): {'; '.join(told)}."]
    published = costs(study, unskewed, PUBLISHED)
    for key, verdict in decided.items():
        if verdict.beats_published is False and key in published:
            enough = -published[key] >= BETTER_BY
            sentences.append(
                f"{title_of(key)}: GBP-CS is {points(published[key], 2)} points from what random selection has without "
                f"skew; the bar asks for {points(BETTER_BY)} over GBP-CS, "
                + ("which is less." if enough else "which is more.")
            )
    return sentences
