"""Arrays with a row a sample: one, or several in a tuple or a dict, as a network with several inputs takes them.

All arrays of a set have the same number of rows. They are read by ``array[rows]`` alone, so a memory map stays one, and
anything with that operator will do: :class:`JoinedArray` lays two arrays end to end without copying either.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from hashlib import blake2b
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedgs.errors import DataError

Arrays = Any
"""An array (samples, …), or a tuple or a dict of such arrays."""
CHECKED_AT_ONCE = 1 << 22
"""Numbers that are looked at together when an array is searched for NaN."""
DIGESTED_BYTES = 1 << 24
"""Of an array with more bytes, a digest reads evenly spaced rows alone: a memory map may be larger than memory."""


def is_whole(value: Any) -> bool:
    """Tell whether a value is a whole number, Python's or numpy's; True and 4.0 are not."""
    return isinstance(value, int | np.integer) and not isinstance(value, bool)


def as_arrays(tree: Any, what: str) -> Arrays:
    """Return tensors, lists and columns of tables as arrays; what is read by ``array[rows]`` stays as it is."""

    def one(value: Any) -> Any:
        if hasattr(value, "detach"):  # a torch tensor
            return value.detach().cpu().numpy()
        if hasattr(value, "to_numpy"):  # a column of a table
            value = value.to_numpy()
        if not hasattr(value, "dtype") or not hasattr(value, "shape"):
            value = np.asarray(value)
        if isinstance(value, np.ma.MaskedArray):
            if np.ma.is_masked(value):
                raise DataError(f"{what} hold masked values; fill them in or drop the samples")
            value = value.data
        if value.dtype == object and all(isinstance(item, int | float | np.number) for item in value.flat):
            return np.array(value.tolist())  # numbers of a table with mixed columns
        return value

    if not any(True for _ in leaves(tree)):
        raise DataError(f"{what} are empty; give an array, or a tuple or a dict of arrays")
    if any(hasattr(value, "tocsr") for _, value in leaves(tree)):
        raise DataError(f"{what} are sparse, which is not possible; give dense arrays, with .toarray()")
    if any(isinstance(value, Mapping | tuple) for _, value in leaves(tree)):
        raise DataError(f"{what} are nested; give an array, or a tuple or a dict of arrays")
    try:
        return map_tree(one, tree)
    except DataError:
        raise
    except (TypeError, ValueError) as error:  # bfloat16, or rows of different lengths
        reason = str(error).splitlines()[0]
        raise DataError(
            f"{what} cannot be read as an array ({reason}); give rows of one shape, tensors as .float()"
        ) from None


def map_tree(function: Callable[..., Any], tree: Any, *others: Any) -> Any:
    """Return the tree with ``function`` applied to each of its arrays (and to the same places of the others)."""
    if isinstance(tree, Mapping):
        return {key: map_tree(function, tree[key], *(other[key] for other in others)) for key in tree}
    if isinstance(tree, tuple):
        return tuple(map_tree(function, *parts) for parts in zip(tree, *others, strict=True))
    return function(tree, *others)


def leaves(tree: Any) -> Iterator[tuple[str, Any]]:
    """Yield every array with its name: its key in a dict, its number in a tuple, "" where it is the only one."""
    if isinstance(tree, Mapping):
        yield from ((str(key), value) for key, value in tree.items())
    elif isinstance(tree, tuple):
        yield from ((str(number), value) for number, value in enumerate(tree))
    else:
        yield "", tree


def form_of(tree: Any) -> str:
    """Return what a tree is, in words: two of one form have their arrays in the same places."""
    if isinstance(tree, Mapping):
        return f"a dict of {', '.join(sorted(map(repr, tree)))}"
    return f"a tuple of {len(tree)} arrays" if isinstance(tree, tuple) else "an array"


def rows_of(tree: Any) -> int:
    """Return the number of samples."""
    name, array = next(leaves(tree))
    if not array.ndim:
        raise DataError(f"{name or 'inputs'} have shape (); they must have one row a sample")
    return len(array)


def take(tree: Any, rows: NDArray[np.integer]) -> Any:
    """Return these samples, in memory."""
    return map_tree(lambda array: np.asarray(array[rows]), tree)


def shapes_of(tree: Any) -> Any:
    """Return the shape of one sample, in the form of the tree."""
    return map_tree(lambda array: tuple(int(side) for side in array.shape[1:]), tree)


def find_not_finite(array: Any) -> int | None:
    """Return the first row that holds NaN or infinity; None where there is none. Reads a memory map piece by piece."""
    if array.dtype.kind != "f":
        return None
    step = max(1, CHECKED_AT_ONCE // max(1, prod(array.shape[1:])))
    for first in range(0, len(array), step):
        part = np.asarray(array[first : first + step])
        if not np.isfinite(part).all():
            finite = np.isfinite(part.reshape(len(part), -1)).all(axis=1)
            return first + int(np.argmin(finite))
    return None


def digest_of(*trees: Any) -> str:
    """Return hexadecimal digits that stand for arrays: all of a small one, rows evenly spaced of a large one."""
    digest = blake2b(digest_size=16)
    for tree in trees:
        for name, array in leaves(tree):
            digest.update(f"{name} {array.shape} {array.dtype}\n".encode())
            row_bytes = max(1, prod(array.shape[1:]) * array.dtype.itemsize)
            rows = min(len(array), max(1, DIGESTED_BYTES // row_bytes))
            digest.update(np.asarray(array[np.arange(rows) * len(array) // max(1, rows)]).tobytes())
    return digest.hexdigest()


class JoinedArray:
    """Arrays laid end to end, read as one."""

    def __init__(self, parts: Sequence[Any]) -> None:
        self._parts = list(parts)
        self._ends = np.cumsum([len(part) for part in parts])
        self.shape = (int(self._ends[-1]), *parts[0].shape[1:])
        self.ndim = len(self.shape)
        self.dtype = np.result_type(*(part.dtype for part in parts))

    def __len__(self) -> int:
        return int(self.shape[0])

    def __getitem__(self, rows: Any) -> NDArray[Any]:
        wanted = np.arange(len(self))[rows]
        found = np.empty((*wanted.shape, *self.shape[1:]), self.dtype)
        part_of = np.searchsorted(self._ends, wanted, side="right")
        for number, part in enumerate(self._parts):
            here = part_of == number
            if np.any(here):
                first = int(self._ends[number]) - len(part)
                found[here] = part[wanted[here] - first]
        return found
