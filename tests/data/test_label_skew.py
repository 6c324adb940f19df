import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from small_sets import numbered

from fedgs.data import build_federation, classes_per_device, dirichlet, dirichlet_factories, heterogeneity
from fedgs.errors import DataError

LABELS = np.random.default_rng(0).integers(0, 10, 3000)


@settings(max_examples=30, deadline=None)
@given(devices=st.integers(1, 30), alpha=st.sampled_from([0.3, 1.0, 100.0]), seed=st.integers(0, 99))
def test_dirichlet_deals_every_sample_once(devices: int, alpha: float, seed: int) -> None:
    clients = dirichlet(LABELS, devices, alpha, seed=seed)
    assert sorted(clients.samples.flat) == list(range(3000))
    assert len(clients) == devices
    assert clients.samples.sizes.min() >= 2
    assert list(clients.names) == sorted(clients.names)


def test_dirichlet_alpha_sets_the_skew() -> None:
    dataset = numbered([3000], classes=10)
    skew = [
        heterogeneity(build_federation(dataset, 4, clients=dirichlet(dataset.labels, 20, alpha))).device_tv.mean()
        for alpha in (0.1, 1.0, 1000.0)
    ]
    assert skew[0] > 0.55 > skew[1] > 0.15 > skew[2]


def test_synthetic_clients_share_the_images() -> None:
    dataset = numbered([300], classes=10)
    federation = build_federation(dataset, 5, clients=classes_per_device(dataset.labels, 10, 2))
    assert federation.inputs is dataset.inputs
    assert ((federation.train_counts + federation.test_counts) > 0).sum(axis=1).tolist() == [2] * 10


@settings(max_examples=30, deadline=None)
@given(devices=st.integers(5, 25), k=st.integers(2, 10), seed=st.integers(0, 99))
def test_classes_per_device_is_exact_and_even(devices: int, k: int, seed: int) -> None:
    clients = classes_per_device(LABELS, devices, k, seed=seed)
    assert sorted(clients.samples.flat) == list(range(3000))
    held = clients.samples.label_counts(LABELS, 10) > 0
    assert set(held.sum(axis=1)) == {k}
    assert np.ptp(held.sum(axis=0)) <= 1


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: dirichlet(LABELS, 10, 0.0), "alpha is 0.0"),
        (lambda: dirichlet(LABELS, 2, float("inf")), "alpha is inf; it must be finite"),
        (lambda: dirichlet(np.array(["a", "b"]), 1, 1.0), "labels must be one class number a sample"),
        (lambda: classes_per_device(np.array(["a", "b"]), 1, 1), "labels must be one class number a sample"),
        (lambda: dirichlet(LABELS, 0, 1.0), "cannot split 3000 samples among 0 devices"),
        (lambda: dirichlet(LABELS, 290, 0.01, min_samples=10), "raise alpha, or lower devices or min_samples"),
        (lambda: classes_per_device(LABELS, 10, 11), "11 classes per device were asked for; the set has 10"),
        (lambda: classes_per_device(LABELS, 3, 2), "cannot hold all 10 classes"),
        (lambda: classes_per_device(np.array([0, 0, 0, 1]), 3, 2), "class 1 has 1 samples for 3 devices"),
    ],
)
def test_what_cannot_be_synthesised(call: object, message: str) -> None:
    with pytest.raises(DataError, match=message):
        call()  # type: ignore[operator]


def test_factories_differ_as_much_as_they_are_asked_to() -> None:
    dataset = numbered([6000], classes=10)

    def spread(factory_alpha: float) -> tuple[float, float]:
        clients = dirichlet_factories(dataset.labels, 4, 22, 100.0, factory_alpha, seed=1)
        assert sorted(clients.samples.flat) == list(range(6000))
        assert np.bincount(clients.attributes["factory"]).tolist() == [6, 6, 5, 5]
        federation = build_federation(dataset, None, "by-attribute", clients=clients, attribute="factory")
        assert federation.factory_sizes.tolist() == [6, 6, 5, 5]
        found = heterogeneity(federation)
        return float(found.factory_tv.mean()), float(found.device_tv.mean())

    alike, different = spread(1000.0), spread(0.5)
    assert alike[0] < 0.06 < 0.3 < different[0]
    assert different[1] == pytest.approx(different[0], abs=0.1)  # devices of a factory are alike here
    with pytest.raises(DataError, match="cannot assign 3 devices to 4 factories"):
        dirichlet_factories(dataset.labels, 4, 3, 1.0, 1.0)
