"""The arithmetic behind the sentences of the paper's section VII-B, for the paper's own table and for ours.

accuracy    86.0 % is 3.9 points over FedAvg and 3.5 over the mean of the other fourteen rows (82.507 %)
rounds      147 to 82 % are 59 % fewer than the mean of the others, where a row that never gets there counts as
            500 (358.57), and 3.3 times fewer than FedAvg's 478
families    FedOpt is 1.7 to 2.9 points over FedAvg, CGAU 1.2, FedMMD 0.9; FedProx and FedFusion are at it or below
"""

from collections.abc import Mapping
from dataclasses import dataclass
from statistics import fmean

Numbers = tuple[float, float, float | None]
"""Accuracy, loss, rounds to the target (None: never)."""


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
