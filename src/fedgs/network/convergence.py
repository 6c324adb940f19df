"""How far a federated model can be from the best one: FedGS, section VI-A, Propositions 1 and 2.

FedGS converges as FedAvg with M super nodes does, so Lemma 2 of Wang et al. (IEEE JSAC 37(6), 2019) applies. For a loss
that is β-smooth and ρ-Lipschitz, a learning rate η, R rounds of T iterations and a gradient divergence δ:

    h(T)  = ((ηβ + 1)^T − 1)/β − ηT
    bound = 1 / [T·R·(ηφ − ρ·δ·h(T)/(T·ε²))]                              valid while the bracket is positive
    gap   = 1/(2ηφTR) + ρδh(T) + √(1/(4η²φ²T²R²) + ρδh(T)/(ηφT))
          ≤ 1/(ηφTR) + ρδh(T) + √(ρδh(T)/(ηφT))

All of them are known for η ≤ 1/β only and are refused beyond it.

φ = ω·(1 − βη/2), ω a lower bound of 1/‖w − w*‖², ε a lower bound of the loss above the optimum. ρ, φ and ε are rarely
known; left at 1 they scale the bound without moving the T that is best for δ·ρ/(φε²).

The gradient divergence δ is that of Proposition 1. With g the gradients by class (a row each) and P the class
distributions, of factory m and of the centralised setting c:

    ‖P_m·g_m − P_real·g_c‖ ≤ ‖P_m·(g_m − g_c)‖ + ‖(P_m − P_real)·g_c‖ = δ_m ,      δ = mean of δ_m .

P_m·g_m is the gradient of the super node's own batch, P_real·g_c that of all data, and P_m·g_c that of all data with
its classes weighted as in the batch. Three gradients a factory are therefore all a run has to hand over; gradients by
class are for small models and for tests. Everything is summed in float64.
"""

import math
import sys
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedgs.errors import NetworkError
from fedgs.network.links import not_negative, positive, whole


@dataclass(frozen=True)
class BoundConstants:
    """What the bound knows of loss, data and learning rate."""

    learning_rate: float
    """of one step (η)"""
    smoothness: float
    """of the loss (β)"""
    divergence: float
    """mean bound of the gradient divergence (δ)"""
    lipschitz: float = 1.0
    """of the loss (ρ)"""
    phi: float = 1.0
    """ω·(1 − βη/2) (φ)"""
    epsilon: float = 1.0
    """least loss above the optimum (ε)"""

    def __post_init__(self) -> None:
        for name in ("learning_rate", "smoothness", "lipschitz", "phi", "epsilon"):
            positive(name, getattr(self, name))
        not_negative("divergence", self.divergence)

    @property
    def small_steps(self) -> bool:
        """Whether η ≤ 1/β, for which alone the bounds are known."""
        return self.learning_rate * self.smoothness <= 1

    def but(self, divergence: float) -> "BoundConstants":
        """Return the constants with another δ."""
        return replace(self, divergence=divergence)


def phi(omega: float, smoothness: float, learning_rate: float) -> float:
    """Return φ = ω·(1 − βη/2)."""
    value = positive("omega", omega) * (1 - positive("smoothness", smoothness) * positive("eta", learning_rate) / 2)
    if value <= 0:
        raise NetworkError(
            f"phi={value:g} is impossible; βη={smoothness * learning_rate:g} must be below 2: lower the learning rate"
        )
    return value


def drift(iterations: int, learning_rate: float, smoothness: float) -> float:
    """Return h(T), how far T separate steps can drift from T common ones; 0 for T = 0 and T = 1."""
    value = drift_or_infinity(iterations, learning_rate, smoothness)
    if not math.isfinite(value):
        raise NetworkError(f"h(T) overflows at T={iterations} with ηβ={learning_rate * smoothness:g}; lower T, η or β")
    return value


def drift_or_infinity(iterations: int, learning_rate: float, smoothness: float) -> float:
    """Return h(T), infinite where it is too large for a number; as quick for a long T as for a short one."""
    whole("iterations", iterations, least=0)
    step = positive("learning_rate", learning_rate) * positive("smoothness", smoothness)
    if iterations < 2:
        return 0.0
    if step * iterations > 1:
        growth = iterations * math.log1p(step)
        try:
            return (math.expm1(growth) - step * iterations) / smoothness
        except OverflowError:  # (1 + ηβ)^T overflows; divided by β it may not, and the other terms are negligible
            exponent = growth - math.log(smoothness)
            return math.exp(exponent) if exponent < math.log(sys.float_info.max) else math.inf
    # Here the formula as it is written loses digits; its binomial series, Σ_{k≥2} C(T,k)·(ηβ)^k, has none to lose.
    term = total = iterations * (iterations - 1) / 2 * step * step
    order = 2
    while term > total * 1e-17 and order < iterations:
        order += 1
        term *= (iterations - order + 1) / order * step
        total += term
    return total / smoothness


def effective_iterations(iterations: int, constants: BoundConstants) -> float:
    """Return T − ρδh(T)/(ηφε²): how many iterations without drift a round is worth; 0 or less: the bound is void.

    The bound is 1/(R·ηφ·effective iterations): the paper's O(1/(R·(T − δh(T)))) with its constants.
    """
    _refuse_large_steps(constants)
    whole("iterations", iterations)
    if constants.divergence == 0:
        return float(iterations)
    h = drift_or_infinity(iterations, constants.learning_rate, constants.smoothness)
    return iterations - drift_weight(constants) * h


def _refuse_large_steps(constants: BoundConstants) -> None:
    if not constants.small_steps:
        eta, beta = constants.learning_rate, constants.smoothness
        raise NetworkError(f"the bounds are known for η ≤ 1/β only, not for η={eta:g}, β={beta:g}; lower η")


def drift_weight(constants: BoundConstants) -> float:
    """Return ρδ/(ηφε²), the iterations lost for each unit of h(T)."""
    scale = constants.learning_rate * constants.phi * constants.epsilon**2
    return constants.lipschitz * constants.divergence / scale


def convergence_bound(iterations: int, rounds: int, constants: BoundConstants) -> float:
    """Return the upper bound of the loss above the optimum after R rounds of T iterations."""
    whole("rounds", rounds)
    worth = effective_iterations(iterations, constants)
    if worth <= 0:
        raise NetworkError(
            f"the bound is invalid at T={iterations}: a divergence δ={constants.divergence:g} undoes the whole round "
            f"(T − ρδh(T)/(ηφε²) = {worth:.4g}); lower T, the learning rate or δ"
        )
    return 1.0 / (rounds * constants.learning_rate * constants.phi * worth)


def optimality_gap(iterations: int, rounds: int, constants: BoundConstants) -> float:
    """Return the upper bound of how far the best model seen is from the optimum."""
    first, drifted, under_root = _gap_parts(iterations, rounds, constants)
    return first / 2 + drifted + math.sqrt(first**2 / 4 + under_root)


def looser_optimality_gap(iterations: int, rounds: int, constants: BoundConstants) -> float:
    """Return the simpler, somewhat larger form of the same bound."""
    first, drifted, under_root = _gap_parts(iterations, rounds, constants)
    return first + drifted + math.sqrt(under_root)


def _gap_parts(iterations: int, rounds: int, constants: BoundConstants) -> tuple[float, float, float]:
    """Return 1/(ηφTR), ρδh(T) and ρδh(T)/(ηφT)."""
    whole("iterations", iterations)
    whole("rounds", rounds)
    _refuse_large_steps(constants)
    eta, beta = constants.learning_rate, constants.smoothness
    step = eta * constants.phi
    drifted = constants.lipschitz * constants.divergence * drift(iterations, eta, beta)
    return 1.0 / (step * iterations * rounds), drifted, drifted / (step * iterations)


@dataclass(frozen=True)
class GradientDivergence:
    """What Proposition 1 says of one factory or of several."""

    actual: NDArray[np.float64]
    """(factories,) ‖P_m·g_m − P_real·g_c‖"""
    bounds: NDArray[np.float64]
    """(factories,) δ_m, never smaller"""

    @property
    def delta(self) -> float:
        """δ, the mean of the bounds."""
        return float(self.bounds.mean())


def divergence_of_gradients(own: ArrayLike, reweighted: ArrayLike, central: ArrayLike) -> GradientDivergence:
    """Return δ from whole gradients, all at the same weights.

    Args:
        own: (factories, weights) gradient of each super node's batch, P_m·g_m.
        reweighted: (factories, weights) gradient of all data, classes weighted as in that batch, P_m·g_c.
        central: (weights,) gradient of all data, P_real·g_c.
    """
    nodes, middle, centre = (_array(name, value) for name, value in
                             (("own", own), ("reweighted", reweighted), ("central", central)))  # fmt: skip
    if nodes.ndim != 2 or middle.shape != nodes.shape or centre.shape != nodes.shape[1:] or not len(nodes):
        raise NetworkError(
            "gradients do not fit: own and reweighted must be (factories, weights) and central (weights,), "
            f"not {nodes.shape}, {middle.shape} and {centre.shape}"
        )
    return GradientDivergence(
        actual=np.linalg.norm(nodes - centre, axis=1),
        bounds=np.linalg.norm(nodes - middle, axis=1) + np.linalg.norm(middle - centre, axis=1),
    )


def divergence_by_class(
    distributions: ArrayLike, node_gradients: ArrayLike, target: ArrayLike, central_gradients: ArrayLike
) -> GradientDivergence:
    """Return δ from gradients by class.

    Args:
        distributions: (factories, classes) class distribution of each super node's batch, P_m.
        node_gradients: (factories, classes, weights) mean gradient of each class in that batch, g_m.
        target: (classes,) class distribution of all data, P_real.
        central_gradients: (classes, weights) mean gradient of each class over all data, g_c.
    """
    shares = _distributions("distributions", distributions, 2)
    whole = _distributions("target", target, 1)
    nodes, centre = _array("node_gradients", node_gradients), _array("central_gradients", central_gradients)
    factories, classes = shares.shape
    if (
        whole.shape != (classes,)
        or centre.ndim != 2
        or len(centre) != classes
        or nodes.shape != (factories, *centre.shape)
    ):
        raise NetworkError(
            f"gradients by class do not fit: distributions {shares.shape}, target {whole.shape}, "
            f"node_gradients {nodes.shape} and central_gradients {centre.shape} must be (factories, classes), "
            "(classes,), (factories, classes, weights) and (classes, weights)"
        )
    own = np.einsum("mc,mcw->mw", shares, nodes)
    return divergence_of_gradients(own, shares @ centre, whole @ centre)


def smoothness_estimate(gradient: ArrayLike, other: ArrayLike, weights: ArrayLike, elsewhere: ArrayLike) -> float:
    """Return ‖∇L(w) − ∇L(w')‖/‖w − w'‖, an estimate of β from below (Wang et al., 2019, Algorithm 3)."""
    arrays = [_array("gradients and weights", value).ravel() for value in (gradient, other, weights, elsewhere)]
    if len({array.shape for array in arrays}) != 1:
        raise NetworkError("gradients and weights do not fit: all four must have the same shape")
    apart = float(np.linalg.norm(arrays[2] - arrays[3]))
    if apart == 0:
        raise NetworkError("the smoothness cannot be estimated from one point; give gradients at two different weights")
    return float(np.linalg.norm(arrays[0] - arrays[1])) / apart


def _array(name: str, value: ArrayLike) -> NDArray[np.float64]:
    try:
        array = np.asarray(value, dtype=np.float64)
    except (TypeError, ValueError):
        raise NetworkError(f"{name} is not an array of numbers") from None
    if not np.isfinite(array).all():
        raise NetworkError(f"{name} holds values that are not finite numbers")
    return array


def _distributions(name: str, value: ArrayLike, dimensions: int) -> NDArray[np.float64]:
    array = _array(name, value)
    if array.ndim != dimensions or (array < 0).any() or not np.allclose(array.sum(axis=-1), 1.0, atol=1e-6):
        raise NetworkError(f"{name} of shape {array.shape} holds no class distributions; each must sum to 1")
    return array
