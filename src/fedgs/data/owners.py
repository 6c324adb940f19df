"""Who owns which samples: the part of a data set that decides the devices, apart from the samples themselves.

A data set brings its own owners (FEMNIST's writers). The synthesisers of :mod:`fedgs.data.synthesis` make
others for the same samples, and because ownership is only a table of indices, dealing a set out anew never
copies a sample. :func:`regroup` makes the one copy for those who want the result as a data set of its own.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from fedgs.data.arrays import take
from fedgs.data.dataset import DataSet
from fedgs.data.indexing import IndexLists
from fedgs.errors import DataError


@dataclass(frozen=True)
class Owners:
    """Named owners and the samples of each."""

    names: tuple[str, ...]
    samples: IndexLists
    attributes: Mapping[str, NDArray[np.int32]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if len(self.names) != len(self.samples):
            raise DataError(f"{len(self.names)} owner names for {len(self.samples)} lists of samples")
        if len(set(self.names)) != len(self.names):
            twice = next(name for name in self.names if self.names.count(name) > 1)
            raise DataError(f"the owner name {twice!r} occurs twice; each device needs a name of its own")

    def __len__(self) -> int:
        return len(self.names)

    def check(self, dataset: DataSet) -> "Owners":
        """Return these owners when the data set has all of their samples."""
        outside = self.samples.flat[(self.samples.flat < 0) | (self.samples.flat >= len(dataset))]
        if len(outside):
            raise DataError(
                f"{dataset.name}: an owner has sample {int(outside[0])}, the data set has {len(dataset)} from 0 on; "
                "deal out the labels of this very set"
            )
        return self

    def pick(self, rows: NDArray[np.int64]) -> "Owners":
        """Return these owners, in this order."""
        return Owners(
            tuple(self.names[int(row)] for row in rows),
            self.samples.pick(rows),
            {key: np.asarray(values)[rows] for key, values in self.attributes.items()},
        )

    def sorted(self) -> "Owners":
        """Return the same owners in the order of their names."""
        return self.pick(np.array(sorted(range(len(self)), key=self.names.__getitem__), dtype=np.int64))


def owners_of(dataset: DataSet) -> Owners:
    """Return the owners a data set brings itself."""
    offsets = np.searchsorted(dataset.owners, np.arange(len(dataset.owner_names) + 1)).astype(np.int64)
    return Owners(
        dataset.owner_names, IndexLists(np.arange(len(dataset), dtype=np.int64), offsets), dict(dataset.attributes)
    )


def regroup(dataset: DataSet, owners: Owners, name: str | None = None) -> DataSet:
    """Return a data set that belongs to ``owners``, its arrays copied once into their order.

    For saving or showing; ``build_federation(dataset, owners=owners)`` needs no copy.
    """
    owners = owners.check(dataset).sorted()
    order = owners.samples.flat
    return DataSet(
        name=name or dataset.name,
        inputs=take(dataset.inputs, order),
        targets=take(dataset.targets, order),
        owners=owners.samples.rows.astype(np.int32),
        owner_names=owners.names,
        classes=dataset.classes,
        attributes=owners.attributes,
        test=None if dataset.test is None else dataset.test[order],
    )
