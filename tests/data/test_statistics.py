import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from fedgs.data import Federation, Quantiles, build_federation, divergences, from_arrays, heterogeneity
from fedgs.data.statistics import team_divergence
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


def federation_of(labels: list[int], devices: list[int], factories: int = 1) -> Federation:
    """Return a federation that trains on all of these labels."""
    tested = (np.zeros((2, 1)), [0, 1], [0, 0])
    return Federation.from_arrays(
        np.zeros((len(labels), 1)), np.array(labels), devices=devices, factories=factories, test=tested
    )


def test_team_divergence_by_hand() -> None:
    # One factory, two devices of one class each, one of them at a time: the divergence is always √½. Two samples that
    # are drawn from both have (1 − ½)/2.
    apart = federation_of([0, 0, 1, 1], [0, 0, 1, 1])
    assert team_divergence(apart, pick=1, batch_size=2) == pytest.approx((math.sqrt(0.5), 0, 0.5))
    # Both at a time: the team is the whole factory.
    assert team_divergence(apart, pick=2, batch_size=2) == pytest.approx((0, 0, math.sqrt(0.125)))
    # Alike devices are as good as independent samples.
    alike = federation_of([0, 1, 0, 1], [0, 0, 1, 1])
    assert team_divergence(alike, pick=1, batch_size=2) == pytest.approx((0.5, 0, 0.5))
    # Two factories of one device and one class each: no selection can mend that.
    factories = federation_of([0, 0, 1, 1], [0, 0, 1, 1], factories=2)
    assert team_divergence(factories, pick=1, batch_size=2) == pytest.approx((math.sqrt(0.5), math.sqrt(0.5), 0.5))


def test_random_teams_are_what_random_teams_have() -> None:
    draws = np.random.default_rng(0)
    shares = draws.dirichlet(np.full(5, 0.3), size=12)
    labels = np.concatenate([draws.choice(5, size=400, p=share) for share in shares])
    federation = federation_of(list(labels), list(np.repeat(np.arange(12), 400)), factories=2)
    counts, target, squares = federation.train_counts, federation.p_real(), []
    for factory in range(2):
        rows = counts[federation.factory_of == factory]
        found = []
        for _ in range(4000):
            team = draws.choice(len(rows), size=3, replace=False)
            drawn = sum(draws.multinomial(8, rows[device] / rows[device].sum()) for device in team)
            found.append(((drawn / 24 - target) ** 2).sum())
        squares.append(math.sqrt(np.mean(found)))
    assert team_divergence(federation, pick=3, batch_size=8).random == pytest.approx(np.mean(squares), rel=0.03)
