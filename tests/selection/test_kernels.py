"""The kernels against the definition of the score, and against plain numpy where they have an oracle."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedgs.selection import SelectionProblem, draws, exact, gbp_cs, large, quadratic, swap
from fedgs.selection.problem import NO_LIMIT
from tests.selection.problems import score_of_choice, small_problems

problems = small_problems().filter(lambda problem: 0 < problem.pick < len(problem.counts))


@settings(max_examples=150)
@given(problems)
def test_both_forms_give_the_score(problem: SelectionProblem) -> None:
    chosen = np.arange(problem.pick)
    expected = pytest.approx(score_of_choice(problem, chosen), rel=1e-9, abs=1e-6)
    assert quadratic.score(quadratic.gram_form(problem.parts), chosen) == expected
    assert quadratic.score_rows(quadratic.as_rows(problem), chosen) == expected
    inside = np.arange(len(problem.counts)) < problem.pick
    assert quadratic.score_many(quadratic.as_rows(problem), inside[None])[0] == expected
    total = problem.counts[chosen].sum(axis=0) + problem.base
    if total.sum():
        assert problem.divergence(chosen) == pytest.approx(np.linalg.norm(total / total.sum() - problem.target))
    assert problem.distance(chosen) == pytest.approx(np.linalg.norm(total - problem.base - problem.wanted), abs=1e-9)


@settings(max_examples=100)
@given(problems)
def test_a_descent_takes_the_best_swap_until_none_improves(problem: SelectionProblem) -> None:
    form = quadratic.gram_form(problem.parts)
    for chosen in (np.arange(problem.pick), swap.greedy(form)):
        swaps = 1
        while swaps:
            others = np.setdiff1d(np.arange(len(problem.counts)), chosen)
            swapped = [np.append(np.delete(chosen, out), into) for out in range(problem.pick) for into in others]
            best = min(score_of_choice(problem, choice) for choice in (chosen, *swapped))
            score, swaps = swap.descend(form, chosen, 1)
            assert score == pytest.approx(best, rel=1e-9, abs=1e-6)
            assert score == pytest.approx(score_of_choice(problem, chosen), rel=1e-9, abs=1e-6)


@settings(max_examples=150)
@given(problems)
def test_the_relaxation_is_below_zero_for_every_better_choice(problem: SelectionProblem) -> None:
    """‖Rx − w‖² + K < 0 wherever x beats the bar; without a bonus, and for equal batches, nowhere else."""
    form = quadratic.gram_form(problem.parts)
    tree_order = np.random.default_rng(0)
    bar = quadratic.score(form, np.arange(problem.pick))
    tree = exact.relax(form, bar, float(form.bonus[: form.pick].mean()))
    scale = form.tolerance * 1e4 + 1e-6
    for _ in range(5):
        chosen = np.sort(tree_order.choice(len(problem.counts), problem.pick, replace=False))
        x = np.isin(tree.order, chosen).astype(float)
        bound = np.sum((tree.factor.T @ x - tree.offset) ** 2) + tree.constant
        better_by = bar - quadratic.score(form, chosen)
        if better_by > scale:
            assert bound < scale
        if better_by < -scale and (not form.ratio or not problem.bonus.any()):
            assert bound > -scale


@settings(max_examples=150)
@given(problems)
def test_gbp_cs_permutes_as_its_oracle_does(problem: SelectionProblem) -> None:
    a, b = np.arange(problem.pick), np.arange(problem.pick)
    arguments = (problem.counts, problem.wanted, problem.bonus)
    assert gbp_cs.permute(*arguments, a, NO_LIMIT) == gbp_cs.permute_oracle(*arguments, b, NO_LIMIT)
    assert a.tolist() == b.tolist()


@given(st.integers(0, 2**64 - 1), st.integers(1, 50), st.data())
def test_random_draws(key: int, devices: int, data: st.DataObject) -> None:
    pick = data.draw(st.integers(0, devices))
    word = np.uint64(key)
    assert int(draws.mix(word)) == draws.mix_oracle(word)
    assert int(draws.start_key(word, 3, pick)) == draws.start_key_oracle(word, 3, pick)
    drawn = draws.draw_subset(devices, pick, word)
    assert len(set(drawn.tolist())) == pick
    if 0 < pick < devices:
        kicked = drawn.copy()
        large.kick(devices, kicked, word)
        assert len(set(kicked.tolist())) == pick
        assert len(set(kicked.tolist()) - set(drawn.tolist())) == min(large.KICKED, pick, devices - pick)


def test_splitmix64_gives_its_published_first_words() -> None:
    # The reference generator, seeded with 0, adds the golden gamma once per word: our counters 1, 2, 3.
    words = [int(draws.mix(np.uint64(counter))) for counter in (1, 2, 3)]
    assert [f"{word:016x}" for word in words] == ["e220a8397b1dcdaf", "6e789e6aa1b965f4", "06c45d188009454f"]


def test_draws_are_uniform() -> None:
    times = np.zeros(7)
    for key in range(7000):
        times[draws.draw_subset(7, 3, np.uint64(key * 7919))] += 1
    assert times == pytest.approx(3000, rel=0.07)
