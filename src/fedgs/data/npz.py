"""A data set as one .npz file, to carry to another machine or to read with numpy alone.

Keys: ``inputs``, ``targets``, ``clients``, ``client_names``, ``classes``, ``name``; ``inputs_<name>`` where there are
several (a dict; ``inputs_0``, ``inputs_1``, … a tuple), ``targets_<name>`` likewise; ``attribute_<name>`` for each
attribute; ``test`` where the source was split; ``fedgs_format`` marks the file and numbers the form. Form 1 said
``images`` and ``labels``.
"""

import os
import zipfile
from collections.abc import Container, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from fedgs.data.arrays import leaves
from fedgs.data.dataset import DataSet
from fedgs.errors import DataError, InputFileError, OutputError
from fedgs.files import read_npz

FORMAT = 2
_MARK = "fedgs_format"
ATTRIBUTE = "attribute_"
"""What the name of an attribute's array begins with, in every kind of file."""
_KEYS = ("name", "clients", "client_names", "classes")
_OLD_KEYS = {"owners": "clients", "owner_names": "client_names"}
"""What older versions called them."""


def save_npz(dataset: DataSet, path: str | os.PathLike[str]) -> Path:
    """Write the set, compressed; the file appears under its name only when it is whole."""
    path = Path(path)
    arrays: dict[str, Any] = {
        _MARK: np.int64(FORMAT),
        "name": np.array(dataset.name),
        **_named("inputs", dataset.inputs),
        **_named("targets", dataset.targets),
        "clients": dataset.clients,
        "client_names": np.array(dataset.client_names),
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


def tree_in(arrays: Mapping[str, Any], name: str, old: str) -> Any:
    """Return the array (or tuple, or dict of them) called ``name``, in older files ``old``; None: there is none."""
    for key in (name, old):
        if key in arrays:
            return arrays[key]
    parts = {key.removeprefix(f"{name}_"): arrays[key] for key in arrays if key.startswith(f"{name}_")}
    if not parts:
        return None
    if all(key.isdecimal() for key in parts):
        return tuple(parts[key] for key in sorted(parts, key=int))
    return parts


def _named(name: str, tree: Any) -> dict[str, Any]:
    return {f"{name}_{key}" if key else name: np.asarray(array) for key, array in leaves(tree)}


def texts(path: Path, arrays: Mapping[str, np.ndarray[Any, np.dtype[Any]]], key: str) -> tuple[str, ...]:
    """Return a list of names that a .npz holds."""
    if arrays[key].ndim != 1:
        raise InputFileError(f"{path}: {key!r} has {arrays[key].ndim} dimensions; a list of names expected")
    return tuple(map(str, arrays[key]))


def is_own(keys: Container[str]) -> bool:
    """Tell whether arrays of these names were written by :func:`save_npz`."""
    return _MARK in keys


def keys_of(path: Path) -> set[str]:
    """Return the names of the arrays in a .npz file without reading them; none when it is something else."""
    try:
        with zipfile.ZipFile(path) as opened:
            return {name.removesuffix(".npy") for name in opened.namelist() if name.endswith(".npy")}
    except (OSError, zipfile.BadZipFile):
        return set()


def load_npz(path: str | os.PathLike[str]) -> DataSet:
    """Read what :func:`save_npz` wrote."""
    path = Path(path)
    return from_arrays(path, read_npz(path))


def from_arrays(path: Path, arrays: Mapping[str, np.ndarray[Any, np.dtype[Any]]]) -> DataSet:
    """Make the data set of the arrays in ``path``."""
    arrays = {_OLD_KEYS.get(key, key): array for key, array in arrays.items()}
    if not is_own(arrays):
        raise InputFileError(f"{path}: not written by fedgs (no {_MARK!r}); it holds {', '.join(sorted(arrays))}")
    if arrays[_MARK].tolist() not in (1, FORMAT):
        raise InputFileError(f"{path}: {_MARK} {arrays[_MARK]} is unknown to this version, which reads 1 and {FORMAT}")
    inputs, targets = tree_in(arrays, "inputs", "images"), tree_in(arrays, "targets", "labels")
    missing = [key for key in _KEYS if key not in arrays]
    missing += [key for key, found in (("inputs", inputs), ("targets", targets)) if found is None]
    if missing:
        raise InputFileError(f"{path}: no {missing[0]!r} in it; save it again with save_npz")
    try:
        return DataSet(
            str(arrays["name"]),
            inputs,
            targets,
            arrays["clients"],
            texts(path, arrays, "client_names"),
            texts(path, arrays, "classes"),
            {key.removeprefix(ATTRIBUTE): arrays[key] for key in arrays if key.startswith(ATTRIBUTE)},
            arrays.get("test"),
        )
    except DataError as error:
        raise InputFileError(f"{path}: {error}") from None
