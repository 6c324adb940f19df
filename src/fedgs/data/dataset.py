"""The one form of every data set: inputs and targets, a row a sample, and the client of each sample."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedgs.data.arrays import Arrays, leaves, rows_of
from fedgs.errors import DataError


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
        samples = rows_of(self.targets)
        if self.classes:
            check_classes(self.name, self.targets, self.classes)
        if self.clients.ndim != 1 or self.clients.dtype.kind not in "iu":
            raise DataError(
                f"{self.name}: clients are {self.clients.dtype} {self.clients.shape}; whole numbers, one a sample"
            )
        for key, names in (("client name", self.client_names), ("class", self.classes)):
            if len(set(names)) != len(names):
                twice = next(name for name in names if names.count(name) > 1)
                raise DataError(f"{self.name}: the {key} {twice!r} is there twice")
        for name, array in (*leaves(self.inputs), *leaves(self.targets), ("clients", self.clients)):
            if not array.ndim:
                raise DataError(f"{self.name}: {name or 'inputs'} have shape (); they must have one row a sample")
            if len(array) != samples:
                raise DataError(
                    f"{self.name}: {len(array)} rows of {name or 'inputs'} for {samples} samples; "
                    "inputs, targets and clients must have one row a sample"
                )
        if samples and (int(self.clients[0]) < 0 or int(self.clients[-1]) >= len(self.client_names)):
            raise DataError(f"{self.name}: a client index lies outside the {len(self.client_names)} client names")
        if np.any(np.diff(self.clients) < 0):
            raise DataError(f"{self.name}: the samples are not grouped by client in the order of client_names")
        for key, values in self.attributes.items():
            if values.shape != (len(self.client_names),) or values.dtype.kind not in "iu":
                raise DataError(
                    f"{self.name}: attribute {key!r} has {values.size} values for {len(self.client_names)} clients; "
                    "one whole number each expected"
                )
        if self.test is not None and (self.test.shape != (samples,) or self.test.dtype != np.bool_):
            raise DataError(
                f"{self.name}: the test mask has {self.test.size} entries ({self.test.dtype}) for {samples} samples; "
                "one bool each expected"
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


def check_classes(name: str, targets: Any, classes: tuple[str, ...]) -> None:
    """Refuse targets that are not one class number a sample."""
    if not isinstance(targets, np.ndarray) or targets.ndim != 1 or targets.dtype.kind not in "iu":
        shape = f"{targets.dtype} {targets.shape}" if isinstance(targets, np.ndarray) else "several arrays"
        raise DataError(f"{name}: labels are {shape}; whole numbers, one a sample")
    if len(targets) and int(targets.min()) < 0:
        raise DataError(f"{name}: label {int(targets.min())} is negative; classes are numbered from 0")
    if len(targets) and int(targets.max()) >= len(classes):
        raise DataError(f"{name}: label {int(targets.max())} has no class; there are {len(classes)} classes")
