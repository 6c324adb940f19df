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
from functools import partial
from pathlib import Path
from typing import Any, Literal, TypedDict, Unpack, get_args

from fedgs.data import cache
from fedgs.data.dataset import DataSet
from fedgs.data.femnist import leaf_json, nist, npz, parquet, tff
from fedgs.data.femnist.form import CLASSES, Conversion, assemble, check_polarity
from fedgs.data.npz import is_own, keys_of, load_npz
from fedgs.data.parallel import ordered_map
from fedgs.errors import DataError, DownloadError, InputFileError, OutputError

__all__ = [
    "CLASSES", "LAYOUTS", "Conversion", "FemnistOptions", "convert_femnist", "fetch_femnist", "load_femnist",
    "recognise",
]  # fmt: skip

Layout = Literal["leaf", "nist", "parquet", "tff", "npz"]
LAYOUTS: tuple[Layout, ...] = get_args(Layout)
NAME = "femnist"
SOURCE = "https://s3.amazonaws.com/nist-srd/SD19/"
# NIST publishes no checksums for these two. A zip carries the CRC of every member, which the conversion checks;
# the length is checked against what the server announces.
ARCHIVES = ("by_class.zip", "by_write.zip")
_FORMAT = 1  # raise it when a loader changes what it gives: sets cached by older versions are converted again
_READERS: dict[Layout, Any] = {"leaf": leaf_json, "nist": nist, "parquet": parquet, "tff": tff, "npz": npz}
"""Modules with ``find(path)``, the files of this layout, ``read(path, files, leaf_compat, spread)``, which yields the
samples writer by writer and hands tasks to ``spread`` (ordered_map), and ``LOOKED_FOR``, what an error calls them."""


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
        looked_for = ", ".join(reader.LOOKED_FOR for reader in _READERS.values())
        raise InputFileError(f"{path}: no FEMNIST here; looked for {looked_for}, a cached set")
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
    reader = _READERS[layout]
    files = reader.find(path)
    if not files:
        raise InputFileError(f"{path}: no {reader.LOOKED_FOR} here")
    if layout == "npz" and is_own(keys_of(files[0])):
        done = Conversion(load_npz(files[0]), layout)
        npz.check_form(files[0], done.dataset.inputs, done.dataset.classes)
    else:
        spread = partial(ordered_map, workers=options.get("workers"), progress=options.get("progress", False))
        done = assemble(reader.read(path, files, leaf_compat, spread), layout, leaf_compat)
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
            yield from nist.tree_state(str(item.resolve()))
        else:
            facts = item.stat()
            yield str(item.resolve()), facts.st_size, facts.st_mtime_ns


def default_folder() -> Path:
    """Return where downloads go when no folder is named."""
    return cache.cache_dir() / "downloads" / NAME


def fetch_femnist(folder: Path | None = None, *, url: str = SOURCE, **options: Unpack[FemnistOptions]) -> Conversion:
    """Download what is missing in ``folder``, convert it, and store it in the cache as ``femnist``.

    Whatever public layout already lies in the folder is taken as it is, without network. No download is ever thrown
    away: it grows in ``<name>.part`` and goes on where it broke off.
    """
    folder = folder or default_folder()
    layout = options.get("layout")
    found = fitting_layouts(folder) if folder.is_dir() else []
    # NIST's is the one layout that can be downloaded.
    if (layout is None and not found) or (layout == "nist" and layout not in found):
        _download(folder, url, options.get("progress", False))
    done = convert_femnist(folder, **options)
    remember(done, folder)
    return done


def _download(folder: Path, url: str, progress: bool) -> None:
    from fedgs.data.download import download

    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise OutputError(f"{folder}: cannot be made ({error.strerror}); --dir names another folder") from None
    base = url.rstrip("/") + "/"
    for name in ARCHIVES:
        if (folder / name).exists():
            continue
        try:
            download(base + name, folder / name, progress=progress)
        except DownloadError as error:
            wanted = " and ".join(base + missing for missing in ARCHIVES if not (folder / missing).exists())
            raise DownloadError(
                f"{error}; run this again to go on, or download {wanted} by hand into {folder} and run it again"
            ) from None
