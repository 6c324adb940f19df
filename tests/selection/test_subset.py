"""The general face: any real matrix."""

from itertools import combinations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedgs.errors import ProblemError
from fedgs.selection import SOLVERS, choose_subset


def test_by_hand() -> None:
    # Columns (3, −1), (1, 1), (−2, 4), (0, 2); two of them should sum to (1, 3): the second and fourth do.
    result = choose_subset([[3, 1, -2, 0], [-1, 1, 4, 2]], [1, 3], 2)
    assert result.chosen.tolist() in ([1, 3], [0, 2])  # (3, −1) + (−2, 4) = (1, 3) as well
    assert result.distance == pytest.approx(0)
    assert result.proven


@settings(max_examples=150)
@given(st.integers(1, 5), st.integers(1, 9), st.data())
def test_equals_enumeration_for_any_real_matrix(height: int, width: int, data: st.DataObject) -> None:
    pick = data.draw(st.integers(0, width))
    random = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    matrix, target = random.normal(0, 3, (height, width)), random.normal(0, 5, height)
    best = min(np.linalg.norm(matrix[:, list(c)].sum(axis=1) - target) for c in combinations(range(width), pick))
    result = choose_subset(matrix, target, pick)
    assert result.distance == pytest.approx(best, abs=1e-6)
    assert result.distance == pytest.approx(np.linalg.norm(matrix[:, result.chosen].sum(axis=1) - target))


@settings(max_examples=100)
@given(st.integers(0, 2**32), st.sampled_from([1e3, 1e6, 1e8]))
def test_a_common_offset_costs_no_exactness(seed: int, offset: float) -> None:
    random = np.random.default_rng(seed)
    small, wanted = random.integers(0, 10, (3, 8)), random.integers(0, 40, 3)
    result = choose_subset(small + offset, wanted + 4 * offset, 4)
    best = min(np.linalg.norm(small[:, list(c)].sum(axis=1) - wanted) for c in combinations(range(8), 4))
    assert result.proven
    assert result.distance == pytest.approx(best, abs=1e-6)


def test_an_outlier_that_drowns_the_others_leaves_the_proof_open() -> None:
    random = np.random.default_rng(0)
    for _ in range(20):
        matrix = random.normal(0, 1, (4, 9))
        matrix[:, 0] *= 1e7
        target = random.normal(0, 2, 4)
        result = choose_subset(matrix, target, 4)
        best = min(np.linalg.norm(matrix[:, list(c)].sum(axis=1) - target) for c in combinations(range(9), 4))
        assert not result.proven or result.distance == pytest.approx(best, rel=1e-6)


@pytest.mark.parametrize("name", [name for name in SOLVERS if name != "bayesian"])
def test_every_solver_takes_it(name: str) -> None:
    random = np.random.default_rng(4)
    matrix, target = random.normal(0, 1, (4, 15)), np.zeros(4)
    optimum = choose_subset(matrix, target, 6).distance
    result = choose_subset(matrix, target, 6, solver=name)
    assert len(result.chosen) == 6
    assert result.distance >= optimum - 1e-9


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (([[1.0, np.nan]], [1.0], 1), "matrix.* is not a finite number"),
        (([[1.0, 2.0]], [1.0, 2.0], 1), "target has 2 entries; one per row of the matrix would be 1"),
        (([[1.0, 2.0]], [1.0], 3), "pick=3 is impossible with 2 column"),
        ((np.zeros((2, 0)), [1.0, 2.0], 0), "no columns"),
        (([1.0, 2.0], [1.0], 1), "matrix must have 2 dimension"),
    ],
)
def test_bad_input(arguments: tuple, message: str) -> None:
    with pytest.raises(ProblemError, match=message):
        choose_subset(*arguments)
