"""Label-skewed partitions: the samples of any labelled set, split unevenly among devices.

These functions look at labels alone and return :class:`~fedgs.data.Clients`, a table of sample indices:
no image is moved. ``build_federation(dataset, clients=…)`` uses it directly.

``dirichlet`` (Yurochkin et al., 2019; Li et al., 2022): the samples of class c are split among the devices in
shares drawn from a symmetric Dirichlet(α) law. Small α: a class lives on few devices and device sizes differ; large
α: all devices look alike. ``dirichlet_factories`` does so twice, first among the factories and then among the devices
of each, so that factories differ too. ``classes_per_device`` (after McMahan et al., 2017): every device has k
classes, every class is on nearly the same number of devices, and its samples are split evenly among them.
"""

from dataclasses import replace
from math import isfinite
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedgs.data.arrays import is_whole
from fedgs.data.dataset import Clients, IndexLists
from fedgs.data.partition import check_factories
from fedgs.errors import DataError
from fedgs.rng import key, stream

DRAWS = 100


def dirichlet(
    labels: ArrayLike, devices: int, alpha: float, *, seed: int = 0, min_samples: int = 2, prefix: str = "device"
) -> Clients:
    """Assign every sample to one of ``devices``, with Dirichlet(``alpha``) shares of each class.

    Shares are drawn again, up to 100 times, until each device has ``min_samples``.
    """
    labels = _checked(labels, devices, min_samples)
    if not (alpha > 0 and isfinite(alpha)):
        raise DataError(f"dirichlet alpha is {alpha}; it must be finite and greater than zero")
    for draw in range(DRAWS):
        client = np.empty(len(labels), np.int64)
        for value in np.unique(labels):
            generator = stream(seed, "dirichlet", draw, int(value))
            mine = generator.permutation(np.flatnonzero(labels == value))
            cuts = np.floor(np.cumsum(generator.dirichlet(np.full(devices, alpha)))[:-1] * len(mine)).astype(np.int64)
            client[mine] = np.searchsorted(cuts, np.arange(len(mine)), side="right")
        if np.bincount(client, minlength=devices).min() >= min_samples:
            return _clients(client, devices, prefix)
    raise DataError(
        f"dirichlet with alpha {alpha:g} gave no {devices} devices of at least {min_samples} samples in {DRAWS} draws; "
        "raise alpha, or lower devices or min_samples"
    )


def dirichlet_factories(
    labels: ArrayLike,
    factories: int,
    devices: int,
    alpha: float,
    factory_alpha: float,
    *,
    seed: int = 0,
    min_samples: int = 2,
    prefix: str = "device",
) -> Clients:
    """Assign every sample to a factory by Dirichlet(``factory_alpha``), then to one of its devices by ``alpha``.

    All factories have the same number of devices, or one more. Their attribute ``factory`` says which is whose:
    ``build_federation(dataset, None, "by-attribute", attribute="factory", clients=…)``.
    """
    labels = _checked(labels, devices, min_samples)
    check_factories(devices, factories)
    whole = dirichlet(labels, factories, factory_alpha, seed=key(seed, "factories"), min_samples=0)
    numbers = np.array_split(np.arange(devices), factories)
    client = np.empty(len(labels), np.int64)
    for factory, mine in enumerate(numbers):
        samples = whole.samples[factory]
        inner = dirichlet(
            labels[samples], len(mine), alpha, seed=key(seed, "factory", factory), min_samples=min_samples
        )
        client[samples[inner.samples.flat]] = mine[inner.samples.rows]
    factory_of = np.repeat(np.arange(factories, dtype=np.int32), [len(mine) for mine in numbers])
    return replace(_clients(client, devices, prefix), attributes={"factory": factory_of})


def classes_per_device(labels: ArrayLike, devices: int, k: int, *, seed: int = 0, prefix: str = "device") -> Clients:
    """Assign every sample to one of ``devices``, each with exactly ``k`` classes."""
    labels = _checked(labels, devices, 1)
    present, sizes = np.unique(labels, return_counts=True)
    if not is_whole(k) or not 1 <= k <= len(present):
        raise DataError(f"{k} classes per device were asked for; the set has {len(present)} classes")
    if devices * k < len(present):
        raise DataError(
            f"{devices} devices of {k} classes cannot hold all {len(present)} classes; ask for more devices or classes"
        )
    holds = np.zeros((devices, len(present)), bool)
    for device in range(devices):
        # The least used classes first, ties in random order: all classes end up on nearly as many devices.
        ties = stream(seed, "classes-per-device", device).random(len(present))
        holds[device, np.lexsort((ties, holds.sum(axis=0)))[:k]] = True
    client = np.empty(len(labels), np.int64)
    for number, value in enumerate(present):
        holders = np.flatnonzero(holds[:, number])
        if sizes[number] < len(holders):
            raise DataError(
                f"class {value} has {sizes[number]} samples for {len(holders)} devices; ask for fewer of them"
            )
        mine = stream(seed, "classes-per-device", "samples", int(value)).permutation(np.flatnonzero(labels == value))
        for holder, piece in zip(holders, np.array_split(mine, len(holders)), strict=True):
            client[piece] = holder
    return _clients(client, devices, prefix)


def _checked(labels: ArrayLike, devices: int, min_samples: int) -> NDArray[Any]:
    numbers = np.asarray(labels)
    if numbers.ndim != 1 or numbers.dtype.kind not in "iu":
        raise DataError("labels must be one class number a sample; from_arrays(…).labels turns names into numbers")
    if not is_whole(devices) or devices < 1 or devices * max(1, min_samples) > len(numbers):
        raise DataError(f"cannot split {len(numbers)} samples among {devices} devices with at least {min_samples} each")
    return numbers


def _clients(client: NDArray[np.int64], devices: int, prefix: str) -> Clients:
    """Return the table of clients; the samples of each keep their original order."""
    width = len(str(devices - 1))
    return Clients(
        tuple(f"{prefix}-{number:0{width}d}" for number in range(devices)), IndexLists.grouped(client, devices)
    )
