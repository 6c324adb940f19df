"""From the settings to a federation: which data, how many devices, which factories."""

from pathlib import Path

from fedgs.config import Settings
from fedgs.data import DataSet, Federation, build_federation
from fedgs.errors import InputFileError


def load_federation(settings: Settings) -> Federation:
    """Load the data set the settings name and deal it out."""
    data, wanted = settings.data, settings.federation
    return build_federation(
        load_data_set(settings),
        wanted.factories,
        data.partition,
        data.train_fraction,
        settings.seed,
        devices=wanted.devices,
        min_samples=0 if data.name == "glyphs" else data.min_samples,
        attribute=data.attribute,
        split="auto",
    )


def load_data_set(settings: Settings) -> DataSet:
    """Load glyphs, FEMNIST, a set of the cache, a file or a folder."""
    from fedgs.data import cache, from_folder, from_npz
    from fedgs.data.femnist import fitting_layouts, load_femnist
    from fedgs.data.npz import is_own_file, load_npz

    name = settings.data.name
    if name == "glyphs":
        from fedgs.data.glyphs import load_glyphs

        return load_glyphs(settings.federation.devices, settings.data.samples_per_device, settings.seed)
    if name == "femnist":
        return load_femnist()
    if name in cache.cached_sets():
        return cache.load(cache.cache_dir() / name)
    path = Path(name)
    if not path.exists():
        raise InputFileError(f"data.name={name!r}: no such file or folder, and no set of this name in the cache")
    if is_own_file(path):
        return load_npz(path)
    if fitting_layouts(path):
        return load_femnist(path)
    return from_npz(path) if path.suffix == ".npz" else from_folder(path)
