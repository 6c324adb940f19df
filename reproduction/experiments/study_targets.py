"""The targets of the selection study: what the preset ``coverage`` has to reach.

    1. on every federation within 0.15 points of the best of the other policies,
    2. at least 0.5 points better than GBP-CS as published where α ≤ 0.1,

both of the mean over seeds. A policy is compared with another on the seeds both have.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

from reproduction.experiments.run_group import by_seed
from reproduction.experiments.selection_study import DEALS
from reproduction.experiments.study_results import Study

OURS, PUBLISHED = "coverage", "gbp-cs"
OTHERS = ("random", "random-by-data", PUBLISHED, "exact")
"""What ours is held against: ways to select as they are, without what ours adds to selecting."""
WITHIN, BETTER_BY = 0.0015, 0.005


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
