"""Small data sets for the tests, and what it means for two to be the same."""

from collections.abc import Sequence

import numpy as np

from fedgs.data import DataSet, from_arrays
from fedgs.rng import stream


def numbered(sizes: Sequence[int], classes: int = 5, seed: int = 0, **options: object) -> DataSet:
    """A data set whose client ``w000``, ``w001``, … has that many samples, labels drawn at random.

    Every image shows the number of its sample, so that a mix-up is visible.
    """
    names = [f"w{number:03d}" for number in range(len(sizes))]
    clients = np.repeat(np.arange(len(sizes)), sizes)
    labels = np.random.default_rng(seed).integers(0, classes, len(clients))
    return from_arrays(
        number_images(len(clients)),
        labels,
        clients,
        client_names=names,
        classes=[f"c{number}" for number in range(classes)],
        name="numbered",
        **options,  # type: ignore[arg-type]
    )


def number_images(samples: int) -> np.ndarray:
    numbers = np.arange(samples, dtype="<u4")
    return numbers.view(np.uint8).reshape(samples, 2, 2)


def small_set(channels: tuple[int, ...] = (), split: bool = True) -> DataSet:
    """Five samples with everything a data set can have."""
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
