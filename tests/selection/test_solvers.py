"""Every solver: valid answers on every kind of problem, the optimum where it is promised, the same from a seed."""

from itertools import combinations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedgs.errors import SolverError
from fedgs.selection import SOLVERS, SelectionProblem, solve
from tests.selection.problems import paper_size, score_of_choice, small_problems

FAST = [name for name in SOLVERS if name != "bayesian"]
HEEDS_THE_SCORE = [name for name in FAST if SOLVERS[name].ratio]


@pytest.mark.parametrize("name", FAST)
@settings(max_examples=60)
@given(problem=small_problems(), seed=st.integers(0, 2**40))
def test_answers_are_valid_and_repeatable(name: str, problem: SelectionProblem, seed: int) -> None:
    result = solve(problem, name, seed)
    assert result.chosen.dtype == np.int64
    assert len(result.chosen) == problem.pick
    assert np.all(np.diff(result.chosen) > 0)  # sorted, nobody twice
    assert result.chosen.size == 0 or (result.chosen[0] >= 0 and result.chosen[-1] < len(problem.counts))
    assert result.divergence == pytest.approx(problem.divergence(result.chosen))
    assert result.distance == pytest.approx(problem.distance(result.chosen))
    assert np.isfinite([result.divergence, result.distance]).all()
    assert solve(problem, name, seed).chosen.tolist() == result.chosen.tolist()


@settings(max_examples=2500)
@given(problem=small_problems(max_devices=9))
def test_exact_and_brute_equal_plain_enumeration(problem: SelectionProblem) -> None:
    choices = combinations(range(len(problem.counts)), problem.pick)
    best = min(score_of_choice(problem, np.array(choice, dtype=int)) for choice in choices)
    for name in ("exact", "brute"):
        result = solve(problem, name)
        assert result.proven
        assert score_of_choice(problem, result.chosen) == pytest.approx(best, rel=1e-9, abs=1e-6)


@settings(max_examples=150)
@given(problem=small_problems())
def test_nobody_beats_the_proven_optimum(problem: SelectionProblem) -> None:
    optimum = score_of_choice(problem, solve(problem, "exact").chosen)
    for name in FAST:
        assert score_of_choice(problem, solve(problem, name).chosen) >= optimum - 1e-6 - 1e-9 * abs(optimum)


@pytest.mark.parametrize("unequal", [False, True])
@pytest.mark.parametrize("seed", range(4))
def test_exact_equals_brute_at_full_size(seed: int, unequal: bool) -> None:
    problem = paper_size(seed, unequal=unequal)
    exact, brute = solve(problem, "exact"), solve(problem, "brute")
    assert exact.divergence == pytest.approx(brute.divergence, rel=1e-12)
    assert exact.proven
    assert brute.proven


def test_unequal_batches_with_a_bonus_are_proven_at_full_size() -> None:
    for seed in range(6):
        plain = paper_size(seed, unequal=True)
        bonus = np.random.default_rng(seed).uniform(0, 100, 33)
        problem = SelectionProblem(plain.counts, plain.target, plain.pick, plain.base, bonus)
        exact, brute = solve(problem, "exact"), solve(problem, "brute")
        assert exact.proven
        assert score_of_choice(problem, exact.chosen) == pytest.approx(score_of_choice(problem, brute.chosen), rel=1e-9)


def test_a_bonus_beyond_all_measure_is_answered_but_not_proven() -> None:
    plain = paper_size(0, unequal=True)
    problem = SelectionProblem(plain.counts, plain.target, plain.pick, plain.base, np.linspace(0, 1e22, 33))
    result = solve(problem, "exact")
    assert result.chosen.tolist() == list(range(25, 33))
    assert not result.proven


def test_the_solvers_keep_their_order_of_quality() -> None:
    problems = [paper_size(seed) for seed in range(30)]
    mean = {name: np.mean([solve(p, name).divergence for p in problems]) for name in FAST if name != "brute"}
    assert mean["exact"] <= mean["multistart"] <= mean["swap"] < mean["gbp-cs"] < mean["random"]
    assert mean["multistart"] <= 1.003 * mean["exact"]
    assert mean["swap"] <= 1.06 * mean["exact"]
    assert mean["genetic"] < mean["monte-carlo"] < mean["random"]


def test_unequal_batches_are_matched_by_the_ratio_not_by_their_mean() -> None:
    problems = [paper_size(seed, unequal=True) for seed in range(20)]
    ratio = np.mean([solve(p, "swap").divergence for p in problems])
    linear = np.mean([solve(p, "gbp-cs").divergence for p in problems])
    assert ratio < 0.9 * linear


def test_a_bonus_draws_a_device_in_and_a_penalty_keeps_it_out() -> None:
    plain = paper_size(3)
    left_out = int(np.setdiff1d(np.arange(33), solve(plain, "exact").chosen)[0])
    taken = int(solve(plain, "exact").chosen[0])
    bonus = np.zeros(33)
    bonus[left_out], bonus[taken] = 1e5, -1e5
    pulled = SelectionProblem(plain.counts, plain.target, plain.pick, plain.base, bonus)
    for name in (name for name in FAST if SOLVERS[name].bonus and name not in ("monte-carlo", "genetic")):
        chosen = solve(pulled, name).chosen
        assert left_out in chosen, name
        assert taken not in chosen, name


def test_a_tiny_budget_gives_the_incumbent_without_proof() -> None:
    problem = paper_size(0)
    result = solve(problem, "exact", budget=3)
    assert not result.proven
    assert len(result.chosen) == 8
    assert result.divergence <= 1.05 * solve(problem, "exact").divergence


def test_auto_goes_by_size() -> None:
    for devices, expected in ((10, "exact"), (60, "exact"), (61, "multistart"), (200, "multistart"), (201, "large")):
        assert solve(paper_size(0, devices=devices, pick=3), "auto").solver == expected


def test_traces_show_time_going_on_and_end_at_the_answer() -> None:
    problem = paper_size(1)
    for name in FAST:
        result = solve(problem, name, trace=True)
        assert result.trace
        seconds = [second for second, _ in result.trace]
        assert seconds == sorted(seconds)
        assert result.trace[-1][1] == pytest.approx(result.divergence)
        assert solve(problem, name).trace is None
        assert result.chosen.tolist() == solve(problem, name).chosen.tolist()


def test_large_needs_no_gram_matrix_and_beats_gbp_cs_by_far() -> None:
    problem = paper_size(5, devices=3000, pick=60)
    large, paper = solve(problem, "large"), solve(problem, "gbp-cs")
    assert large.divergence <= 0.5 * paper.divergence
    assert solve(problem, "large", repairs=0).divergence >= large.divergence
    assert len(solve(paper_size(5, devices=900, pick=700), "large", repairs=2).chosen) == 700


def test_large_stops_at_its_time_limit() -> None:
    result = solve(paper_size(5, devices=800, pick=50), "large", repairs=10**9, seconds=0.2)
    assert result.seconds < 5


def test_bayesian_runs_with_the_library_of_that_name() -> None:
    pytest.importorskip("bayes_opt")
    problem = paper_size(2, devices=12, classes=6, pick=4)
    result = solve(problem, "bayesian", initial=3, iterations=3, trace=True)
    assert len(result.chosen) == 4
    assert solve(problem, "bayesian", initial=3, iterations=3).chosen.tolist() == result.chosen.tolist()


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("exakt", {}, "no solver is called 'exakt'; did you mean 'exact'"),
        ("zzz", {}, "there are random, random-by-data, monte-carlo"),
        ("exact", {"bugdet": 3}, "exact has no option 'bugdet'; did you mean 'budget'"),
        ("swap", {"starts": 3}, "swap has no option 'starts'; it takes none at all"),
        ("exact", {"budget": -1}, "budget=-1; give a whole number of 0 or more"),
        ("exact", {"budget": "a"}, "budget='a'"),
        ("exact", {"budget": True}, "budget=True"),
        ("exact", {"budget": 10**30}, "budget="),
        ("exact", {"starts": 1.5}, "starts=1.5"),
        ("gbp-cs", {"start": "middle"}, "start='middle'; it is one of mpinv, zero, random"),
        ("multistart", {"starts": -1}, "starts=-1"),
        ("monte-carlo", {"draws": 0}, "draws=0; give a whole number of 1 or more"),
        ("genetic", {"population": 1}, "population=1"),
        ("genetic", {"mutation": 2}, "mutation=2; give a number from 0 to 1"),
        ("large", {"repairs": -1}, "repairs=-1"),
        ("large", {"seconds": 0}, "seconds=0"),
        ("bayesian", {"initial": 0}, "initial=0"),
        (None, {}, "no solver is called None"),
    ],
)
def test_wrong_names_and_options_are_typed_errors(name: str, options: dict, message: str) -> None:
    with pytest.raises(SolverError, match=message):
        solve(paper_size(0, devices=10, pick=3), name, **options)


def test_brute_refuses_what_would_not_end() -> None:
    with pytest.raises(SolverError, match="use solver='exact'"):
        solve(paper_size(0, devices=80, pick=40), "brute")


def test_a_seed_must_be_a_number() -> None:
    with pytest.raises(SolverError, match="seed must be a whole number"):
        solve(paper_size(0), "random", seed="a")  # type: ignore[arg-type]


def test_a_solver_of_ones_own_may_return_what_solve_returned() -> None:
    problem = SelectionProblem(np.eye(4) + 1, np.full(4, 0.25), 2)
    inner = solve(problem, "exact")
    found = solve(problem, lambda given, generator: solve(given, "exact"))
    np.testing.assert_array_equal(found.chosen, inner.chosen)
