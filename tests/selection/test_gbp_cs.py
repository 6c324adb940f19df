"""GBP-CS against the worked example, against the pseudo-inverse, and on ties that once ran for ever."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedgs.compiled import running
from fedgs.selection import SelectionProblem, solve
from fedgs.selection.gbp_cs import largest_entries, least_squares, permute
from fedgs.selection.problem import NO_LIMIT
from tests.selection.problems import paper_size
from tests.selection.test_problem import worked_example


def test_the_moore_penrose_start_by_hand() -> None:
    problem = worked_example()
    assert least_squares(problem.parts.by_class, problem.wanted) == pytest.approx([0.1, 0.3, 0.9, 0.7])
    result = solve(problem, "gbp-cs")
    assert result.chosen.tolist() == [2, 3]
    assert result.distance == pytest.approx(np.sqrt(2))


def test_from_a_bad_start_one_swap_by_hand() -> None:
    problem = worked_example()
    chosen = np.array([0, 1])
    assert permute(problem.parts.by_class, problem.wanted, problem.parts.bonus, chosen, NO_LIMIT) == 1
    assert chosen.tolist() == [1, 2]  # device 0 out, device 2 in; the next swap would only tie
    assert problem.distance(chosen) == pytest.approx(np.sqrt(2))


def test_the_zero_start_takes_the_smallest_gradient_first() -> None:
    # After the base (4, 0) the residual against 4·(½, ½) is (2, −2): gradients 8, 4, −8, −4, so device 2 first.
    # Then (4, 4) is balanced: all gradients are 0 and the lowest index, device 0, comes in.
    result = solve(worked_example(), "gbp-cs", start="zero", trace=True)
    divergences = [divergence for _, divergence in result.trace or []]
    assert divergences[0] == pytest.approx(np.hypot(0.5, 0.5))
    assert divergences[1] == pytest.approx(0.0)
    assert divergences[2] == pytest.approx(np.hypot(1 / 6, 1 / 6))  # (8, 4)/12
    assert result.chosen.tolist() in ([1, 2], [2, 3])


@settings(max_examples=150)
@given(
    st.integers(1, 12),
    st.integers(1, 12),
    st.sampled_from(["full", "copies", "empty-class", "zero"]),
    st.integers(0, 2**32),
)
def test_least_squares_is_the_pseudo_inverse(devices: int, classes: int, kind: str, seed: int) -> None:
    random = np.random.default_rng(seed)
    counts = random.integers(0, 9, (devices, classes)).astype(float)
    if kind == "copies":
        counts[:] = counts[random.integers(devices, size=devices)]
    if kind == "empty-class":
        counts[:, random.integers(classes)] = 0
    if kind == "zero":
        counts[:] = 0
    wanted = random.normal(0, 10, classes)
    for compiled in (False, True):
        with running(compiled):
            found = least_squares(counts.T.copy(), wanted)
        assert found == pytest.approx(np.linalg.pinv(counts.T) @ wanted, abs=1e-6)


def test_ties_go_to_the_lowest_index() -> None:
    for compiled in (False, True):
        with running(compiled):
            assert largest_entries(np.array([1.0, 3.0, 3.0 + 1e-13, 3.0, 2.0]), 2).tolist() == [1, 2]
            assert largest_entries(np.zeros(4), 2).tolist() == [0, 1]


@pytest.mark.parametrize("start", ["mpinv", "zero", "random"])
def test_one_class_batches_stop(start: str) -> None:
    """With one-class batches nearly every swap is a tie; "until d > d_before" would never end."""
    random = np.random.default_rng(0)
    for seed in range(100):
        counts = 32 * np.eye(5)[random.integers(5, size=12)]
        problem = SelectionProblem(counts, random.dirichlet(np.ones(5)), 4)
        assert len(solve(problem, "gbp-cs", seed, start=start).chosen) == 4


def test_every_swap_lowers_the_distance() -> None:
    for seed in range(20):
        trace = solve(paper_size(seed), "gbp-cs", seed, start="random", trace=True).trace or []
        divergences = [divergence for _, divergence in trace]
        assert all(later < earlier for earlier, later in pairwise(divergences))


def test_initialisers_end_in_the_papers_order() -> None:
    problems = [paper_size(seed) for seed in range(60)]
    mean = {
        s: np.mean([solve(p, "gbp-cs", 1, start=s).divergence for p in problems]) for s in ("mpinv", "zero", "random")
    }
    assert mean["mpinv"] < mean["random"]
    assert mean["zero"] < mean["random"]
