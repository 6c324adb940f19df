"""Small data sets for the tests: every image shows the number of its sample, so that a mix-up is visible."""

from collections.abc import Sequence

import numpy as np

from fedgs.data import DataSet, from_arrays


def numbered(sizes: Sequence[int], classes: int = 5, seed: int = 0, **options: object) -> DataSet:
    """A data set whose client ``w000``, ``w001``, … has that many samples, labels drawn at random."""
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
