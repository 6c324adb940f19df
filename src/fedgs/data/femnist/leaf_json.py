"""LEAF's JSON (Caldas et al., 2018): ``{"users": […], "num_samples": […], "user_data": {id: {"x": …, "y": …}}}``.

A folder holds many such files with about a hundred writers each; ``x`` is a list of 784 floats a sample, value/255,
so that round(255 x) loses nothing. All files of a folder are merged and the users sorted. A folder with ``train``
and ``test`` inside is a split that LEAF made, and the two must list the same users; ``all_data`` is not split.
Doubled images (see :func:`fedgs.data.femnist.form.repeats`) are dropped unless ``leaf_compat`` asks for them.

A file is read user by user (ijson): as Python floats, a hundred writers at once would take some 600 MB.
"""

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from fedgs.data.femnist.form import Piece, check_samples
from fedgs.errors import InputFileError, MissingDependencyError

LOOKED_FOR = "LEAF JSON (train/*.json with test/*.json, all_data/*.json, *.json)"
_BEGINNING = re.compile(rb'\s*\{\s*"(users|num_samples|user_data|hierarchies)"')
_LITTLE = 50_000_000  # bytes of JSON that are read here before other processes would have started


def find(path: Path) -> list[Path]:
    """Return the JSON files that make up this source; an empty list when it is none."""
    if path.is_file():
        return [path] if path.suffix == ".json" else []
    here, train, test, all_data = (sorted((path / part).glob("*.json")) for part in ("", "train", "test", "all_data"))
    if train and test:
        return train + test
    if all_data:
        return all_data
    for files in (here, train, test):  # half a split is found too, so that loading says what is missing
        if any(map(_begins_like_leaf, files)):
            return files
    return []


def _begins_like_leaf(file: Path) -> bool:
    # A folder of parquet or PNG files may well hold somebody's notes in JSON.
    with file.open("rb") as stream:
        return _BEGINNING.match(stream.read(200)) is not None


def read(path: Path, files: list[Path], leaf_compat: bool, spread: Callable[..., Iterator[Any]]) -> Iterator[Piece]:
    """Yield the users of all files."""
    split = path.is_dir() and files[0].parent in (path / "train", path / "test")
    for part in ("train", "test"):
        if split and not any(file.parent == path / part for file in files):
            raise InputFileError(
                f"{path / part}: no JSON there, but beside it; LEAF's split needs both train/*.json and test/*.json"
            )
    sizes = [file.stat().st_size for file in files]
    origin: dict[tuple[str, bool], Path] = {}
    for pieces in spread(read_file, files, sizes=sizes, few=_LITTLE, title="bytes of LEAF JSON files"):
        for piece in pieces:
            test = split and piece.file.parent == path / "test"
            first = origin.setdefault((piece.writer, test), piece.file)
            if first != piece.file:
                raise InputFileError(f"{piece.file}: user {piece.writer!r} is in {first.name} already")
            yield piece._replace(test=test)
    if not origin:
        raise InputFileError(f"{files[0]}: 'users' is empty, as in all {len(files)} files here; make the files again")


def read_file(file: Path) -> list[Piece]:
    """Return the users of one file, checked against the file's own list of users and counts."""
    users, counts = (next(_parse(file, "items", key), None) for key in ("users", "num_samples"))
    found: dict[str, Piece] = {}
    for user, value in _parse(file, "kvitems", "user_data"):
        if user in found:
            raise InputFileError(f"{file}: user {user!r} is twice in 'user_data'")
        found[user] = _samples(file, user, value)
    if users is None or counts is None:
        raise InputFileError(f"{file}: LEAF's keys are 'users', 'num_samples' and 'user_data'; not all are there")
    if not _list_of(str, users) or not _list_of(int, counts):
        raise InputFileError(f"{file}: 'users' must be a list of names, 'num_samples' of counts, 'user_data' an object")
    if len(users) != len(counts) or len(set(users)) != len(users) or set(users) != found.keys():
        raise InputFileError(
            f"{file}: 'users' names {len(users)}, 'num_samples' {len(counts)} and 'user_data' {len(found)} users; "
            "the three must name the same ones, once each"
        )
    for user, count in zip(users, counts, strict=True):
        if count != len(found[user].labels):
            raise InputFileError(
                f"{file}: num_samples of user {user!r} is {count}, but there are {len(found[user].labels)} samples"
            )
    return list(found.values())


def _parse(file: Path, how: str, key: str) -> Iterator[Any]:
    """Yield what ijson's ``items`` or ``kvitems`` finds at a key of the file's object."""
    try:
        import ijson
    except ImportError:
        raise MissingDependencyError("LEAF's JSON files need ijson: pip install 'fedgs[femnist]'") from None
    try:
        with file.open("rb") as stream:
            yield from getattr(ijson, how)(stream, key, use_float=True)
    except (ijson.JSONError, ValueError, RecursionError) as error:
        reason = str(error).partition("\n")[0]
        raise InputFileError(f"{file}: broken or truncated JSON ({reason}); copy or make the file again") from None
    except OSError as error:
        raise InputFileError(f"{file}: cannot be read ({error.strerror})") from None


def _list_of(kind: type, values: Any) -> bool:
    return isinstance(values, list) and all(isinstance(value, kind) for value in values)


def _samples(file: Path, user: str, value: Any) -> Piece:
    where = f"{file}: user {user!r}"
    x, y = (value.get(key) if isinstance(value, dict) else None for key in ("x", "y"))
    if not isinstance(x, list) or not isinstance(y, list) or len(x) != len(y):
        raise InputFileError(f"{where} has no 'x' and 'y' that are lists of the same length")
    return Piece(file, user, *check_samples(x, y, where))
