"""Lists of sample indices, one list a device, in one flat array: views instead of copies.

List ``i`` is ``flat[offsets[i]:offsets[i + 1]]`` (the row form of a compressed sparse matrix). A federation of
350 devices keeps two such tables, train and test, beside one shared image array.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class IndexLists:
    """Ragged lists of sample indices, read-only."""

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
        offsets = np.zeros(len(lists) + 1, np.int64)
        np.cumsum([len(part) for part in lists], out=offsets[1:])
        flat = np.concatenate(lists).astype(np.int64) if lists else np.empty(0, np.int64)
        return cls(flat, offsets)

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
