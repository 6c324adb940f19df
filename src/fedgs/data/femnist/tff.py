"""TensorFlow Federated's ``fed_emnist_train.h5`` and ``fed_emnist_test.h5``: examples/<client>/{pixels, label}.

Pixels are floats in 0..1 with paper 1; the label is stored as (n,) or (n, 1). TFF split the samples once and for all;
its split is kept in ``DataSet.test`` (results published with TFF rest on it). FedJAX's copies put a hash of 16 hex
digits and a colon before the client's name, which is taken off. The ``digitsonly`` files are read when named.
"""

import re
from pathlib import Path
from typing import Any

import numpy as np

from fedgs.data.femnist.form import SIDE, Conversion, Samples, check_labels, gather, join_split, to_uint8
from fedgs.data.parallel import progress_bar
from fedgs.errors import InputFileError, MissingDependencyError

_HASH_PREFIX = re.compile(r"^[0-9a-f]{16}:")
_TRAIN, _TEST = "fed_emnist_train.h5", "fed_emnist_test.h5"


def find(path: Path) -> list[Path]:
    """Return the training file and the test file; one alone when its partner is not beside it."""
    if path.is_dir():
        return [file for file in (path / _TRAIN, path / _TEST) if file.is_file()]
    if path.suffix not in (".h5", ".hdf5") or not path.is_file():
        return []
    name = path.name
    train, test = path.with_name(name.replace("test", "train")), path.with_name(name.replace("train", "test"))
    return [train, test] if train != test and train.is_file() and test.is_file() else [path]


def load(path: Path, leaf_compat: bool = False, workers: int | None = None, progress: bool = False) -> Conversion:
    """Read the pair of files, or a single one (then nothing is marked as test data)."""
    files = find(path)
    if not files:
        raise InputFileError(f"{path}: no TFF files here; looked for {_TRAIN} and {_TEST}")
    parts = [_read(file, progress) for file in files]
    if len(parts) == 1:
        return Conversion(gather(parts[0]), "tff")
    return Conversion(gather(join_split(parts[0], parts[1], lambda part, _: files[part == "test"])), "tff")


def _read(file: Path, progress: bool) -> dict[str, Samples]:
    try:
        import h5py
    except ImportError:
        raise MissingDependencyError("HDF5 files need h5py: pip install 'fedgs[femnist]'") from None
    clients: dict[str, Samples] = {}
    try:
        with h5py.File(file, "r") as opened:
            if not isinstance(opened.get("examples"), h5py.Group):
                raise InputFileError(f"{file}: no group 'examples'; this is not a fed_emnist file")
            examples = opened["examples"]
            with progress_bar(f"clients of {file.name}", len(examples), progress) as update:
                for name in examples:
                    client = _HASH_PREFIX.sub("", name)
                    if client in clients:
                        raise InputFileError(f"{file}: client {client!r} is there twice")
                    clients[client] = _samples(examples[name], f"{file}: client {client!r}")
                    update(advance=1)
    except OSError as error:
        raise InputFileError(f"{file}: not a readable HDF5 file ({error})") from None
    if not clients:
        raise InputFileError(f"{file}: there is not one client")
    return clients


def _samples(group: Any, where: str) -> Samples:
    from h5py import Dataset, Group

    if not isinstance(group, Group) or not all(isinstance(group.get(key), Dataset) for key in ("pixels", "label")):
        raise InputFileError(f"{where} has no 'pixels' and 'label'")
    pixels, labels = np.asarray(group["pixels"]), np.asarray(group["label"]).reshape(-1)
    if pixels.shape not in ((len(labels), SIDE, SIDE), (len(labels), SIDE * SIDE)):
        raise InputFileError(f"{where}: pixels are {pixels.shape} for {len(labels)} labels; (n, 28, 28) expected")
    if not len(labels):
        raise InputFileError(f"{where} has no samples; every client of TFF has some in both files")
    if labels.dtype.kind not in "iu" or pixels.dtype.kind != "f":
        raise InputFileError(f"{where}: pixels must be floats and labels whole numbers")
    return Samples(to_uint8(pixels, where).reshape(-1, SIDE, SIDE), check_labels(labels, where))
