"""The problem: hand-worked numbers and everything a caller can get wrong."""

import pickle

import numpy as np
import pytest

from fedgs.errors import ProblemError
from fedgs.selection import SelectionProblem, solve

# The worked example of the paper's checklist: F=2, n=4, L=3, one pre-sampled device.
COUNTS = [[4, 0], [3, 1], [0, 4], [1, 3]]


def worked_example() -> SelectionProblem:
    return SelectionProblem(COUNTS, [0.5, 0.5], 2, base=[4, 0])


def test_wanted_counts_divergence_and_distance_by_hand() -> None:
    problem = worked_example()
    assert problem.wanted.tolist() == [2.0, 6.0]  # 12·(½, ½) − (4, 0)
    assert problem.distance([2, 3]) == pytest.approx(np.sqrt(2))  # (1, 7) against (2, 6)
    assert problem.divergence([1, 2]) == pytest.approx(np.sqrt(2) / 12)  # (7, 5)/12 against (½, ½)
    assert problem.equal_sizes


def test_divergence_is_normalised_by_the_samples_really_there() -> None:
    problem = SelectionProblem([[8, 0], [0, 2], [1, 1]], [0.5, 0.5], 2)
    assert not problem.equal_sizes
    assert problem.divergence([0, 1]) == pytest.approx(np.hypot(0.3, 0.3))  # (0.8, 0.2)
    # y uses the mean batch size 4: 8·(½, ½) = (4, 4); the sum is (8, 2)
    assert problem.distance([0, 1]) == pytest.approx(np.hypot(4, 2))


def test_a_float32_target_is_accepted_and_scaled_to_one() -> None:
    target = np.full(62, 1 / 62, dtype=np.float32)
    problem = SelectionProblem(np.ones((3, 62)), target, 1)
    assert problem.target.sum() == pytest.approx(1.0, abs=1e-15)


def test_the_caller_keeps_its_arrays_and_cannot_change_the_problem() -> None:
    counts = np.array(COUNTS, dtype=float)
    problem = SelectionProblem(counts, [0.5, 0.5], 2)
    counts[0, 0] = 99
    assert problem.counts[0, 0] == 4
    with pytest.raises(ValueError, match="read-only"):
        problem.counts[0, 0] = 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (([[1, np.nan]], [0.5, 0.5], 1), r"counts\[0, 1\] is not a finite number"),
        (([[1, np.inf]], [0.5, 0.5], 1), "not a finite number"),
        (([[1, -2]], [0.5, 0.5], 1), r"counts\[0, 1\] is negative: -2"),
        (([1, 2], [0.5, 0.5], 1), "counts must have 2 dimension"),
        (([["a", "b"]], [0.5, 0.5], 1), "array of numbers"),
        (([[1, 2], [3]], [0.5, 0.5], 1), "array of numbers"),
        ((np.zeros((0, 2)), [0.5, 0.5], 0), "no rows"),
        ((np.zeros((2, 0)), [], 0), "no columns"),
        (([[1, 2]], [0.5, 0.4], 1), "sum to 0.9"),
        (([[1, 2]], [1.5, -0.5], 1), "target.* is negative"),
        (([[1, 2]], [1.0], 1), "target has 1 entries; one per class would be 2"),
        (([[1, 2]], [[0.5, 0.5]], 1), "target must have 1 dimension"),
        (([[1, 2]], [0.5, 0.5], -1), "pick=-1 is impossible"),
        (([[1, 2]], [0.5, 0.5], 2), "pick=2 is impossible with 1 device"),
        (([[1, 2]], [0.5, 0.5], 1.0), "whole number"),
        (([[1, 2]], [0.5, 0.5], True), "whole number"),
        (([[1, 2]], [0.5, 0.5], 1, [1]), "base has 1 entries"),
        (([[1, 2]], [0.5, 0.5], 1, [1, -1]), "base.* is negative"),
        (([[1, 2]], [0.5, 0.5], 1, None, [1, 2]), "bonus has 2 entries; one per device would be 1"),
        (([[1, 2]], [0.5, 0.5], 1, None, [np.nan]), "bonus.* is not a finite number"),
        (([[1e200, 2]], [0.5, 0.5], 1), "counts goes up to 1e.200, whose square is out of range"),
        (([[1e-200, 0]], [0.5, 0.5], 1), "out of range"),
        (([[10**400, 1]], [0.5, 0.5], 1), "array of numbers"),
        (([[1 + 2j, 1]], [0.5, 0.5], 1), "masked or complex"),
        ((np.ma.masked_array([[1.0, 1.0]], [[True, False]]), [0.5, 0.5], 1), "masked or complex"),
    ],
)
def test_bad_input_is_a_typed_error_that_says_what(arguments: tuple, message: str) -> None:
    with pytest.raises(ProblemError, match=message):
        SelectionProblem(*arguments)


def test_empty_batches_have_a_defined_answer() -> None:
    nothing = solve(SelectionProblem(np.zeros((4, 2)), [0.6, 0.4], 2), "exact")
    assert len(nothing.chosen) == 2
    assert nothing.divergence == pytest.approx(np.sqrt(2))  # the largest there is
    # One empty batch beside two that are far off: the empty one is never the better choice.
    for name in ("exact", "brute", "swap", "multistart", "large", "monte-carlo", "genetic"):
        assert solve(SelectionProblem([[0, 0], [4, 0], [3, 1]], [0.1, 0.9], 1), name).chosen.tolist() == [2]


@pytest.mark.parametrize("choice", [[4], [-1], [0, 0], [0.5], [[0]], [True, False, False, False]])
def test_a_choice_must_name_different_devices(choice: list) -> None:
    with pytest.raises(ProblemError, match="a choice"):
        worked_example().divergence(choice)


def test_a_problem_cannot_be_changed_and_travels_whole() -> None:
    problem = worked_example()
    with pytest.raises(AttributeError, match="cannot assign"):
        problem.pick = 3
    copied = pickle.loads(pickle.dumps(problem))
    assert copied.wanted.tolist() == problem.wanted.tolist()
    with pytest.raises(ValueError, match="read-only"):
        copied.counts[0, 0] = 1


def test_of_matrix_measures_the_plain_distance() -> None:
    problem = SelectionProblem.of_matrix([[1.5, -2.0], [0.0, 3.0]], [1.0, 1.0], 1)
    assert problem.distance([0]) == pytest.approx(np.hypot(0.5, 1.0))
    assert problem.divergence([0]) == problem.distance([0])
