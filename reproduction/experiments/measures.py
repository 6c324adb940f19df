"""What the curve of a run comes to: means of late tests, accuracy at a round, the round of a target.

One test is noisy, so runs are judged by the mean of their late tests. The test before
the first round never counts.
"""

from collections.abc import Iterable
from typing import Any

import numpy as np

from reproduction.experiments.jobs import Result

LEARNT = 0.2
"""An accuracy that no constant answer has: below, up and down mean nothing."""


def last_ten(result: Result) -> float:
    """Return the mean accuracy of the last ten tests."""
    return float(np.mean(result["curve"]["accuracy"][1:][-10:]))


def last_quarter(result: Result) -> float:
    """Return the mean accuracy of the tests in the last quarter of a run's rounds."""
    rounds = result["settings"]["training"]["rounds"]
    return float(np.mean([accuracy for number, accuracy in _points(result, "accuracy") if number > 0.75 * rounds]))


def late_tests(result: Result) -> int:
    """Return of how many tests that is the mean."""
    rounds = result["settings"]["training"]["rounds"]
    return sum(number > 0.75 * rounds for number in result["curve"]["round"])


def at_round(result: Result, number: int, key: str = "accuracy") -> float | None:
    """Return what was measured in this round; None if it was not tested then."""
    return next((value for tested, value in _points(result, key) if tested == number), None)


def round_of(result: Result, target: float) -> int | None:
    """Return the first tested round at or above a target; None: never."""
    return next((number for number, accuracy in _points(result, "accuracy") if accuracy >= target), None)


def collapse(result: Result) -> tuple[float, float] | None:
    """Return the accuracies before and after the first drop below half of the highest so far; None: no such drop."""
    highest = 0.0
    for _, accuracy in _points(result, "accuracy"):
        if accuracy < 0.5 * highest and highest > LEARNT:
            return highest, accuracy
        highest = max(highest, accuracy)
    return None


def mean_of(values: Iterable[float | None]) -> float | None:
    """Return the mean of what is there; None if nothing is."""
    known = [value for value in values if value is not None]
    return float(np.mean(known)) if known else None


def _points(result: Result, key: str) -> list[tuple[int, Any]]:
    return [point for point in zip(result["curve"]["round"], result["curve"][key], strict=True) if point[0] > 0]
