"""A data set of five samples with everything a data set can have, and what it means for two to be the same."""

import numpy as np

from fedgs.data import DataSet
from fedgs.rng import stream


def small_set(channels: tuple[int, ...] = (), split: bool = True) -> DataSet:
    images = stream(0, "npz").integers(0, 256, (5, 4, 6, *channels)).astype(np.uint8)
    return DataSet(
        "small",
        images,
        np.array([0, 1, 1, 0, 1], np.uint8),
        np.array([0, 0, 2, 2, 2], np.int32),
        ("a", "b", "c"),
        ("no", "yes"),
        {"line": np.array([3, 1, 2], np.int32)},
        np.array([False, True, False, True, False]) if split else None,
    )


def assert_same(one: DataSet, other: DataSet) -> None:
    assert (one.name, one.client_names, one.classes) == (other.name, other.client_names, other.classes)
    for field in ("inputs", "targets", "clients"):
        left, right = getattr(one, field), getattr(other, field)
        assert left.dtype == right.dtype
        assert np.array_equal(left, right)
    assert one.attributes.keys() == other.attributes.keys()
    for key in one.attributes:
        assert np.array_equal(one.attributes[key], other.attributes[key])
    assert (one.test is None) == (other.test is None)
    if one.test is not None and other.test is not None:
        assert np.array_equal(one.test, other.test)
