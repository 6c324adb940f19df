"""The gradient divergence δ of a run: FedGS, section VI-A, Proposition 1.

With g the gradients by class (a row each) and P the class distributions, of factory m and of the centralised setting c:

    ‖P_m·g_m − P_real·g_c‖ ≤ ‖P_m·(g_m − g_c)‖ + ‖(P_m − P_real)·g_c‖ = δ_m ,      δ = mean of δ_m .

P_m·g_m is the gradient of the super node's own batch, P_real·g_c that of all data, and P_m·g_c that of all data with
its classes weighted as in the batch. Three gradients a factory are therefore all a run has to hand over; gradients by
class are for small models and for tests. Everything is summed in float64.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedgs.errors import NetworkError


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
