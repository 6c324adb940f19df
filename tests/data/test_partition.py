import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from small_sets import numbered

from fedgs.data import build_federation
from fedgs.data.partition import assign_factories
from fedgs.errors import DataError

NAMES = [f"d{number}" for number in range(350)]


def assigned(names: list[str], factories: int, partition: str, seed: int, **values: np.ndarray) -> np.ndarray:
    return assign_factories(names, factories, partition, seed, values, next(iter(values), None))[0]


@given(devices=st.integers(1, 60), factories=st.integers(1, 60), seed=st.integers(0, 99))
def test_balanced_sizes_differ_by_at_most_one(devices: int, factories: int, seed: int) -> None:
    if factories > devices:
        with pytest.raises(DataError, match="each needs at least one device"):
            assigned(NAMES[:devices], factories, "balanced", seed)
        return
    sizes = np.bincount(assigned(NAMES[:devices], factories, "balanced", seed), minlength=factories)
    assert sizes.sum() == devices
    assert sizes.max() - sizes.min() <= (devices % factories > 0)


def test_balanced_is_seeded_and_by_name() -> None:
    first = dict(zip(NAMES, assigned(NAMES, 10, "balanced", 1), strict=True))
    assert first == dict(zip(NAMES[::-1], assigned(NAMES[::-1], 10, "balanced", 1), strict=True))
    assert np.bincount(list(first.values())).tolist() == [35] * 10
    assert first != dict(zip(NAMES, assigned(NAMES, 10, "balanced", 2), strict=True))


def test_random_draws_each_device_by_itself() -> None:
    drawn = assigned(NAMES, 10, "random", 4)
    assert drawn[:40].tolist() == assigned(NAMES[:40], 10, "random", 4).tolist()
    sizes = np.bincount(drawn, minlength=10)
    assert sizes.std() > 1
    # 350 uniform draws over ten factories: chi-square with 9 degrees of freedom stays below 27.9 (p = 0.001).
    assert ((sizes - 35) ** 2 / 35).sum() < 27.9
    with pytest.raises(DataError, match=r"leaves factory \d+ of 50 without any of the 50 devices; take another seed"):
        assigned(NAMES[:50], 50, "random", 0)


def test_by_attribute_one_factory_a_value() -> None:
    values = np.array([7, 0, 7, 3, 0, 7], np.int32)
    dataset = numbered([10] * 6, attributes={"hsf": values})
    federation = build_federation(dataset, None, "by-attribute", attribute="hsf")
    assert federation.factory_names == ("hsf=0", "hsf=3", "hsf=7")
    assert federation.factory_sizes.tolist() == [2, 1, 3]
    assert federation.attributes["hsf"].tolist() == [0, 0, 3, 7, 7, 7]
    assert federation.device_names == ("w001", "w004", "w003", "w000", "w002", "w005")


def test_one_per_value_keeps_factories_of_unequal_size_together() -> None:
    dataset = numbered([10] * 6, attributes={"plant": np.array([7, 0, 7, 3, 0, 7], np.int32)})
    federation = build_federation(dataset, 3, "one-per-value", attribute="plant")
    assert federation.factory_sizes.tolist() == [2, 1, 3]
    with pytest.raises(DataError, match="gives 3 factories, one for each plant, not 2; set"):
        build_federation(dataset, 2, "one-per-value", attribute="plant")


def test_by_attribute_in_equal_pieces() -> None:
    values = np.arange(350, dtype=np.int32) % 7
    of_device = assigned(NAMES, 10, "by-attribute", 0, kind=values)
    assert np.bincount(of_device).tolist() == [35] * 10
    kinds = [set(values[of_device == factory]) for factory in range(10)]
    assert max(map(len, kinds)) <= 2
    assert kinds[0] == {0}
    assert kinds[9] == {6}
