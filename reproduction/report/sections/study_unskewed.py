"""What skew costs each policy of the selection study, and how much of it ours wins back."""

from collections.abc import Mapping
from statistics import fmean

from reproduction.experiments.selection_study import title_of
from reproduction.experiments.study_bar import BETTER_BY, OURS, PUBLISHED, WITHIN, Verdict, difference
from reproduction.experiments.study_results import Cell, Study
from reproduction.report.markdown import points, share, table
from reproduction.report.sections.study_conclusions import extremes
from reproduction.report.sections.study_tables import FEWER

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
    published, ours = costs(study, unskewed, PUBLISHED), costs(study, unskewed, OURS)
    back = {key: 1 - ours[key] / lost for key, lost in published.items() if key in ours and -lost > WITHIN}
    if back:
        least, most = min(back, key=lambda key: back[key]), max(back, key=lambda key: back[key])
        sentences.append(
            f"Of what GBP-CS is below that, coverage wins back {share(back[least])} ({title_of(least)}) to "
            f"{share(back[most])} ({title_of(most)})."
        )
    for key, verdict in decided.items():
        if verdict.beats_published is False and key in published:
            by_seed = [-gap for gap in difference(study[key][PUBLISHED], unskewed[key]).values()]
            gap = fmean(by_seed)
            enough, side = gap >= BETTER_BY, "above" if gap >= 0 else "below"
            sentences.append(
                f"{title_of(key)}: random selection without skew is {abs(100 * gap):.2f} points {side} GBP-CS with it "
                f"(by seed: {', '.join(points(gap, 2) for gap in by_seed)}); the bar asks for "
                f"{points(BETTER_BY)}, which is {'less' if enough else 'more'}."
            )
    return sentences
