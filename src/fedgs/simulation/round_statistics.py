"""What the super nodes of a round saw: the classes each lacked, and how near the whole round came to P_real.

An iteration can miss what the next one brings. So there is also the divergence of the window:
all samples a factory's devices were selected with in the T iterations between two external synchronisations, pooled.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedgs.compiled import kernel


class RoundView(NamedTuple):
    """Measures of a round that follow from the samples alone."""

    window_divergence: NDArray[np.float64]
    """(factories,) ‖P − P_real‖₂ of all samples of the round; NaN where there was nobody."""
    missing_classes: NDArray[np.float64]
    """(iterations, factories) classes of P_real without a sample; NaN where there was nobody."""


def view_round(counts: NDArray[np.int64], target: NDArray[np.float64]) -> RoundView:
    """Look at the class counts (iterations, factories, classes) of a round's super nodes."""
    sizes = counts.sum(axis=2)
    missing = ((counts == 0) & (target > 0)).sum(axis=2).astype(np.float64)
    missing[sizes == 0] = np.nan
    pooled = counts.sum(axis=0)
    with np.errstate(invalid="ignore"):  # nobody: 0 / 0
        window = np.linalg.norm(pooled / pooled.sum(axis=1, keepdims=True) - target, axis=1)
    return RoundView(window, missing)


def count_classes_oracle(samples: NDArray[np.int32], labels: NDArray[np.integer], classes: int) -> NDArray[np.int64]:
    """Plain numpy version of :func:`count_classes`."""
    iterations, factories = samples.shape[:2]
    nodes = np.arange(iterations * factories)[:, None] * classes
    flat = samples.reshape(iterations * factories, -1)
    cells = (labels[flat].astype(np.int64) + nodes)[flat >= 0]
    return np.bincount(cells, minlength=iterations * factories * classes).reshape(iterations, factories, classes)


@kernel(count_classes_oracle)
def count_classes(samples: NDArray[np.int32], labels: NDArray[np.integer], classes: int) -> NDArray[np.int64]:
    """Return the class counts of a round's super nodes from its samples (iterations, factories, places, batch).

    −1 stands for no sample.
    """
    iterations, factories, places, batch = samples.shape
    counts = np.zeros((iterations, factories, classes), dtype=np.int64)
    for t in range(iterations):
        for m in range(factories):
            for place in range(places):
                for k in range(batch):
                    sample = samples[t, m, place, k]
                    if sample >= 0:
                        counts[t, m, labels[sample]] += 1
    return counts
