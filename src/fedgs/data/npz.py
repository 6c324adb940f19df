"""A data set as one .npz file, to carry to another machine or to read with numpy alone; and a user's own .npz.

Keys: ``inputs``, ``targets``, ``clients``, ``client_names``, ``classes``, ``name``; ``inputs_<name>`` where there are
several (a dict; ``inputs_0``, ``inputs_1``, … a tuple), ``targets_<name>`` likewise; ``attribute_<name>`` for each
attribute; ``test`` where the source was split; ``fedgs_format`` marks the file and numbers the form. Form 1 said
``images`` and ``labels``. A user's own file needs no more than inputs and targets.
"""

import os
import zipfile
from collections.abc import Container, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedgs.data.arrays import leaves
from fedgs.data.dataset import DataSet
from fedgs.data.user_data import from_arrays
from fedgs.errors import DataError, InputFileError, OutputError
from fedgs.files import make_folder, read_npz

FORMAT = 2
_MARK = "fedgs_format"
_ATTRIBUTE = "attribute_"
_OLD_KEYS = {"owners": "clients", "devices": "clients", "owner_names": "client_names", "images": "inputs",
             "labels": "targets"}  # fmt: skip
"""What older versions and users call them."""


def named_arrays(dataset: DataSet) -> dict[str, NDArray[Any]]:
    """Return the arrays of a set by the names they are stored under."""
    arrays = {
        f"{name}_{key}" if key else name: np.asarray(array)
        for name, tree in (("inputs", dataset.inputs), ("targets", dataset.targets), ("clients", dataset.clients))
        for key, array in leaves(tree)
    }
    if dataset.test is not None:
        arrays["test"] = dataset.test
    return arrays | {_ATTRIBUTE + name: values for name, values in dataset.attributes.items()}


def fields_in(arrays: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a data set is made of, from arrays by their stored names; what is not there is left out."""
    known = {_OLD_KEYS[key]: arrays[key] for key in _OLD_KEYS if key in arrays} | dict(arrays)
    found: dict[str, Any] = {key: known[key] for key in ("clients", "client_names", "classes", "test") if key in known}
    if "name" in known:
        found["name"] = str(known["name"])
    for name in ("inputs", "targets"):
        parts = {key.removeprefix(f"{name}_"): known[key] for key in known if key.startswith(f"{name}_")}
        if name in known:
            found[name] = known[name]
        elif parts and all(key.isdecimal() for key in parts):
            found[name] = tuple(parts[key] for key in sorted(parts, key=int))
        elif parts:
            found[name] = parts
    marked = [key for key in known if key.startswith(_ATTRIBUTE)]
    return found | {"attributes": {key.removeprefix(_ATTRIBUTE): known[key] for key in marked}}


def save_npz(dataset: DataSet, path: str | os.PathLike[str]) -> Path:
    """Write the set, compressed, into a folder that need not exist; the file appears only when it is whole."""
    path = Path(path)
    arrays: dict[str, Any] = {
        _MARK: np.int64(FORMAT),
        "name": np.array(dataset.name),
        **named_arrays(dataset),
        "client_names": np.array(dataset.client_names),
        "classes": np.array(dataset.classes),
    }
    make_folder(path.parent)
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


def load_npz(path: str | os.PathLike[str]) -> DataSet:
    """Read what :func:`save_npz` wrote."""
    path = Path(path)
    arrays = read_npz(path)
    if not is_own(arrays):
        raise InputFileError(f"{path}: not written by fedgs (no {_MARK!r}); it holds {', '.join(sorted(arrays))}")
    if arrays[_MARK].tolist() not in (1, FORMAT):
        raise InputFileError(f"{path}: {_MARK} {arrays[_MARK]} is unknown to this version, which reads 1 and {FORMAT}")
    fields = _fields(path, arrays, ("name", "clients", "client_names", "classes", "inputs", "targets"))
    try:
        return DataSet(**fields)
    except DataError as error:
        raise InputFileError(f"{path}: {error}") from None


def from_npz(path: str | Path, name: str | None = None) -> DataSet:
    """Read a .npz file of a user's own arrays."""
    file = Path(path)
    fields = _fields(file, read_npz(file), ("inputs", "targets"))
    try:
        return from_arrays(**{"name": file.stem} | fields | ({} if name is None else {"name": name}))
    except DataError as error:
        raise InputFileError(f"{file}: {error}") from None


def _fields(path: Path, arrays: Mapping[str, NDArray[Any]], needed: tuple[str, ...]) -> dict[str, Any]:
    fields = fields_in(arrays)
    for key in needed:
        if key not in fields:
            also = next((f" or {old!r}" for old, new in _OLD_KEYS.items() if new == key), "")
            raise InputFileError(f"{path}: no array {key!r}{also}; it holds {', '.join(sorted(arrays)) or 'nothing'}")
    return fields | {key: texts(path, fields, key) for key in ("classes", "client_names") if key in fields}


def texts(path: Path, arrays: Mapping[str, NDArray[Any]], key: str) -> tuple[str, ...]:
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
