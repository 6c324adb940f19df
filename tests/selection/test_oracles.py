"""Every compiled kernel against its plain numpy oracle, on the same input."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedgs.compiled import COMPILED
from fedgs.selection import SelectionProblem, brute, draws, exact, gbp_cs, large, quadratic, rows, swap
from fedgs.selection.problem import NO_LIMIT, measure, measure_oracle
from tests.selection.problems import small_problems

pytestmark = pytest.mark.skipif(not COMPILED, reason="without numba the oracles are all there is")

problems = small_problems().filter(lambda problem: 0 < problem.pick < len(problem.counts))


def forms(problem: SelectionProblem) -> tuple[quadratic.Quadratic, quadratic.Quadratic]:
    return quadratic.gram_form(problem.parts), quadratic.gram_form_oracle(problem.parts)


def first_choice(problem: SelectionProblem) -> np.ndarray:
    return np.arange(problem.pick)


@settings(max_examples=150)
@given(problems)
def test_gram_form_and_scores(problem: SelectionProblem) -> None:
    compiled, plain = forms(problem)
    for name in compiled._fields:
        assert getattr(compiled, name) == pytest.approx(getattr(plain, name), rel=1e-9, abs=1e-9), name
    chosen = first_choice(problem)
    expected = quadratic.score_oracle(plain, chosen)
    assert quadratic.score(compiled, chosen) == pytest.approx(expected, rel=1e-9, abs=1e-7)
    assert rows.score_rows(rows.as_rows(problem), chosen) == pytest.approx(expected, rel=1e-9, abs=1e-7)
    assert rows.score_rows_oracle(rows.as_rows(problem), chosen) == pytest.approx(expected, rel=1e-9, abs=1e-7)
    assert measure(problem.parts, chosen) == pytest.approx(measure_oracle(problem.parts, chosen), abs=1e-9)


@settings(max_examples=150)
@given(problems)
def test_descents(problem: SelectionProblem) -> None:
    """Step by step: rounding may break a tie between two equally good swaps differently, and ways part from there."""
    form, _ = forms(problem)
    chosen, swaps = first_choice(problem), 1
    while swaps:
        other = chosen.copy()
        score_a, swaps = swap.descend(form, chosen, 1)
        score_b, _ = swap.descend_oracle(form, other, 1)
        assert score_a == pytest.approx(score_b, rel=1e-9, abs=1e-6)
        assert score_a == pytest.approx(quadratic.score(form, chosen), rel=1e-9, abs=1e-6)
        assert score_b == pytest.approx(quadratic.score(form, other), rel=1e-9, abs=1e-6)
    for descend in (swap.descend, swap.descend_oracle):
        end = first_choice(problem)
        score, _ = descend(form, end, NO_LIMIT)
        assert score == pytest.approx(quadratic.score(form, end), rel=1e-9, abs=1e-6)
        further, _ = swap.descend_oracle(form, end, 1)  # nothing is left to be gained
        assert further == pytest.approx(score, rel=1e-9, abs=1e-6)
    greedy_a, greedy_b = swap.greedy(form), swap.greedy_oracle(form)
    assert quadratic.score(form, greedy_a) == pytest.approx(quadratic.score(form, greedy_b), rel=1e-6, abs=1e-6)


@settings(max_examples=150)
@given(problems)
def test_the_proof(problem: SelectionProblem) -> None:
    form, _ = forms(problem)
    best = quadratic.score(form, first_choice(problem))
    level = float(form.bonus.mean())
    constant = exact.relax_oracle(form, best, level).constant
    assert exact.relax(form, best, level).constant == pytest.approx(constant, rel=1e-6, abs=1e-5)
    a, b = first_choice(problem), first_choice(problem)
    proven_a, _ = exact.decode(form, a, 10**6)
    proven_b, _ = exact.decode_oracle(form, b, 10**6)
    assert proven_a
    assert proven_b
    assert quadratic.score(form, a) == pytest.approx(quadratic.score(form, b), rel=1e-9, abs=1e-6)


@settings(max_examples=150)
@given(problems)
def test_the_relaxation_is_below_zero_for_every_better_choice(problem: SelectionProblem) -> None:
    """‖Rx − w‖² + K < 0 wherever x beats the bar; without a bonus, and for equal batches, nowhere else."""
    form, _ = forms(problem)
    tree_order = np.random.default_rng(0)
    bar = quadratic.score(form, first_choice(problem))
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


@settings(max_examples=100)
@given(problems)
def test_enumeration(problem: SelectionProblem) -> None:
    form, _ = forms(problem)
    for first in range(len(problem.counts) - problem.pick + 1):
        a, b = first_choice(problem), first_choice(problem)
        found = brute.enumerate_from(form, first, a, np.inf)
        assert found == pytest.approx(brute.enumerate_from_oracle(form, first, b, np.inf), rel=1e-9, abs=1e-6)
        assert quadratic.score(form, a) == pytest.approx(found, rel=1e-9, abs=1e-6)
        assert a[0] == b[0] == first


@settings(max_examples=150)
@given(problems)
def test_gbp_cs_kernels(problem: SelectionProblem) -> None:
    a, b = first_choice(problem), first_choice(problem)
    arguments = (problem.counts, problem.wanted, problem.bonus)
    assert gbp_cs.permute(*arguments, a, NO_LIMIT) == gbp_cs.permute_oracle(*arguments, b, NO_LIMIT)
    assert a.tolist() == b.tolist()
    values = gbp_cs.least_squares(problem.counts, problem.wanted)
    assert values == pytest.approx(gbp_cs.least_squares_oracle(problem.counts, problem.wanted), abs=1e-6)
    assert gbp_cs.largest_entries(values, problem.pick).tolist() == (
        gbp_cs.largest_entries_oracle(values, problem.pick).tolist()
    )
    inside_a, inside_b = np.zeros((2, len(problem.counts)), dtype=bool)
    fixed = (problem.counts, problem.target, problem.base, problem.bonus, problem.mean_size, problem.base_size)
    gbp_cs.fill_by_gradient(*fixed, inside_a, problem.pick)
    gbp_cs.fill_by_gradient_oracle(*fixed, inside_b, problem.pick)
    assert inside_a.sum() == inside_b.sum() == problem.pick


@given(st.integers(0, 2**64 - 1), st.integers(1, 50), st.data())
def test_random_draws(key: int, devices: int, data: st.DataObject) -> None:
    pick = data.draw(st.integers(0, devices))
    word = np.uint64(key)
    assert int(draws.mix(word)) == draws.mix_oracle(word)
    assert int(draws.start_key(word, 3, pick)) == draws.start_key_oracle(word, 3, pick)
    drawn = draws.draw_subset(devices, pick, word)
    assert drawn.tolist() == draws.draw_subset_oracle(devices, pick, word).tolist()
    assert len(set(drawn.tolist())) == pick
    if 0 < pick < devices:
        a, b = drawn.copy(), drawn.copy()
        large.kick(devices, a, word)
        large.kick_oracle(devices, b, word)
        assert a.tolist() == b.tolist()
        assert len(set(a.tolist())) == pick


def test_splitmix64_gives_its_published_first_words() -> None:
    # The reference generator, seeded with 0, adds the golden gamma once per word: our counters 1, 2, 3.
    words = [int(draws.mix(np.uint64(counter))) for counter in (1, 2, 3)]
    assert [f"{word:016x}" for word in words] == ["e220a8397b1dcdaf", "6e789e6aa1b965f4", "06c45d188009454f"]


def test_draws_are_uniform() -> None:
    times = np.zeros(7)
    for key in range(7000):
        times[draws.draw_subset(7, 3, np.uint64(key * 7919))] += 1
    assert times == pytest.approx(3000, rel=0.07)
