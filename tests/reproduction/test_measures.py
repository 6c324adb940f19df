"""What a curve comes to, by hand."""

import pytest

from reproduction.experiments.jobs import Result
from reproduction.experiments.runs import (
    at_round,
    collapse,
    last_quarter,
    last_ten,
    late_tests,
    mean_of,
    round_of,
)


def curve(rounds: list[int], accuracy: list[float]) -> Result:
    return {"curve": {"round": rounds, "accuracy": accuracy}, "settings": {"training": {"rounds": rounds[-1]}}}


def test_late_tests_leave_the_untrained_model_out() -> None:
    few = curve([0, 10, 20], [0.0, 0.4, 0.6])
    assert last_ten(few) == pytest.approx(0.5)
    many = curve(list(range(0, 81, 2)), [number / 100 for number in range(0, 81, 2)])
    assert last_ten(many) == pytest.approx(0.71)  # rounds 62 to 80
    assert last_quarter(many) == last_ten(many)
    assert late_tests(many) == 10
    long_rounds = curve(list(range(21)), [number / 100 for number in range(21)])
    assert last_quarter(long_rounds) == pytest.approx(0.18)  # rounds 16 to 20


def test_rounds_and_targets() -> None:
    run = curve([0, 5, 10], [0.9, 0.3, 0.8])
    assert at_round(run, 10) == 0.8
    assert at_round(run, 7) is None
    assert round_of(run, 0.8) == 10  # not round 0
    assert round_of(run, 0.85) is None
    assert mean_of([None, 1.0, 2.0]) == 1.5
    assert mean_of([None]) is None


def test_a_fall_is_a_loss_of_more_than_half() -> None:
    assert collapse(curve([0, 1, 2, 3, 4], [0.9, 0.3, 0.8, 0.41, 0.7])) is None  # round 0 never counts
    assert collapse(curve([0, 1, 2, 3, 4], [0.0, 0.8, 0.39, 0.8, 0.1])) == (0.8, 0.39)
    assert collapse(curve([0, 1, 2], [0.0, 0.06, 0.02])) is None  # nothing was learnt that could be lost
