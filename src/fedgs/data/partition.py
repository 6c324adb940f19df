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
``one-per-value``  always one factory a value of the attribute, however many devices have it
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

Partition = Literal["balanced", "random", "by-attribute", "one-per-value"]
PARTITIONS: tuple[str, ...] = get_args(Partition)


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
    goes_by = partition in ("by-attribute", "one-per-value")
    if goes_by and (attribute is None or attribute not in attributes):
        raise DataError(
            f"partition {partition!r} needs an attribute of the devices; {attribute!r} is not among them "
            f"(there are: {', '.join(map(repr, attributes)) or 'none'})"
        )
    if not goes_by and attribute is not None:
        raise DataError(f"attribute {attribute!r} has no effect on partition {partition!r}; use 'by-attribute'")
    values = np.asarray(attributes[attribute]) if attribute is not None else np.zeros(len(names), np.int32)
    if factories is None or partition == "one-per-value":
        if attribute is None:
            raise DataError(f"partition {partition!r} needs the number of factories")
        found, number_of = np.unique(values, return_inverse=True)
        if factories not in (None, len(found)):
            raise DataError(
                f"partition 'one-per-value' gives {len(found)} factories, one for each {attribute}, not {factories}; "
                f"set federation.factories={len(found)}, or use 'by-attribute'"
            )
        return number_of.astype(np.int32), tuple(f"{attribute}={value}" for value in found)
    check_factories(len(names), factories)
    if partition == "random":
        of_device = _random(names, factories, seed)
    else:
        by_name = np.array(sorted(range(len(names)), key=names.__getitem__), dtype=np.int64)
        drawn = stream(seed, "factories", partition).permutation(len(names))
        if partition == "balanced":
            order = by_name[drawn]
        else:  # sorted by value, those of one value in the order that was drawn
            rank = np.empty(len(names), np.int64)
            rank[by_name] = drawn
            order = np.lexsort((rank, values))
        of_device = np.empty(len(names), np.int32)
        for number, piece in enumerate(np.array_split(order, factories)):
            of_device[piece] = number
    return of_device, tuple(f"factory-{number:02d}" for number in range(factories))


def _random(names: Sequence[str], factories: int, seed: int) -> NDArray[np.int32]:
    drawn = np.array([stream(seed, "factories", "random", name).integers(factories) for name in names], dtype=np.int32)
    sizes = np.bincount(drawn, minlength=factories)
    if not sizes.all():
        raise DataError(
            f"partition 'random' with seed {seed} leaves factory {int(np.argmin(sizes))} of {factories} without any "
            f"of the {len(names)} devices; take another seed, fewer factories or partition 'balanced'"
        )
    return drawn


def check_factories(devices: int, factories: int) -> None:
    """Refuse a number of factories of which some would be empty."""
    if not is_whole(factories) or not 1 <= factories <= devices:
        raise DataError(f"cannot assign {devices} devices to {factories} factories; each needs at least one device")
