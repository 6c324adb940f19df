"""Section VI-A: h(T), the bounds, the gradient divergence."""

import math

import numpy as np
import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from fedgs.errors import NetworkError
from fedgs.network import (
    BoundConstants,
    convergence_bound,
    divergence_by_class,
    divergence_of_gradients,
    drift,
    effective_iterations,
    looser_optimality_gap,
    optimality_gap,
    phi,
    smoothness_estimate,
)

rates = st.floats(1e-5, 1.0)
lengths = st.integers(1, 60)


@pytest.mark.parametrize(("iterations", "value"), [(0, 0.0), (1, 0.0), (2, 1e-4), (10, 0.00462213), (50, 0.14463182)])
def test_h_by_hand(iterations: int, value: float) -> None:
    """T-H-1."""
    assert drift(iterations, 0.01, 1.0) == pytest.approx(value, abs=5e-9)
    if iterations < 2:
        assert drift(iterations, 0.01, 1.0) == 0


@given(rates, st.floats(1e-3, 1e2), lengths)
def test_h_is_the_formula_and_convex(eta: float, beta: float, iterations: int) -> None:
    assume(eta * beta <= 1)
    values = [drift(iterations + step, eta, beta) for step in range(3)]
    assert values[0] <= values[1] <= values[2]
    assert values[2] - values[1] >= (values[1] - values[0]) * (1 - 1e-12)
    written = ((eta * beta + 1) ** iterations - 1) / beta - eta * iterations
    assert values[0] == pytest.approx(written, rel=1e-6, abs=1e-9 * eta * iterations / min(1.0, eta * beta))


def test_h_keeps_its_digits_where_the_step_is_small() -> None:
    # To first order h(T) = η²β·T(T − 1)/2; the formula as it is written loses it in rounding.
    assert drift(3, 1e-9, 1.0) == pytest.approx(3e-18, rel=1e-6)


@given(st.floats(1e-12, 2.0), st.floats(1e-3, 1e2), st.integers(0, 400))
@example(1.484375, 20.25, 207)  # (1 + ηβ)^T overflows, h(T) does not
def test_h_of_one_t_is_that_of_all(eta: float, beta: float, iterations: int) -> None:
    # η·Σ ((1 + ηβ)^i − 1), which loses no digits where ηβ is small
    with np.errstate(over="ignore"):
        summed = eta * float(np.expm1(math.log1p(eta * beta) * np.arange(iterations)).sum())
    assume(math.isfinite(summed))
    assert drift(iterations, eta, beta) == pytest.approx(summed, rel=1e-11)


def test_h_of_a_long_round_needs_no_more_memory_than_that_of_a_short_one() -> None:
    # To second order: η²β·T²/2·(1 + ηβT/3)
    assert drift(2_000_000_000, 1e-12, 1.0) == pytest.approx(2e-6 * (1 + 0.002 / 3), rel=1e-6)


def test_bounds_by_hand() -> None:
    constants = BoundConstants(0.01, 1.0, 0.5, lipschitz=2.0, phi=0.8, epsilon=0.5)
    h = 0.14463182
    # ηφ − ρδh/(Tε²) = 0.008 − 0.14463182/(50·0.25)
    with pytest.raises(NetworkError, match="the bound is invalid at T=50"):
        convergence_bound(50, 100, constants)
    small = constants.but(0.05)
    bracket = 0.008 - 2 * 0.05 * h / (50 * 0.25)
    assert convergence_bound(50, 100, small) == pytest.approx(1 / (50 * 100 * bracket), rel=1e-6)
    assert effective_iterations(50, small) == pytest.approx(50 * bracket / 0.008, rel=1e-6)
    first, drifted = 1 / (0.008 * 50 * 100), 2 * 0.05 * h
    gap = first / 2 + drifted + math.sqrt(first**2 / 4 + drifted / (0.008 * 50))
    assert optimality_gap(50, 100, small) == pytest.approx(gap, rel=1e-6)
    loose = first + drifted + math.sqrt(drifted / (0.008 * 50))
    assert looser_optimality_gap(50, 100, small) == pytest.approx(loose, rel=1e-6)


@given(lengths, st.integers(1, 1000), st.floats(0, 1), st.floats(1.01, 10), rates)
def test_less_divergence_means_smaller_bounds(
    iterations: int, rounds: int, delta: float, factor: float, eta: float
) -> None:
    near, far = BoundConstants(eta, 1.0, delta), BoundConstants(eta, 1.0, delta * factor)
    assert optimality_gap(iterations, rounds, near) <= optimality_gap(iterations, rounds, far)
    assert optimality_gap(iterations, rounds, near) <= looser_optimality_gap(iterations, rounds, near) * (1 + 1e-12)
    assert optimality_gap(iterations, rounds + 1, near) <= optimality_gap(iterations, rounds, near)
    assume(effective_iterations(iterations, far) > 0)
    assert convergence_bound(iterations, rounds, near) <= convergence_bound(iterations, rounds, far)


def test_phi() -> None:
    assert phi(0.5, 2.0, 0.1) == pytest.approx(0.45)
    with pytest.raises(NetworkError, match="must be below 2"):
        phi(0.5, 2.0, 1.0)


@pytest.mark.parametrize(
    ("action", "message"),
    [
        (lambda: drift(-1, 0.1, 1), "iterations=-1"),
        (lambda: drift(10, 0.0, 1), "learning_rate=0"),
        (lambda: drift(10, 0.1, -1), "smoothness=-1"),
        (lambda: drift(10**6, 0.1, 1), "overflows"),
        (lambda: BoundConstants(0.1, 1, -1), "divergence=-1"),
        (lambda: BoundConstants(0.1, 1, 1, epsilon=0), "epsilon=0"),
        (lambda: convergence_bound(10, 0, BoundConstants(0.1, 1, 0)), "rounds=0"),
        (lambda: optimality_gap(10, 1, BoundConstants(0.6, 2, 0)), "η ≤ 1/β"),
        (lambda: convergence_bound(10, 1, BoundConstants(0.6, 2, 0)), "η ≤ 1/β"),
        (lambda: effective_iterations(10, BoundConstants(0.6, 2, 0)), "η ≤ 1/β"),
        (lambda: smoothness_estimate([1], [2], [3], [3]), "from one point"),
        (lambda: smoothness_estimate([1], [2], [3], [3, 4]), "same shape"),
        (lambda: divergence_of_gradients([[1.0]], [[1.0]], [1.0, 2.0]), "do not fit"),
        (lambda: divergence_of_gradients([[1.0]], [[math.nan]], [1.0]), "not finite"),
        (lambda: divergence_of_gradients([["a"]], [[1.0]], [1.0]), "not an array of numbers"),
        (lambda: divergence_by_class([[0.5, 0.4]], [[[1], [2]]], [0.5, 0.5], [[1], [2]]), "must sum to 1"),
        (lambda: divergence_by_class([[0.5, 0.5]], [[[1], [2]]], [0.5, 0.5], [[1]]), "by class do not fit"),
    ],
)
def test_impossible_values_are_refused(action: object, message: str) -> None:
    with pytest.raises(NetworkError, match=message):
        action()  # type: ignore[operator]


def test_divergence_by_hand() -> None:
    # Two classes, one weight: g_c = (1, 3), P_real = (½, ½) so P_real·g_c = 2; P_m = (1, 0), g_m = (1.5, 9).
    found = divergence_by_class([[1.0, 0.0]], [[[1.5], [9.0]]], [0.5, 0.5], [[1.0], [3.0]])
    assert found.actual.tolist() == [0.5]
    assert found.bounds.tolist() == [0.5 + 1.0]
    assert found.delta == 1.5
    assert divergence_of_gradients([[1.5]], [[1.0]], [2.0]).delta == 1.5


def test_a_node_like_the_whole_has_no_divergence() -> None:
    gradients = np.random.default_rng(0).normal(size=(4, 7))
    shares = np.array([0.1, 0.2, 0.3, 0.4])
    found = divergence_by_class([shares, shares], [gradients, gradients], shares, gradients)
    assert found.delta == pytest.approx(0, abs=1e-12)


@given(st.integers(0, 2**32), st.integers(1, 5), st.integers(1, 6), st.integers(1, 20))
def test_the_bound_holds(seed: int, factories: int, classes: int, weights: int) -> None:
    draws = np.random.default_rng(seed)
    shares = draws.dirichlet(np.ones(classes), size=factories)
    found = divergence_by_class(
        shares,
        draws.normal(size=(factories, classes, weights)),
        draws.dirichlet(np.ones(classes)),
        draws.normal(size=(classes, weights)),
    )
    assert (found.actual <= found.bounds * (1 + 1e-12)).all()
    assert found.delta == pytest.approx(found.bounds.mean())


def test_smoothness_of_a_quadratic() -> None:
    # L = 3‖w‖²/2: the gradient is 3w, β is 3.
    assert smoothness_estimate([3.0, 6.0], [0.0, 0.0], [1.0, 2.0], [0.0, 0.0]) == pytest.approx(3.0)
