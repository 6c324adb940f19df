"""FEMNIST in one .npz: this package's own form, or images with ``writers`` and LEAF's copies marked.

The second kind has ``images`` (n, 28, 28), ``labels``, ``writers`` (index into ``writer_names``), ``classes`` and
perhaps ``writer_hsf`` and ``leaf_dup``, the mask of the copies that LEAF's script makes. They are dropped
unless ``leaf_compat`` asks for them.
"""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from fedgs.data.femnist.form import CLASSES, SIDE, Piece, by_writer, check_labels, partition_of
from fedgs.data.npz import is_own, keys_of, texts
from fedgs.errors import InputFileError
from fedgs.files import read_npz

LOOKED_FOR = ".npz with writers"
_KEYS = ("images", "labels", "writers", "writer_names", "classes")


def find(path: Path) -> list[Path]:
    """Return the file itself when it is a .npz, or the only one in a folder; not one without writers."""
    files = sorted(path.glob("*.npz")) if path.is_dir() else [path] if path.is_file() else []
    return files if len(files) == 1 and files[0].suffix == ".npz" and not _is_other_data(files[0]) else []


def _is_other_data(file: Path) -> bool:
    keys = keys_of(file)  # of a file that cannot be read there are none: the error comes when it is loaded
    return bool(keys) and not is_own(keys) and not {"writers", "writer_names"} & keys


def check_form(path: Path, images: np.ndarray[Any, Any], classes: tuple[str, ...]) -> None:
    """Refuse arrays that are not FEMNIST's."""
    if classes != CLASSES:
        raise InputFileError(f"{path}: its {len(classes)} classes are not the 62 of FEMNIST, 0-9 A-Z a-z in this order")
    if images.shape[1:] != (SIDE, SIDE) or images.dtype != np.uint8:
        raise InputFileError(f"{path}: images are {images.dtype} {images.shape}; uint8 of (n, {SIDE}, {SIDE}) expected")


def read(path: Path, files: list[Path], leaf_compat: bool, spread: Callable[..., Iterator[Any]]) -> Iterator[Piece]:
    """Yield the writers of the second kind."""
    file = files[0]
    arrays = read_npz(file)
    missing = [key for key in _KEYS if key not in arrays]
    if missing:
        raise InputFileError(f"{file}: no {missing[0]!r} in it; it holds {', '.join(sorted(arrays))}")
    check_form(file, arrays["images"], texts(file, arrays, "classes"))
    names = texts(file, arrays, "writer_names")
    double = np.atleast_1d(arrays.get("leaf_dup", np.zeros(len(arrays["images"]), np.bool_))).astype(np.bool_)
    partitions = arrays.get("writer_hsf", np.array([partition_of(name) for name in names], np.int32))
    for key, array, other in (
        ("labels", arrays["labels"], "images"),
        ("writers", arrays["writers"], "images"),
        ("leaf_dup", double, "images"),
        ("writer_hsf", partitions, "writer_names"),
    ):
        if array.ndim != 1 or array.dtype.kind not in "iub" or np.any(array != array.astype(np.int32)):
            raise InputFileError(f"{file}: {key!r} must be a list of small whole numbers")
        if len(array) != len(arrays[other]):
            raise InputFileError(f"{file}: {len(array)} entries in {key!r} but {len(arrays[other])} in {other!r}")
    if len(set(names)) != len(names):
        raise InputFileError(f"{file}: a writer's name is there twice in 'writer_names'")
    writers = arrays["writers"]
    if np.any((writers < 0) | (writers >= len(names))):
        raise InputFileError(f"{file}: a number in 'writers' lies outside the {len(names)} writer names")
    absent = np.setdiff1d(np.arange(len(names)), writers)
    if absent.size:
        raise InputFileError(f"{file}: writer {names[absent[0]]!r} has no samples; leave such writers out")
    labels = check_labels(arrays["labels"], str(file))
    yield from by_writer(file, np.array(names)[writers], arrays["images"], labels, partitions[writers], double)
