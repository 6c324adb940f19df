"""FEMNIST in one .npz: this package's own form, or images with ``writers`` and LEAF's copies marked.

The second kind has ``images`` (n, 28, 28), ``labels``, ``writers`` (index into ``writer_names``), ``classes`` and
perhaps ``writer_hsf`` and ``leaf_dup``, the mask of the copies that LEAF's script makes. They are dropped
unless ``leaf_compat`` asks for them.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from fedgs.data import user_data
from fedgs.data.femnist.form import CLASSES, SIDE, Conversion, check_labels, partition_attribute, partition_of
from fedgs.data.npz import from_arrays, is_own, keys_of, texts
from fedgs.errors import DataError, InputFileError
from fedgs.files import read_npz

_KEYS = ("images", "labels", "writers", "writer_names", "classes")


def find(path: Path) -> list[Path]:
    """Return the file itself when it is a .npz, or the only one in a folder; not one without writers."""
    files = sorted(path.glob("*.npz")) if path.is_dir() else [path] if path.is_file() else []
    return files if len(files) == 1 and files[0].suffix == ".npz" and not _is_other_data(files[0]) else []


def _is_other_data(file: Path) -> bool:
    keys = keys_of(file)  # of a file that cannot be read there are none: the error comes when it is loaded
    return bool(keys) and not is_own(keys) and not {"writers", "writer_names"} & keys


def load(path: Path, leaf_compat: bool = False, workers: int | None = None, progress: bool = False) -> Conversion:
    """Read either kind of .npz, or the only one in a folder."""
    path = next(iter(find(path)), path)
    arrays = read_npz(path)
    if is_own(arrays):
        dataset = from_arrays(path, arrays)
        _check_form(path, dataset.inputs, dataset.classes)
        return Conversion(dataset, "npz")
    missing = [key for key in _KEYS if key not in arrays]
    if missing:
        raise InputFileError(f"{path}: no {missing[0]!r} in it; it holds {', '.join(sorted(arrays))}")
    return _of_writers(path, arrays, leaf_compat)


def _check_form(path: Path, images: np.ndarray[Any, Any], classes: tuple[str, ...]) -> None:
    if classes != CLASSES:
        raise InputFileError(f"{path}: its {len(classes)} classes are not the 62 of FEMNIST, 0-9 A-Z a-z in this order")
    if images.shape[1:] != (SIDE, SIDE) or images.dtype != np.uint8:
        raise InputFileError(f"{path}: images are {images.dtype} {images.shape}; uint8 of (n, {SIDE}, {SIDE}) expected")


def _of_writers(path: Path, arrays: Mapping[str, np.ndarray[Any, Any]], leaf_compat: bool) -> Conversion:
    images, writers = arrays["images"], arrays["writers"]
    _check_form(path, images, texts(path, arrays, "classes"))
    names = texts(path, arrays, "writer_names")
    for key in ("labels", "writers", "writer_hsf"):
        given = arrays.get(key, np.zeros(0, np.int32))
        if given.ndim != 1 or given.dtype.kind not in "iu" or np.any(given != given.astype(np.int32)):
            raise InputFileError(f"{path}: {key!r} must be a list of small whole numbers")
    labels = check_labels(arrays["labels"], str(path))
    double = np.atleast_1d(np.asarray(arrays.get("leaf_dup", np.zeros(len(labels), np.bool_)), np.bool_))
    partitions = list(map(int, arrays.get("writer_hsf", [partition_of(name) for name in names])))
    for key, length, other, wanted in (
        ("images", len(images), "labels", len(labels)),
        ("writers", len(writers), "labels", len(labels)),
        ("leaf_dup", len(double), "labels", len(labels)),
        ("writer_hsf", len(partitions), "writer_names", len(names)),
    ):
        if length != wanted:
            raise InputFileError(f"{path}: {length} entries in {key!r} but {wanted} in {other!r}")
    absent = np.setdiff1d(np.arange(len(names)), writers)
    if absent.size:
        raise InputFileError(f"{path}: writer {names[absent[0]]!r} has no samples; leave such writers out")
    keep = np.ones(len(labels), np.bool_) if leaf_compat else ~double
    known = partition_attribute(names, dict(zip(names, partitions, strict=True)))
    try:
        dataset = user_data.from_arrays(
            images[keep], labels[keep], writers[keep], classes=CLASSES, client_names=names, attributes=known,
            name="femnist",
        )  # fmt: skip
    except DataError as error:
        raise InputFileError(f"{path}: {error}") from None
    return Conversion(dataset, "npz", len(labels) - len(dataset))
