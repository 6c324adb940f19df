"""Converted data sets on disk: one folder a set, arrays as .npy that are memory-mapped, and a description.

    <cache>/femnist/set.json  images.npy  labels.npy  clients.npy  [test.npy]  [attribute_hsf.npy]

The cache is ``$FEDGS_DATA``, or the platform's folder for caches: ``$XDG_CACHE_HOME/fedgs`` or ``~/.cache/fedgs`` on
Linux, ``~/Library/Caches/fedgs`` on macOS, ``%LOCALAPPDATA%/fedgs/Cache`` on Windows. A set is written into a hidden
folder beside its place and renamed when it is whole: there is never half a set, and two processes that convert
the same one at once both end well. Loading reads the description and maps the arrays; images stay on disk until
used, and all processes of a machine share them. ``set.json`` holds size and SHA-256 of each array: sizes
are checked at each load, checksums by :func:`verify`.
"""

import errno
import hashlib
import json
import os
import re
import secrets
import shutil
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import platformdirs
from numpy.typing import NDArray

from fedgs.data.dataset import DataSet
from fedgs.data.npz import fields_in, named_arrays
from fedgs.errors import DataError, InputFileError, OutputError

FORMAT = 1
DESCRIPTION = "set.json"
_KEYS = {"inputs": "images", "targets": "labels"}
_NEEDED = ("images.npy", "labels.npy", "clients.npy")
_TEMPORARY = re.compile(r"\.fedgs-writing-.+-[0-9a-f]{8}")
_FORGOTTEN = 24 * 3600.0  # seconds after which such a folder belongs to no living process


def cache_dir() -> Path:
    """Return the folder of converted sets; it need not exist yet."""
    if chosen := os.environ.get("FEDGS_DATA"):
        return Path(chosen).expanduser()
    return platformdirs.user_cache_path("fedgs", appauthor=False)


def is_set(folder: Path) -> bool:
    """Tell whether this folder is a converted set."""
    return (folder / DESCRIPTION).is_file()


def cached_sets() -> list[str]:
    """Return the names of all sets in the cache."""
    return sorted(folder.parent.name for folder in cache_dir().glob(f"[!.]*/{DESCRIPTION}"))


def store(dataset: DataSet, key: str, source: Mapping[str, Any]) -> Path:
    """Write the set into the cache as ``key``, in place of what was there, and return its folder."""
    cache = cache_dir()
    temporary = _temporary(cache / key)
    try:
        cache.mkdir(parents=True, exist_ok=True)
        _sweep(cache)
        temporary.mkdir()
        arrays = {f"{_KEYS.get(key, key)}.npy": array for key, array in named_arrays(dataset).items()}
        description = {
            "format": FORMAT,
            "name": dataset.name,
            "samples": len(dataset),
            "client_names": dataset.client_names,
            "classes": dataset.classes,
            "source": dict(source),
            "files": {name: _write(temporary / name, array) for name, array in arrays.items()},
        }
        (temporary / DESCRIPTION).write_text(json.dumps(description, indent=1), encoding="utf-8")
        _put_in_place(temporary, cache / key)
    except OSError as error:
        raise OutputError(
            f"{cache / key}: cannot be written ({error.strerror or error}); FEDGS_DATA names another folder"
        ) from None
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return cache / key


def _write(file: Path, array: NDArray[Any]) -> dict[str, Any]:
    with file.open("wb") as stream:
        np.lib.format.write_array(stream, np.ascontiguousarray(array), allow_pickle=False)
        stream.flush()
        os.fsync(stream.fileno())  # a renamed folder must not hold pages that a power cut would lose
    return {"bytes": file.stat().st_size, "sha256": _checksum(file)}


def _checksum(file: Path) -> str:
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _temporary(place: Path) -> Path:
    return place.parent / f".fedgs-writing-{place.name}-{secrets.token_hex(4)}"


def _put_in_place(new: Path, place: Path) -> None:
    aside = []
    while True:
        try:
            new.rename(place)
            break
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                raise
        # A folder cannot be renamed onto a full one, so the old set is moved aside first. Those who map it keep it.
        with suppress(FileNotFoundError):  # another process was faster
            aside.append(place.rename(_temporary(place)))
    for old in aside:  # only now: removing takes time, and meanwhile there would be no set of this name
        shutil.rmtree(old, ignore_errors=True)


def _sweep(cache: Path) -> None:
    """Remove what a killed process left behind long ago: folders named as ours that hold nothing but a set's files."""
    for folder in cache.glob(".fedgs-writing-*"):
        with suppress(OSError):  # its process lives, and has just finished; or it is no folder
            ours = _TEMPORARY.fullmatch(folder.name) and all(
                file.is_file() and (file.suffix == ".npy" or file.name == DESCRIPTION) for file in folder.iterdir()
            )
            if ours and not folder.is_symlink() and time.time() - folder.stat().st_mtime > _FORGOTTEN:
                shutil.rmtree(folder, ignore_errors=True)


def describe(folder: Path) -> dict[str, Any]:
    """Return the description of a converted set."""
    file = folder / DESCRIPTION
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise InputFileError(f"{file}: cannot be read ({error.strerror}); is {folder.name!r} in the cache?") from None
    except (ValueError, RecursionError):
        raise InputFileError(f"{file}: broken; remove {folder} and convert again") from None
    if not isinstance(found, dict) or found.get("format") != FORMAT:
        raise InputFileError(f"{file}: not of format {FORMAT}; remove {folder} and convert again")
    if wrong := _first_wrong(found):
        raise InputFileError(f"{file}: broken ({wrong!r} is wrong); remove {folder} and convert again")
    return found


def _first_wrong(found: dict[str, Any]) -> str | None:
    """Return the first key of a description whose value is not of the form that :func:`store` writes."""
    for key, kind in {"name": str, "samples": int, "source": dict, "files": dict}.items():
        if not isinstance(found.get(key), kind):
            return key
    for key in ("client_names", "classes"):
        if not isinstance(found.get(key), list) or not all(isinstance(text, str) for text in found[key]):
            return key
    for name, facts in found["files"].items():
        whole = isinstance(facts, dict) and isinstance(facts.get("bytes"), int) and isinstance(facts.get("sha256"), str)
        if not whole or Path(name).name != name:
            return name or "files"
    return next((name for name in _NEEDED if name not in found["files"]), None)


def load(folder: Path) -> DataSet:
    """Map a converted set; takes milliseconds, whatever its size."""
    described = describe(folder)
    try:
        for name, facts in described["files"].items():
            size = (folder / name).stat().st_size
            if size != facts["bytes"]:
                raise InputFileError(
                    f"{folder / name}: {size} bytes instead of {facts['bytes']}; remove {folder} and convert again"
                )
        mapped = {name: np.load(folder / name, mmap_mode="r") for name in described["files"]}
        # Only the images are big: the rest is read, so that using it never waits for the disk.
        arrays = {
            name.removesuffix(".npy"): array if name == "images.npy" else np.array(array)
            for name, array in mapped.items()
        }
        names: dict[str, Any] = {key: tuple(described[key]) for key in ("client_names", "classes")}
        return DataSet(**fields_in(arrays), name=described["name"], **names)
    except InputFileError:
        raise
    except (OSError, ValueError, KeyError, TypeError, DataError) as error:
        raise InputFileError(f"{folder}: broken ({error}); remove {folder} and convert again") from None


def verify(folder: Path) -> None:
    """Read every array and compare its SHA-256 with the description's."""
    for name, facts in describe(folder)["files"].items():
        try:
            found = _checksum(folder / name)
        except OSError as error:
            raise InputFileError(
                f"{folder / name}: cannot be read ({error.strerror}); remove {folder} and convert again"
            ) from None
        if found != facts["sha256"]:
            raise InputFileError(f"{folder / name}: its checksum is wrong; remove {folder} and convert again")
