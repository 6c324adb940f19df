"""The one form of every data set: inputs and targets, a row a sample, and the client of each sample.

Which samples each client has is a table of indices of its own, :class:`Clients`. A data set brings one (FEMNIST's
writers); :mod:`fedgs.data.label_skew` makes others for the same samples, so another partition never copies a sample.
What can be wrong with arrays, and how it is said, stands here too: loaders and federations check with ``check_*``.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedgs.data.arrays import Arrays, find_not_finite, leaves, take
from fedgs.errors import DataError, suggestion

ONE_BIN = ("all",)
"""The bins of a federation whose targets are no classes, until a task says what to balance."""


@dataclass(frozen=True)
class DataSet:
    """Samples that belong to clients (writers, cameras, machines), before they become a federation.

    Samples of one client are contiguous and clients come in the order of their names, whatever order the
    files had. Arrays may be read-only memory maps; nothing in the package copies or changes them.
    """

    name: str
    inputs: Arrays
    """(samples, …) of any shape and type, or a tuple or dict of such arrays. FEMNIST: uint8, paper 255, ink 0."""
    targets: Arrays
    """(samples, …) what is to be predicted; with ``classes``, (samples,) indices into them."""
    clients: NDArray[np.int32]
    """(samples,) index into ``client_names``, non-decreasing."""
    client_names: tuple[str, ...]
    classes: tuple[str, ...]
    """Names of the classes; empty where the targets are none."""
    attributes: Mapping[str, NDArray[np.int32]] = field(default_factory=dict)
    """One number a client, by name: ``{"hsf": …}`` is the form partition of FEMNIST's writers."""
    test: NDArray[np.bool_] | None = None
    """(samples,) True where the source itself fixed a sample as test data; None: not split yet."""

    def __post_init__(self) -> None:
        if self.classes:
            check_classes(self.name, self.targets, self.classes)
        check_names(self.name, "client name", self.client_names)
        check_names(self.name, "class", self.classes)
        check_rows(self.name, inputs=self.inputs, targets=self.targets, clients=self.clients)
        check_mask(self.name, self.test, len(self))
        if self.clients.ndim != 1 or self.clients.dtype.kind not in "iu":
            raise DataError(
                f"{self.name}: clients are {self.clients.dtype} {self.clients.shape}; whole numbers, one a sample"
            )
        if len(self) and (int(self.clients[0]) < 0 or int(self.clients[-1]) >= len(self.client_names)):
            raise DataError(f"{self.name}: a client index lies outside the {len(self.client_names)} client names")
        if np.any(np.diff(self.clients) < 0):
            raise DataError(f"{self.name}: the samples are not grouped by client in the order of client_names")
        whose = self.client_names
        check_finite(
            self.name, lambda row: f"sample {row} (device {whose[self.clients[row]]!r})", inputs=self.inputs,
            targets=self.targets,
        )  # fmt: skip
        for key, values in self.attributes.items():
            if values.shape != (len(self.client_names),) or values.dtype.kind not in "iu":
                raise DataError(
                    f"{self.name}: attribute {key!r} has {values.size} values for {len(self.client_names)} clients; "
                    "one whole number each expected"
                )

    def __len__(self) -> int:
        return len(self.clients)

    @property
    def labels(self) -> NDArray[Any]:
        """(samples,) the class of each sample."""
        if not self.classes:
            raise DataError(f"{self.name}: its targets are no classes")
        labels: NDArray[Any] = self.targets
        return labels


@dataclass(frozen=True)
class IndexLists:
    """Lists of sample indices, one a device, in one flat array, read-only: views instead of copies.

    List ``i`` is ``flat[offsets[i]:offsets[i + 1]]`` (the row form of a compressed sparse matrix).
    """

    flat: NDArray[np.int64]
    offsets: NDArray[np.int64]
    """(lists + 1,), from 0 to ``len(flat)``, non-decreasing."""

    def __post_init__(self) -> None:
        for key in ("flat", "offsets"):  # views: the caller's own arrays stay as writable as they were
            view = getattr(self, key).view()
            view.flags.writeable = False
            object.__setattr__(self, key, view)

    @classmethod
    def of(cls, lists: Sequence[NDArray[Any]]) -> "IndexLists":
        """Join separate arrays."""
        offsets = np.cumsum([0, *(len(part) for part in lists)], dtype=np.int64)
        return cls(np.concatenate(lists).astype(np.int64) if lists else np.empty(0, np.int64), offsets)

    @classmethod
    def grouped(cls, number_of: NDArray[np.integer], lists: int) -> "IndexLists":
        """Return the samples of each list, in their order; ``number_of`` tells the list of each sample."""
        offsets = np.cumsum([0, *np.bincount(number_of, minlength=lists)], dtype=np.int64)
        return cls(np.argsort(number_of, kind="stable").astype(np.int64), offsets)

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, row: int) -> NDArray[np.int64]:
        if not 0 <= row < len(self):
            raise IndexError(f"list {row} of {len(self)}")
        return self.flat[self.offsets[row] : self.offsets[row + 1]]

    @property
    def sizes(self) -> NDArray[np.int64]:
        """(lists,) the length of each list."""
        return np.diff(self.offsets)

    @property
    def rows(self) -> NDArray[np.int64]:
        """(len(flat),) which list each entry of ``flat`` belongs to."""
        return np.repeat(np.arange(len(self)), self.sizes)

    def pick(self, rows: Sequence[int] | NDArray[np.int64]) -> "IndexLists":
        """Return these lists, in this order."""
        return IndexLists.of([self[int(row)] for row in rows])

    def label_counts(self, labels: NDArray[Any], classes: int) -> NDArray[np.int64]:
        """(lists, classes) how often each class occurs in each list."""
        cells = self.rows * classes + labels[self.flat]
        return np.bincount(cells, minlength=len(self) * classes).reshape(len(self), classes)


@dataclass(frozen=True)
class Clients:
    """Named clients and the samples of each."""

    names: tuple[str, ...]
    samples: IndexLists
    attributes: Mapping[str, NDArray[np.int32]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if len(self.names) != len(self.samples):
            raise DataError(f"{len(self.names)} client names for {len(self.samples)} lists of samples")
        check_names("clients", "client name", self.names)

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
    lists = IndexLists.grouped(dataset.clients, len(dataset.client_names))
    return Clients(dataset.client_names, lists, dict(dataset.attributes))


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


def check_rows(name: str, **trees: Arrays) -> None:
    """Refuse arrays that have not one row a sample."""
    rows = {}
    for what, array in _named(trees):
        if not array.ndim:
            raise DataError(f"{name}: {what} have shape (); they must have one row a sample")
        rows[what] = len(array)
    if len(set(rows.values())) > 1:
        there = ", ".join(f"{number} rows of {what}" for what, number in rows.items())
        raise DataError(f"{name}: {there}; there must be as many of each, one a sample")


def check_finite(name: str, called: Callable[[int], str], **trees: Arrays) -> None:
    """Refuse NaN and infinity; ``called`` says what the user calls the sample of a row."""
    for what, array in _named(trees):
        row = find_not_finite(array)
        if row is not None:
            raise DataError(f"{name}: {what} of {called(row)} hold NaN or infinity; mend or drop the sample")


def _named(trees: Mapping[str, Arrays]) -> list[tuple[str, Any]]:
    """Return all arrays of these trees with what a message calls them."""
    return [(f"{kind} {key!r}" if key else kind, array) for kind, tree in trees.items() for key, array in leaves(tree)]


def check_mask(name: str, test: NDArray[Any] | None, samples: int) -> None:
    """Refuse a test mask that is not one bool a sample."""
    if test is not None and (test.shape != (samples,) or test.dtype != np.bool_):
        raise DataError(
            f"{name}: the test mask has {test.size} entries ({test.dtype}) for {samples} samples; one bool each"
        )


def check_names(name: str, kind: str, names: Sequence[str]) -> None:
    """Refuse a name that is there twice."""
    if len(set(names)) != len(names):
        twice = next(text for text in names if names.count(text) > 1)
        raise DataError(f"{name}: the {kind} {twice!r} is there twice")


def check_classes(name: str, targets: Any, classes: Sequence[str]) -> None:
    """Refuse targets that are not one class number a sample."""
    if not isinstance(targets, np.ndarray) or targets.ndim != 1 or targets.dtype.kind not in "iu":
        shape = f"{targets.dtype} {targets.shape}" if isinstance(targets, np.ndarray) else "several arrays"
        raise DataError(f"{name}: labels are {shape}; one class number or class name a sample")
    if len(targets) and int(targets.min()) < 0:
        raise DataError(f"{name}: label {int(targets.min())} is negative; classes are numbered from 0")
    if len(targets) and int(targets.max()) >= len(classes):
        raise DataError(f"{name}: label {int(targets.max())} has no class; there are {len(classes)} classes")


def are_numbers(classes: Sequence[str]) -> bool:
    """Tell whether classes have no names of their own, but the numbers 0, 1, 2, …"""
    return list(classes) == [str(number) for number in range(len(classes))]


def match_classes(name: str, classes: Sequence[str], wanted: Sequence[str]) -> NDArray[np.int64]:
    """Return which of the task's classes, ``wanted``, each of the data's is: by name, or by number if it has no name.

    The data may lack classes; one that the task does not know is refused.
    """
    if are_numbers(classes):
        return np.arange(len(classes))
    unknown = next((one for one in classes if one not in wanted), None)
    if unknown is not None:
        raise DataError(
            f"{name}: the class {unknown!r} is not one of the task's; {suggestion(unknown, wanted, 'they are')}"
        )
    return np.array([wanted.index(one) for one in classes], np.int64)
