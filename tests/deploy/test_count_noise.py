import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedgs.deploy.count_noise import as_counts, discrete_gaussian, noisy_counts
from fedgs.rng import stream


def test_the_noise_is_a_discrete_gaussian() -> None:
    drawn = discrete_gaussian(1.5, 200_000, stream(0, "test"))
    values = np.arange(-4, 5)
    weights = np.exp(-(values**2) / (2 * 1.5**2))
    everything = np.exp(-(np.arange(-40, 41) ** 2) / (2 * 1.5**2)).sum()
    for value, weight in zip(values, weights, strict=True):
        assert np.mean(drawn == value) == pytest.approx(weight / everything, abs=0.004)


def test_counts_are_made_by_largest_remainders() -> None:
    assert as_counts(np.array([3, -1, 3]), 5).tolist() == [3, 0, 2]
    assert as_counts(np.array([-2, -1, 0]), 5).tolist() == [2, 2, 1]  # nothing is left: as even as can be
    assert as_counts(np.array([2, 0, 3]), 5).tolist() == [2, 0, 3]


@given(
    st.lists(st.integers(0, 9), min_size=1, max_size=30).filter(any),
    st.floats(0.2, 20),
    st.integers(0, 2**63),
    st.integers(0, 10**9),
)
def test_noisy_counts_are_counts_of_the_same_batch_size(
    counts: list[int], sigma: float, seed: int, batch_id: int
) -> None:
    true = np.array(counts)
    noisy = noisy_counts(true, sigma, seed, batch_id)
    assert noisy.min() >= 0
    assert noisy.sum() == true.sum()
    assert (noisy == noisy_counts(true, sigma, seed, batch_id)).all()
