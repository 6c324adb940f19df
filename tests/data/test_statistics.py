import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from fedgs.data import Quantiles, build_federation, divergences, from_arrays, heterogeneity
from fedgs.errors import DataError


def test_divergences_by_hand() -> None:
    counts = np.array([[4, 0], [1, 1], [3, 1], [0, 0]])
    tv, l2 = divergences(counts, np.array([0.5, 0.5]))
    np.testing.assert_allclose(tv, [0.5, 0, 0.25, np.nan])
    np.testing.assert_allclose(l2, [math.sqrt(0.5), 0, math.sqrt(0.125), np.nan])


@given(arrays(np.int64, (6, 4), elements=st.integers(0, 50)))
def test_divergences_stay_in_their_bounds(counts: np.ndarray) -> None:
    counts[:, 0] += 1
    pooled = counts.sum(axis=0) / counts.sum()
    tv, l2 = divergences(counts, pooled)
    assert np.all((tv >= 0) & (tv <= 1))
    # For any two distributions: L2 ≤ √2·TV, and 2·TV ≤ √classes·L2.
    assert np.all(l2 <= math.sqrt(2) * tv + 1e-12)
    assert np.all(2 * tv <= math.sqrt(4) * l2 + 1e-12)


def test_quantiles_by_hand() -> None:
    numbers = Quantiles.of(np.array([1, 2, np.nan, 3, 10, 4]))
    assert numbers == Quantiles(1, 2, 3, 4, 4, 10)
    assert math.isnan(Quantiles.of(np.array([np.nan])).mean)


def test_heterogeneity_of_a_federation_by_hand() -> None:
    # Train labels: a = 0 0, b = 1 1 (factory 0 when kinds are equal), c = 0 1; the last of each is test.
    labels = [0, 0, 1, 1, 1, 0, 0, 1, 0]
    test = [False, False, True] * 3
    dataset = from_arrays(
        np.zeros((9, 2, 2), np.uint8), labels, list("aaabbbccc"), test=test, attributes={"kind": [0, 0, 1]},
        client_names=None,
    )  # fmt: skip
    federation = build_federation(dataset, None, "by-attribute", attribute="kind")
    measured = heterogeneity(federation)
    assert measured.p_real.tolist() == [0.5, 0.5]
    assert measured.device_tv.tolist() == [0.5, 0.5, 0.0]
    np.testing.assert_allclose(measured.device_l2, [math.sqrt(0.5), math.sqrt(0.5), 0])
    assert measured.device_classes.tolist() == [1, 1, 2]
    assert measured.device_samples.tolist() == [2, 2, 2]
    assert measured.factory_tv is not None
    assert measured.factory_tv.tolist() == [0.0, 0.0]
    assert measured.summary()["train samples per device"].mean == 2
    whole = heterogeneity(federation, include_test=True)
    assert whole.device_samples.tolist() == [3, 3, 3]
    assert whole.class_counts.tolist() == [5, 4]
    of_clients = heterogeneity(dataset)
    assert of_clients.class_counts.tolist() == [5, 4]
    assert "devices per factory" not in of_clients.summary()


def test_nothing_to_measure() -> None:
    with pytest.raises(DataError, match="no sample in it"):
        heterogeneity(from_arrays(np.zeros((0, 2, 2), np.uint8), np.zeros(0, int), classes=["a"]))
