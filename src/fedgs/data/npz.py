"""A data set as one .npz file: to carry to another machine, or to hand to somebody who has only numpy.

Keys: ``images``, ``labels``, ``owners``, ``owner_names``, ``classes``, ``name``; ``attribute_<name>`` for each
attribute; ``test`` where the source was split; ``fedgs_format`` marks the file and numbers the form.
"""

import os
import zipfile
import zlib
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from fedgs.data.dataset import DataSet
from fedgs.errors import DataError, InputFileError, OutputError

FORMAT = 1
_MARK = "fedgs_format"
ATTRIBUTE = "attribute_"
"""What the name of an attribute's array begins with, in every kind of file."""
_KEYS = ("name", "images", "labels", "owners", "owner_names", "classes")


def save_npz(dataset: DataSet, path: str | os.PathLike[str]) -> Path:
    """Write the set, compressed; the file appears under its name only when it is whole."""
    path = Path(path)
    arrays: dict[str, Any] = {
        _MARK: np.int64(FORMAT),
        "name": np.array(dataset.name),
        "images": dataset.images,
        "labels": dataset.labels,
        "owners": dataset.owners,
        "owner_names": np.array(dataset.owner_names),
        "classes": np.array(dataset.classes),
        **{ATTRIBUTE + name: values for name, values in dataset.attributes.items()},
    }
    if dataset.test is not None:
        arrays["test"] = dataset.test
    # One name for all tries: what a killed process left behind is overwritten by the next one.
    temporary = path.with_name(f".{path.name}.writing")
    try:
        with temporary.open("wb") as file:
            np.savez_compressed(file, **arrays)
        temporary.replace(path)
    except OSError as error:
        raise OutputError(f"{path}: cannot be written ({error.strerror or error})") from None
    finally:
        with suppress(OSError):
            temporary.unlink()
    return path


def read_arrays(path: Path) -> dict[str, np.ndarray[Any, np.dtype[Any]]]:
    """Return every array of a .npz, or an error that names the file."""
    try:
        with path.open("rb") as file:  # opened here: np.load would leave a broken file open
            opened = np.load(file, allow_pickle=False)
            if isinstance(opened, np.ndarray):
                raise InputFileError(f"{path}: a single array; a .npz with several is expected")
            return {key: opened[key] for key in opened.files}
    except InputFileError:
        raise
    except FileNotFoundError:
        raise InputFileError(f"{path}: no such file") from None
    except (OSError, ValueError, EOFError, KeyError, zipfile.BadZipFile, zlib.error) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else " ".join(str(error).split())
        raise InputFileError(f"{path}: not a readable .npz file ({reason})") from None


def texts(path: Path, arrays: Mapping[str, np.ndarray[Any, np.dtype[Any]]], key: str) -> tuple[str, ...]:
    """Return a list of names that a .npz holds."""
    if arrays[key].ndim != 1:
        raise InputFileError(f"{path}: {key!r} has {arrays[key].ndim} dimensions; a list of names expected")
    return tuple(map(str, arrays[key]))


def is_own(arrays: Mapping[str, Any]) -> bool:
    """Tell whether these arrays were written by :func:`save_npz`."""
    return _MARK in arrays


def keys_of(path: Path) -> set[str]:
    """Return the names of the arrays in a .npz file without reading them; none when it is something else."""
    try:
        with zipfile.ZipFile(path) as opened:
            return {name.removesuffix(".npy") for name in opened.namelist() if name.endswith(".npy")}
    except (OSError, zipfile.BadZipFile):
        return set()


def is_own_file(path: Path) -> bool:
    """Tell whether :func:`save_npz` wrote this file, without reading its images."""
    return is_own(dict.fromkeys(keys_of(path)))


def load_npz(path: str | os.PathLike[str]) -> DataSet:
    """Read what :func:`save_npz` wrote."""
    path = Path(path)
    return from_arrays(path, read_arrays(path))


def from_arrays(path: Path, arrays: Mapping[str, np.ndarray[Any, np.dtype[Any]]]) -> DataSet:
    """Make the data set of the arrays in ``path``."""
    if not is_own(arrays):
        raise InputFileError(f"{path}: not written by fedgs (no {_MARK!r}); it holds {', '.join(sorted(arrays))}")
    if arrays[_MARK].tolist() != FORMAT:
        raise InputFileError(f"{path}: {_MARK} {arrays[_MARK]} is unknown to this version, which reads {FORMAT}")
    missing = [key for key in _KEYS if key not in arrays]
    if missing:
        raise InputFileError(f"{path}: no {missing[0]!r} in it; save it again with save_npz")
    try:
        return DataSet(
            str(arrays["name"]),
            arrays["images"],
            arrays["labels"],
            arrays["owners"],
            texts(path, arrays, "owner_names"),
            texts(path, arrays, "classes"),
            {key.removeprefix(ATTRIBUTE): arrays[key] for key in arrays if key.startswith(ATTRIBUTE)},
            arrays.get("test"),
        )
    except DataError as error:
        raise InputFileError(f"{path}: {error}") from None
