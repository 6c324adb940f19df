"""A data set by name or path, for commands and settings: ``glyphs``, ``bearings``, ``femnist``, a cached set, a path.

One rule for all: a name comes before a file or folder that is called the same; ``./name`` is always the latter.
"""

from pathlib import Path
from typing import TYPE_CHECKING, Unpack

from fedgs.data import cache
from fedgs.data.dataset import DataSet
from fedgs.data.npz import from_npz, is_own, keys_of, load_npz
from fedgs.data.user_data import FOREIGN, LAYOUTS, SUFFIXES, from_folder, image_files
from fedgs.errors import DataError, InputFileError, suggestion

if TYPE_CHECKING:
    from fedgs.data.femnist import Conversion, FemnistOptions

EMBEDDED = ("glyphs", "bearings", "bearings-severity", "bearings-anomaly")
"""Data sets that need no file."""


def load_dataset(
    what: str | Path,
    *,
    size: tuple[int, int] | None = None,
    grey: bool | None = None,
    **options: "Unpack[FemnistOptions]",
) -> DataSet:
    """Return the data set of this name or path.

    A path may be FEMNIST in any public layout (then cached), a folder of the cache, a .npz that ``save_npz`` wrote, a
    .npz of your own arrays (``images``, ``labels``, …) or a folder of your own images (``device/class/xxx.png``), which
    ``size`` and ``grey`` are about. The other options are about FEMNIST's original files
    (:class:`fedgs.data.femnist.FemnistOptions`).
    """
    from fedgs.data.femnist import load_femnist

    if size is not None or grey is not None:
        return _resized(what, size, grey)
    found = _without_conversion(str(what), options)
    return load_femnist(what, **options) if found is None else found


def _resized(what: str | Path, size: tuple[int, int] | None, grey: bool | None = None) -> DataSet:
    if not is_image_folder(what):
        raise DataError(f"{what}: a size (data.size, --size) and data.grey are for folders of images; leave them out")
    return from_folder(what, size=size, grey=grey)


def convert_dataset(
    what: str | Path, *, size: tuple[int, int] | None = None, **options: "Unpack[FemnistOptions]"
) -> "Conversion":
    """Return the same data set as :func:`load_dataset`, FEMNIST's original files read past the cache."""
    from fedgs.data.femnist import Conversion, convert_femnist

    if size is not None:
        return Conversion(_resized(what, size), "own")
    found = _without_conversion(str(what), options)
    return convert_femnist(what, **options) if found is None else Conversion(found, "own")


def is_image_folder(what: str | Path) -> bool:
    """Tell whether a name or path stands for a folder of the user's own images."""
    from fedgs.data.femnist import fitting_layouts

    path = Path(what)
    known = str(what) in (*EMBEDDED, "femnist", *cache.cached_sets()) or not path.is_dir() or cache.is_set(path)
    return not known and not fitting_layouts(path) and bool(image_files(path, (*SUFFIXES, *FOREIGN)))


def _without_conversion(name: str, options: "FemnistOptions") -> DataSet | None:
    """Return the set called ``name`` or lying there; None where FEMNIST's original files are to be converted."""
    from fedgs.data.femnist import fitting_layouts, load_femnist

    path = Path(name)
    names = list(dict.fromkeys([*EMBEDDED, "femnist", *cache.cached_sets()]))
    if name not in names and not path.exists():
        # The cache has names of its own for what it keeps; they are not listed here.
        hint = suggestion(name, [*EMBEDDED, "femnist", "those of: fedgs data list"], "names are")
        raise InputFileError(f"{name}: no such file or folder, and no set of this name; {hint}")
    original = options.get("layout") or options.get("leaf_compat") or options.get("invert")
    own = is_own(keys_of(path))
    if original and (name in names or cache.is_set(path) or own):
        raise DataError(f"{name}: converted already; layout, leaf_compat and invert are for FEMNIST's original files")
    if name in EMBEDDED:
        return embedded(name)
    if name == "femnist":
        return load_femnist()
    if name in names or cache.is_set(path):
        return cache.load(cache.cache_dir() / name if name in names else path)
    if own:
        return load_npz(path)
    if original or fitting_layouts(path):
        return None
    if path.suffix == ".npz":
        return from_npz(path)
    if is_image_folder(name):
        return from_folder(path)
    found = "a folder without images" if path.is_dir() else f"a {path.suffix.removeprefix('.').upper() or 'plain'} file"
    raise InputFileError(
        f"{name}: {found}; fedgs reads folders of images ({LAYOUTS}), .npz files with the arrays inputs and targets, "
        "and FEMNIST's own files; other data become arrays first: fedgs.Federation.from_arrays"
    )


def embedded(name: str, devices: int | None = None, samples: int | None = None, seed: int = 0) -> DataSet:
    """Return an embedded data set of so many devices, with so many samples each; None: its own numbers."""
    if name == "glyphs":
        from fedgs.data.glyphs import load_glyphs

        return load_glyphs(devices or 350, samples or 230, seed)
    from fedgs.data.bearings import load_bearings

    kind = name.partition("-")[2] or "faults"
    machines = devices or 200
    return load_bearings(machines, samples or 60, seed, plants=min(8, machines), kind=kind)  # type: ignore[arg-type]
