"""TensorFlow Federated's ``fed_emnist_train.h5`` and ``fed_emnist_test.h5``: examples/<client>/{pixels, label}.

Pixels are floats in 0..1 with paper 1; the label is stored as (n,) or (n, 1). TFF split the samples once and for all;
its split is kept in ``DataSet.test`` (results published with TFF rest on it). FedJAX's copies put a hash of 16 hex
digits and a colon before the client's name, which is taken off. The ``digitsonly`` files are read when named.
"""

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from fedgs.data.femnist.form import Piece, check_samples
from fedgs.errors import InputFileError, MissingDependencyError

_TRAIN, _TEST = "fed_emnist_train.h5", "fed_emnist_test.h5"
LOOKED_FOR = f"TFF files ({_TRAIN}, {_TEST})"
_HASH_PREFIX = re.compile(r"^[0-9a-f]{16}:")


def find(path: Path) -> list[Path]:
    """Return the training file and the test file; one alone when its partner is not beside it."""
    if path.is_dir():
        return [file for file in (path / _TRAIN, path / _TEST) if file.is_file()]
    if path.suffix not in (".h5", ".hdf5") or not path.is_file():
        return []
    name = path.name
    train, test = path.with_name(name.replace("test", "train")), path.with_name(name.replace("train", "test"))
    return [train, test] if train != test and train.is_file() and test.is_file() else [path]


def read(path: Path, files: list[Path], leaf_compat: bool, spread: Callable[..., Iterator[Any]]) -> Iterator[Piece]:
    """Yield the clients of the pair of files, or of a single one (then nothing is test data)."""
    try:
        import h5py
    except ImportError:
        raise MissingDependencyError("HDF5 files need h5py: pip install 'fedgs[femnist]'") from None
    for file in files:
        seen: set[str] = set()
        try:
            with h5py.File(file, "r") as opened:
                examples = opened.get("examples")
                if not isinstance(examples, h5py.Group):
                    raise InputFileError(f"{file}: no group 'examples'; this is not a fed_emnist file")
                for name in spread(str, list(examples), workers=1, title=f"clients of {file.name}"):
                    client = _HASH_PREFIX.sub("", name)
                    if client in seen:
                        raise InputFileError(f"{file}: client {client!r} is there twice")
                    seen.add(client)
                    yield Piece(
                        file, client, *_samples(examples[name], f"{file}: client {client!r}"), test=file != files[0]
                    )
        except OSError as error:
            raise InputFileError(f"{file}: not a readable HDF5 file ({error})") from None
        if not seen:
            raise InputFileError(f"{file}: there is not one client")


def _samples(group: Any, where: str) -> tuple[Any, Any]:
    from h5py import Dataset, Group

    if not isinstance(group, Group) or not all(isinstance(group.get(key), Dataset) for key in ("pixels", "label")):
        raise InputFileError(f"{where} has no 'pixels' and 'label'")
    return check_samples(np.asarray(group["pixels"]), np.asarray(group["label"]).reshape(-1), where)
