"""Which samples each client has: the part of a data set that decides the devices, apart from the samples themselves.

A data set brings its own clients (FEMNIST's writers). :mod:`fedgs.data.label_skew` makes others for the same samples.
Clients are only a table of indices, so another partition never copies a sample. :func:`regroup` makes the one copy
where the result is wanted as a data set of its own.
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
class Clients:
    """Named clients and the samples of each."""

    names: tuple[str, ...]
    samples: IndexLists
    attributes: Mapping[str, NDArray[np.int32]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if len(self.names) != len(self.samples):
            raise DataError(f"{len(self.names)} client names for {len(self.samples)} lists of samples")
        if len(set(self.names)) != len(self.names):
            twice = next(name for name in self.names if self.names.count(name) > 1)
            raise DataError(f"the client name {twice!r} occurs twice; each device needs a name of its own")

    def __len__(self) -> int:
        return len(self.names)

    def check(self, dataset: DataSet) -> "Clients":
        """Return these clients when the data set has all of their samples."""
        outside = self.samples.flat[(self.samples.flat < 0) | (self.samples.flat >= len(dataset))]
        if len(outside):
            raise DataError(
                f"{dataset.name}: a client has sample {int(outside[0])}, the data set has {len(dataset)} from 0 on; "
                "make the clients from the labels of this data set"
            )
        return self

    def pick(self, rows: NDArray[np.int64]) -> "Clients":
        """Return these clients, in this order."""
        return Clients(
            tuple(self.names[int(row)] for row in rows),
            self.samples.pick(rows),
            {key: np.asarray(values)[rows] for key, values in self.attributes.items()},
        )

    def sorted(self) -> "Clients":
        """Return the same clients in the order of their names."""
        return self.pick(np.array(sorted(range(len(self)), key=self.names.__getitem__), dtype=np.int64))


def clients_of(dataset: DataSet) -> Clients:
    """Return the clients a data set brings itself."""
    offsets = np.searchsorted(dataset.clients, np.arange(len(dataset.client_names) + 1)).astype(np.int64)
    return Clients(
        dataset.client_names, IndexLists(np.arange(len(dataset), dtype=np.int64), offsets), dict(dataset.attributes)
    )


def regroup(dataset: DataSet, clients: Clients, name: str | None = None) -> DataSet:
    """Return a data set that belongs to ``clients``, its arrays copied once into their order.

    For saving or showing; ``build_federation(dataset, clients=clients)`` needs no copy.
    """
    clients = clients.check(dataset).sorted()
    order = clients.samples.flat
    return DataSet(
        name=name or dataset.name,
        inputs=take(dataset.inputs, order),
        targets=take(dataset.targets, order),
        clients=clients.samples.rows.astype(np.int32),
        client_names=clients.names,
        classes=dataset.classes,
        attributes=clients.attributes,
        test=None if dataset.test is None else dataset.test[order],
    )
