"""Gather writers that come one by one into the one array of a data set, sorted by name, without holding both."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedgs.data.dataset import DataSet
from fedgs.data.femnist.form import CLASSES, SIDE, partition_attribute, repeats


class Samples(NamedTuple):
    """All samples of one writer."""

    images: NDArray[np.uint8]
    labels: NDArray[np.uint8]
    test: NDArray[np.bool_] | None = None


def join_split(train: Samples, test: Samples) -> Samples:
    """Put a writer's training samples before the test samples, with the mask that tells them apart."""
    return Samples(
        np.concatenate([train.images, test.images]),
        np.concatenate([train.labels, test.labels]),
        np.arange(len(train.labels) + len(test.labels)) >= len(train.labels),
    )


def without_repeats(samples: Samples) -> Samples:
    """Drop the copies that LEAF's script made."""
    keep = ~repeats(*samples)
    return Samples(samples.images[keep], samples.labels[keep], None if samples.test is None else samples.test[keep])


def gather(name: str, writers: dict[str, Samples], has_split: bool) -> DataSet:
    """Empty ``writers`` into a data set. Each writer's own arrays are let go as soon as they are copied."""
    names = tuple(sorted(writers))
    sizes = np.array([len(writers[writer].labels) for writer in names], np.int64)
    total = int(sizes.sum())
    images = np.empty((total, SIDE, SIDE), np.uint8)
    labels = np.empty(total, np.uint8)
    test = np.zeros(total, np.bool_) if has_split else None
    start = 0
    for writer in names:
        samples = writers.pop(writer)
        here = slice(start, start + len(samples.labels))
        images[here] = samples.images
        labels[here] = samples.labels
        if test is not None and samples.test is not None:
            test[here] = samples.test
        start = here.stop
    clients = np.repeat(np.arange(len(names), dtype=np.int32), sizes)
    return DataSet(name, images, labels, clients, names, CLASSES, partition_attribute(names), test)
