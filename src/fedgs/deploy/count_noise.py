"""Noise on announced class counts: the discrete Gaussian (Canonne, Kamath, Steinke, 2020, "The discrete Gaussian for
differential privacy"), P(x) ∝ exp(−x² / 2σ²) on the whole numbers.

The noise is added on the device to each class's count. What comes out is made into counts again, none negative and
summing to the batch size, so a station cannot tell it from true ones; that uses the noisy counts alone and costs no
privacy. The tails are cut at 12 σ, where less than 1e-31 of the probability lies.
"""

import math

import numpy as np
from numpy.typing import NDArray

from fedgs import rng


def discrete_gaussian(sigma: float, size: int, draws: np.random.Generator) -> NDArray[np.int64]:
    """Draw whole numbers."""
    reach = math.ceil(12 * sigma)
    support = np.arange(-reach, reach + 1)
    chances = np.exp(-(support.astype(np.float64) ** 2) / (2 * sigma**2))
    drawn: NDArray[np.int64] = draws.choice(support, size=size, p=chances / chances.sum())
    return drawn


def noisy_counts(counts: NDArray[np.int64], sigma: float, seed: int, batch_id: int) -> NDArray[np.int64]:
    """Return what a device with noise announces for its batch number ``batch_id``."""
    noise = discrete_gaussian(sigma, len(counts), rng.stream(seed, "count noise", batch_id))
    return as_counts(counts + noise, int(counts.sum()))


def as_counts(values: NDArray[np.int64], total: int) -> NDArray[np.int64]:
    """Return counts that sum to ``total``, in proportion to the positive ones of ``values``, by largest remainders."""
    positive = np.maximum(values, 0)
    if not positive.any():
        positive = np.ones_like(positive)
    shares = positive * (total / positive.sum())
    counts: NDArray[np.int64] = np.floor(shares).astype(np.int64)
    missing = total - int(counts.sum())
    counts[np.argsort(counts - shares, kind="stable")[:missing]] += 1
    return counts
