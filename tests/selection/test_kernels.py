"""The kernels against the definition of the score, and against their plain versions, to the bit."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedgs.compiled import running
from fedgs.selection import SelectionProblem, algebra, coverage, draws, exact, gbp_cs, large, quadratic, sampling, swap
from fedgs.selection.problem import NO_LIMIT, measure
from tests.selection.problems import score_of_choice, small_problems

problems = small_problems().filter(lambda problem: 0 < problem.pick < len(problem.counts))


@settings(max_examples=150)
@given(problems)
def test_both_forms_give_the_score(problem: SelectionProblem) -> None:
    chosen = np.arange(problem.pick)
    expected = pytest.approx(score_of_choice(problem, chosen), rel=1e-9, abs=1e-6)
    assert quadratic.score(quadratic.gram_form(problem.parts), chosen) == expected
    assert quadratic.score_rows(problem.parts, chosen) == expected
    inside = np.arange(len(problem.counts)) < problem.pick
    assert sampling.score_many(problem, inside[None])[0] == expected
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


def both(kernel: Any, *arguments: Any) -> tuple[Any, Any]:
    """Call the plain version and the machine code with the same arguments, arrays copied."""
    found = []
    for compiled in (False, True):
        own = [one.copy() if isinstance(one, np.ndarray) else one for one in arguments]
        with running(compiled):
            found.append([kernel(*own), *own])
    return found[0], found[1]


def assert_same_bits(one: Any, other: Any) -> None:
    if isinstance(one, tuple | list):
        assert len(one) == len(other)
        for a, b in zip(one, other, strict=True):
            assert_same_bits(a, b)
    elif one is not None or other is not None:
        assert np.array_equal(one, other, equal_nan=True)


@settings(max_examples=100)
@given(problems, st.integers(0, 2**64 - 1))
def test_every_kernel_gives_the_bits_of_its_oracle(problem: SelectionProblem, number: int) -> None:
    """Arguments that are changed in place are compared too."""
    parts, chosen, key = problem.parts, np.arange(problem.pick), np.uint64(number)
    form = quadratic.gram_form.plain(parts)
    bar, level = quadratic.score.plain(form, chosen), float(form.bonus[: form.pick].mean())
    matrix = form.gram + np.diag(np.full(len(form.gram), 1.0 + np.trace(form.gram)))
    factor = matrix.copy()
    algebra.factorise.plain(factor, 0.0)
    for kernel, arguments in (
        (measure, (parts, chosen)),
        (algebra.products, (parts.by_class,)),
        (algebra.combine, (parts.by_class, problem.wanted)),
        (algebra.turned, (parts.by_class,)),
        (algebra.factorise, (matrix, 0.0)),
        (algebra.solve_factored, (factor, form.linear)),
        (algebra.pseudo_solve, (form.gram, form.linear, 1e-9)),
        (algebra.ascending, (form.linear,)),
        (quadratic.gram_form, (parts,)),
        (quadratic.score, (form, chosen)),
        (quadratic.score_rows, (parts, chosen)),
        (quadratic.is_certain, (form, bar)),
        (gbp_cs.least_squares, (parts.by_class, problem.wanted)),
        (gbp_cs.largest_entries, (form.linear, problem.pick)),
        (gbp_cs.permute, (parts.by_class, problem.wanted, parts.bonus, chosen, NO_LIMIT)),
        (swap.greedy, (form,)),
        (swap.descend, (form, chosen, NO_LIMIT)),
        (swap.best_descent, (form, 3, key)),
        (exact.inverse_diagonal, (factor,)),
        (exact.relax, (form, bar, level)),
        (exact.decode, (form, chosen, 1000)),
        (exact.enumerate_from, (form, 0, chosen, np.inf)),
        (large.kick, (len(problem.counts), chosen, key, 3)),
        (large.improve, (form, chosen, 2, key)),
        (draws.word, (key, 7)),
        (draws.draw_subset, (len(problem.counts), problem.pick, key, 5)),
        (sampling.draw_by_weight, (parts.sizes, problem.pick, key)),
        (sampling.best_of_draws, (parts, chosen, key, 0, 5)),
        (coverage.fair_shares, (parts.sizes, problem.pick)),
        (coverage.typical_batch, (problem.counts.copy(), parts.target, np.arange(len(problem.counts)))),
    ):
        assert_same_bits(*both(kernel, *arguments))


@given(st.integers(0, 2**64 - 1), st.integers(1, 50), st.data())
def test_random_draws(key: int, devices: int, data: st.DataObject) -> None:
    pick = data.draw(st.integers(0, devices))
    word = np.uint64(key)
    drawn = draws.draw_subset(devices, pick, word, 0)
    assert len(set(drawn.tolist())) == pick
    if 0 < pick < devices:
        kicked = drawn.copy()
        large.kick(devices, kicked, word, 0)
        assert len(set(kicked.tolist())) == pick
        assert len(set(kicked.tolist()) - set(drawn.tolist())) == min(large.KICKED, pick, devices - pick)


def test_splitmix64_gives_its_published_first_words() -> None:
    # The reference generator, seeded with 0, adds the golden gamma once per word: our numbers 1, 2, 3.
    words = [int(draws.word(np.uint64(0), number)) for number in (1, 2, 3)]
    assert [f"{word:016x}" for word in words] == ["e220a8397b1dcdaf", "6e789e6aa1b965f4", "06c45d188009454f"]


def test_draws_are_uniform() -> None:
    times = np.zeros(7)
    for key in range(7000):
        times[draws.draw_subset(7, 3, np.uint64(key * 7919), 0)] += 1
    assert times == pytest.approx(3000, rel=0.07)
