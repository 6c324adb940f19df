"""Many factories at once give what each would give alone."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedgs.errors import SolverError
from fedgs.selection import SelectionProblem, solve, solve_batch
from tests.selection.problems import paper_size, small_problems

SOLVERS = ["exact", "gbp-cs", "swap", "multistart", "random", "monte-carlo", "auto"]


@pytest.mark.parametrize("name", SOLVERS)
@settings(max_examples=30)
@given(problems=st.lists(small_problems(max_devices=9), max_size=7), threads=st.integers(1, 3))
def test_a_batch_is_its_problems_one_by_one(name: str, problems: list[SelectionProblem], threads: int) -> None:
    seeds = list(range(10, 10 + len(problems)))
    together = solve_batch(problems, name, seeds, threads=threads)
    for problem, seed, answer in zip(problems, seeds, together, strict=True):
        alone = solve(problem, name, seed)
        assert answer.chosen.tolist() == alone.chosen.tolist()
        assert (answer.solver, answer.proven) == (alone.solver, alone.proven)
        assert answer.divergence == pytest.approx(alone.divergence)
        assert answer.distance == pytest.approx(alone.distance)


def test_ten_factories_of_different_sizes() -> None:
    problems = [paper_size(seed, devices=20 + seed, pick=5 + seed % 3) for seed in range(10)]
    answers = solve_batch(problems)
    assert all(answer.proven for answer in answers)
    assert [len(answer.chosen) for answer in answers] == [problem.pick for problem in problems]


def test_one_seed_gives_every_factory_its_own_draws() -> None:
    answers = solve_batch([paper_size(0)] * 6, "random", seed=1)
    assert len({tuple(answer.chosen.tolist()) for answer in answers}) == 6
    again = solve_batch([paper_size(0)] * 6, "random", seed=1)
    assert [a.chosen.tolist() for a in again] == [a.chosen.tolist() for a in answers]


def test_options_reach_the_loop() -> None:
    assert not any(answer.proven for answer in solve_batch([paper_size(0)] * 2, "exact", budget=1))
    started = solve_batch([paper_size(0)], "gbp-cs", [7], start="random")[0]
    assert started.chosen.tolist() == solve(paper_size(0), "gbp-cs", 7, start="random").chosen.tolist()


def test_bad_calls() -> None:
    assert solve_batch([]) == []
    with pytest.raises(SolverError, match="2 seeds for 1 problems"):
        solve_batch([paper_size(0)], seed=[1, 2])
    with pytest.raises(SolverError, match="no solver is called"):
        solve_batch([], "nothing")
    with pytest.raises(SolverError, match="has no option"):
        solve_batch([paper_size(0)], "exact", speed=3)
    for wrong in ({"budget": -1}, {"starts": -1}, {"threads": -1}, {"threads": "2"}, {"seed": 1.5}, {"seed": True}):
        with pytest.raises(SolverError, match=next(iter(wrong))):
            solve_batch([paper_size(0)], **wrong)
    with pytest.raises(SolverError, match="takes a list"):
        solve_batch(paper_size(0))  # type: ignore[arg-type]


def test_a_forked_child_has_a_pool_of_its_own() -> None:
    import multiprocessing
    import warnings

    problems = [paper_size(seed) for seed in range(4)]
    expected = [a.chosen.tolist() for a in solve_batch(problems, threads=2)]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # forking a process that has threads is the point here
        with multiprocessing.get_context("fork").Pool(1) as pool:
            assert pool.apply_async(_solve_in_child, (problems,)).get(timeout=60) == expected


def _solve_in_child(problems: list[SelectionProblem]) -> list[list[int]]:
    return [answer.chosen.tolist() for answer in solve_batch(problems, threads=2)]
