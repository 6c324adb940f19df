"""Partitioners: which factory each device belongs to.

==============  ======================================================================================
``balanced``    the paper's (Sec. VII-A): a seeded shuffle of the devices cut into equal pieces, K/M
                each; where M does not divide K the sizes differ by at most one
``random``      the released code's: every device goes to a uniformly random factory, so sizes vary
                (31 to 46 in one of the authors' runs). A factory that stays empty is an error, not
                drawn again: another draw would no longer be uniform
``by-attribute``  devices that are alike share a factory, so that factories differ in kind (FEMNIST's
                form partition ``hsf``). Without a number of factories there is one per value; with
                one, the devices are sorted by value and cut into equal pieces
==============  ======================================================================================

Names are put in order first, so the order of files or workers never matters.
"""

from collections.abc import Mapping, Sequence
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

from fedgs.data.arrays import is_whole
from fedgs.errors import DataError
from fedgs.rng import stream

Partition = Literal["balanced", "random", "by-attribute"]
PARTITIONS: tuple[str, ...] = get_args(Partition)


def balanced(names: Sequence[str], factories: int, seed: int) -> NDArray[np.int32]:
    """Return the factory of each device: sizes equal, or different by one."""
    check_factories(len(names), factories)
    order = np.array(sorted(range(len(names)), key=names.__getitem__), dtype=np.int64)
    shuffled = order[stream(seed, "factories", "balanced").permutation(len(names))]
    return _cut(shuffled, factories)


def random(names: Sequence[str], factories: int, seed: int) -> NDArray[np.int32]:
    """Return the factory of each device: each drawn by itself, uniformly."""
    check_factories(len(names), factories)
    drawn = np.array([stream(seed, "factories", "random", name).integers(factories) for name in names], dtype=np.int32)
    sizes = np.bincount(drawn, minlength=factories)
    if not sizes.all():
        raise DataError(
            f"partition 'random' with seed {seed} leaves factory {int(np.argmin(sizes))} of {factories} without any "
            f"of the {len(names)} devices; take another seed, fewer factories or partition 'balanced'"
        )
    return drawn


def by_attribute(
    names: Sequence[str], values: NDArray[np.int32], factories: int | None, seed: int
) -> NDArray[np.int32]:
    """Return the factory of each device: one per value, or equal pieces in the order of values."""
    if factories is None:
        return np.unique(values, return_inverse=True)[1].astype(np.int32)
    check_factories(len(names), factories)
    tie_breaks = {
        name: int(rank)
        for name, rank in zip(
            sorted(names), stream(seed, "factories", "by-attribute").permutation(len(names)), strict=True
        )
    }
    order = sorted(range(len(names)), key=lambda device: (values[device], tie_breaks[names[device]]))
    return _cut(np.array(order, dtype=np.int64), factories)


def assign_factories(
    names: Sequence[str],
    factories: int | None,
    partition: str,
    seed: int,
    attributes: Mapping[str, NDArray[np.int32]],
    attribute: str | None = None,
) -> tuple[NDArray[np.int32], tuple[str, ...]]:
    """Return the factory of each device and the factories' names."""
    if partition not in PARTITIONS:
        raise DataError(f"no partition {partition!r}; choose one of {', '.join(PARTITIONS)}")
    if partition == "by-attribute":
        if attribute is None or attribute not in attributes:
            known = ", ".join(map(repr, attributes)) or "none"
            raise DataError(
                f"partition 'by-attribute' needs an attribute of the devices; {attribute!r} is not among them "
                f"(there are: {known})"
            )
        values = np.asarray(attributes[attribute])
        of_device = by_attribute(names, values, factories, seed)
        if factories is None:
            return of_device, tuple(f"{attribute}={value}" for value in np.unique(values))
        return of_device, _names(factories)
    if attribute is not None:
        raise DataError(f"attribute {attribute!r} has no effect on partition {partition!r}; use 'by-attribute'")
    if factories is None:
        raise DataError(f"partition {partition!r} needs the number of factories")
    assign = balanced if partition == "balanced" else random
    return assign(names, factories, seed), _names(factories)


def _names(factories: int) -> tuple[str, ...]:
    return tuple(f"factory-{number:02d}" for number in range(factories))


def check_factories(devices: int, factories: int) -> None:
    """Refuse a number of factories of which some would be empty."""
    if not is_whole(factories) or not 1 <= factories <= devices:
        raise DataError(f"cannot assign {devices} devices to {factories} factories; each needs at least one device")


def _cut(order: NDArray[np.int64], factories: int) -> NDArray[np.int32]:
    of_device = np.empty(len(order), np.int32)
    for number, piece in enumerate(np.array_split(order, factories)):
        of_device[piece] = number
    return of_device
