"""The one in-memory form of every data set: images in one array, each sample with a label and an owner."""

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from fedgs.errors import DataError


@dataclass(frozen=True)
class DataSet:
    """Labelled images that belong to owners (writers, cameras), before they become a federation.

    Samples of one owner are contiguous and owners come in the order of their names, whatever order the
    files had. ``images`` may be a read-only memory map; nothing in the package copies or changes it.
    """

    name: str
    images: NDArray[np.uint8]
    """(samples, height, width) or (samples, height, width, channels); FEMNIST: paper 255, ink 0."""
    labels: NDArray[np.uint8]
    """(samples,) index into ``classes``."""
    owners: NDArray[np.int32]
    """(samples,) index into ``owner_names``, non-decreasing."""
    owner_names: tuple[str, ...]
    classes: tuple[str, ...]
    attributes: Mapping[str, NDArray[np.int32]] = field(default_factory=dict)
    """One number an owner, by name: ``{"hsf": …}`` is the form partition of FEMNIST's writers."""
    test: NDArray[np.bool_] | None = None
    """(samples,) True where the source itself fixed a sample as test data; None: not split yet."""

    def __post_init__(self) -> None:
        for key, values in (("labels", self.labels), ("owners", self.owners)):
            if values.ndim != 1 or values.dtype.kind not in "iu":
                raise DataError(f"{self.name}: {key} are {values.dtype} {values.shape}; whole numbers, one a sample")
        if self.images.dtype != np.uint8 or self.images.ndim not in (3, 4):
            raise DataError(f"{self.name}: images must be uint8 of shape (samples, height, width[, channels])")
        for key, names in (("owner name", self.owner_names), ("class", self.classes)):
            if len(set(names)) != len(names):
                twice = next(name for name in names if names.count(name) > 1)
                raise DataError(f"{self.name}: the {key} {twice!r} is there twice")
        samples = len(self.labels)
        if len(self.images) != samples or len(self.owners) != samples:
            raise DataError(
                f"{self.name}: {len(self.images)} images, {samples} labels and {len(self.owners)} owners; "
                "there must be one of each per sample"
            )
        if samples and int(self.labels.min()) < 0:
            raise DataError(f"{self.name}: label {int(self.labels.min())} is negative; classes are numbered from 0")
        if samples and int(self.labels.max()) >= len(self.classes):
            raise DataError(
                f"{self.name}: label {int(self.labels.max())} has no class; there are {len(self.classes)} classes"
            )
        if samples and (int(self.owners[0]) < 0 or int(self.owners[-1]) >= len(self.owner_names)):
            raise DataError(f"{self.name}: an owner index lies outside the {len(self.owner_names)} owner names")
        if np.any(np.diff(self.owners) < 0):
            raise DataError(f"{self.name}: the samples are not grouped by owner in the order of owner_names")
        for key, values in self.attributes.items():
            if values.shape != (len(self.owner_names),) or values.dtype.kind not in "iu":
                raise DataError(
                    f"{self.name}: attribute {key!r} has {values.size} values for {len(self.owner_names)} owners; "
                    "one whole number each expected"
                )
        if self.test is not None and (self.test.shape != (samples,) or self.test.dtype != np.bool_):
            raise DataError(
                f"{self.name}: the test mask has {self.test.size} entries ({self.test.dtype}) for {samples} samples; "
                "one bool each expected"
            )

    def __len__(self) -> int:
        return len(self.labels)
