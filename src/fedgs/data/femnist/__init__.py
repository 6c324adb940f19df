"""FEMNIST: handwritten characters of 3,597 writers, in any of its public forms.

    load_femnist("leaf/data/femnist/data")   # LEAF's JSON, NIST's trees or zips, parquet, HDF5 or .npz
    load_femnist()                           # what `fedgs data fetch femnist` has put into the cache

The first call converts and stores the set in the cache (:mod:`fedgs.data.cache`); later ones map it in
milliseconds, after a look at the names, sizes and times of the source's files (ten seconds or so
for the two million of NIST's unpacked trees).
"""

import hashlib
import json
import os
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, TypedDict, Unpack, get_args

from fedgs.data import cache
from fedgs.data.dataset import DataSet
from fedgs.data.femnist import leaf_json, nist, npz, parquet, tff
from fedgs.data.femnist.archive import tree_state
from fedgs.data.femnist.form import CLASSES, Conversion, check_polarity
from fedgs.errors import DataError, InputFileError

__all__ = ["CLASSES", "LAYOUTS", "Conversion", "FemnistOptions", "convert_femnist", "load_femnist", "recognise"]

Layout = Literal["leaf", "nist", "parquet", "tff", "npz"]
LAYOUTS: tuple[Layout, ...] = get_args(Layout)
NAME = "femnist"
_FORMAT = 1  # raise it when a loader changes what it gives: sets cached by older versions are converted again
_READERS: dict[Layout, Any] = {"leaf": leaf_json, "nist": nist, "parquet": parquet, "tff": tff, "npz": npz}
"""Modules with ``find(path)``, the files of this layout, and ``load(path, leaf_compat, workers, progress)``."""
_LOOKED_FOR = (
    "LEAF JSON (train/ with test/, all_data/, *.json), NIST SD19 (by_class with by_write, folders or .zip), "
    "parquet (*.parquet, data/*.parquet), TFF (fed_emnist_train.h5, fed_emnist_test.h5), "
    "a .npz with writers, a cached set"
)


class FemnistOptions(TypedDict, total=False):
    """How FEMNIST's original files are read."""

    layout: Layout | None
    """Which public layout lies there; None: found out."""
    leaf_compat: bool
    """Keep (for NIST's own trees: make) the doubled first images of LEAF."""
    invert: bool
    """The copy has white ink on black paper: turn it over."""
    workers: int | None
    """Processes that share the work; None: one a core."""
    progress: bool
    """Show a bar on stderr."""


def fitting_layouts(path: Path) -> list[Layout]:
    """Return every layout that ``path`` could be."""
    return [layout for layout, reader in _READERS.items() if reader.find(path)]


def recognise(path: str | os.PathLike[str], layout: Layout | None = None) -> Layout:
    """Return which of the public layouts lies at ``path``: the given one, or the only one that fits."""
    path = Path(path)
    if layout is not None and layout not in LAYOUTS:
        raise DataError(f"layout {layout!r} is unknown; choose one of {', '.join(LAYOUTS)}")
    if not path.exists():
        raise InputFileError(f"{path}: there is no such file or folder")
    if layout is not None:
        return layout
    fitting = fitting_layouts(path)
    if not fitting:
        raise InputFileError(f"{path}: no FEMNIST here; looked for {_LOOKED_FOR}")
    if len(fitting) > 1:
        raise InputFileError(f"{path}: could be {' or '.join(fitting)}; choose with layout=, --layout")
    return fitting[0]


def convert_femnist(path: str | os.PathLike[str], **options: Unpack[FemnistOptions]) -> Conversion:
    """Read FEMNIST at ``path`` into memory, past the cache; the options are those of :class:`FemnistOptions`."""
    path = Path(path)
    layout = recognise(path, options.get("layout"))
    leaf_compat = options.get("leaf_compat", False)
    if leaf_compat and layout in ("parquet", "tff"):
        raise DataError(f"{path}: leaf_compat keeps LEAF's doubled images, but {layout} files never have them")
    done: Conversion = _READERS[layout].load(path, leaf_compat, options.get("workers"), options.get("progress", False))
    if options.get("invert"):
        done = replace(done, dataset=replace(done.dataset, inputs=255 - done.dataset.inputs))
    check_polarity(done.dataset.inputs, str(path))
    return done


def load_femnist(
    path: str | os.PathLike[str] | None = None, *, use_cache: bool = True, **options: Unpack[FemnistOptions]
) -> DataSet:
    """Return FEMNIST as a data set with memory-mapped images.

    ``path`` is any public form of it, a folder of the cache, or None for the set that ``fedgs data fetch
    femnist`` made. ``use_cache=False`` neither reads nor writes the cache. Other options: :class:`FemnistOptions`.
    """
    if path is None:
        fetched = cache.cache_dir() / NAME
        if not cache.is_set(fetched):
            raise InputFileError(f"{fetched}: FEMNIST is not there; run 'fedgs data fetch femnist' or give its path")
        return cache.load(fetched)
    path = Path(path)
    if cache.is_set(path):
        return cache.load(path)
    layout = recognise(path, options.get("layout"))
    changed = {"leaf_compat": options.get("leaf_compat", False), "invert": options.get("invert", False)}
    key = f"{NAME}-{fingerprint(path, layout, **changed)}"
    if use_cache and cache.is_set(cache.cache_dir() / key):
        with suppress(InputFileError):  # damaged: converted anew below
            return cache.load(cache.cache_dir() / key)
    done = convert_femnist(path, **(options | {"layout": layout}))
    return cache.load(remember(done, path, key)) if use_cache else done.dataset


def remember(done: Conversion, path: Path, key: str = NAME) -> Path:
    """Put a conversion into the cache, with where it came from."""
    source: dict[str, Any] = {
        "path": str(path.resolve()),
        "layout": done.layout,
        "doubles_dropped": done.doubles_dropped,
    }
    return cache.store(done.dataset, key, source)


def fingerprint(path: Path, layout: Layout, **options: bool) -> str:
    """Return a short name for this source as it is now: its files' paths, sizes and times, and the options."""
    digest = hashlib.blake2b(json.dumps([_FORMAT, layout, sorted(options.items())]).encode(), digest_size=8)
    for name, size, changed in _state(_READERS[layout].find(path)):
        digest.update(f"{name}\0{size}\0{changed}\0".encode(errors="surrogateescape"))
    return digest.hexdigest()


def _state(found: list[Path]) -> Iterator[tuple[str, int, int]]:
    for item in found:
        if item.is_dir():
            yield from tree_state(str(item.resolve()))
        else:
            facts = item.stat()
            yield str(item.resolve()), facts.st_size, facts.st_mtime_ns
