"""A data set by name or path, for commands and settings: ``glyphs``, ``femnist``, a cached set, a file, a folder."""

from pathlib import Path
from typing import TYPE_CHECKING

from fedgs.data import cache
from fedgs.data.dataset import DataSet
from fedgs.data.npz import is_own_file, load_npz
from fedgs.data.own import from_folder
from fedgs.errors import DataError, InputFileError

if TYPE_CHECKING:
    from fedgs.data.femnist import Layout


def load_dataset(
    what: str | Path,
    *,
    layout: "Layout | None" = None,
    leaf_compat: bool = False,
    invert: bool = False,
    progress: bool = False,
) -> DataSet:
    """Return the data set of this name or path; a name comes before a file that is called the same.

    A path may be FEMNIST in any public layout, a .npz that ``save_npz`` wrote, or a folder of your own images
    (``device/class/xxx.png``). ``layout``, ``leaf_compat`` and ``invert`` are about FEMNIST's original files.
    """
    from fedgs.data.femnist import fitting_layouts, load_femnist

    name, path = str(what), Path(what)
    originals = layout is not None or leaf_compat or invert
    if originals and (name in known_names() or is_own_file(path)):
        raise DataError(f"{name}: converted already; --layout, --leaf-compat and --invert are for the original files")
    if name == "glyphs":
        from fedgs.data.glyphs import load_glyphs

        return load_glyphs()
    if name == "femnist":
        return load_femnist()
    if name in cache.cached_sets():
        return cache.load(cache.cache_dir() / name)
    if not path.exists():
        raise InputFileError(
            f"{name}: no such file or folder, and no set of this name; names are {', '.join(known_names())}"
        )
    if is_own_file(path):
        return load_npz(path)
    if path.is_dir() and layout is None and not fitting_layouts(path):
        return from_folder(path)
    return load_femnist(path, leaf_compat, layout=layout, invert=invert, progress=progress)


def known_names() -> list[str]:
    """Return the names that :func:`load_dataset` takes here and now."""
    return list(dict.fromkeys(["glyphs", "femnist", *cache.cached_sets()]))
