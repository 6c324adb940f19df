"""From the settings to a federation: which data, how many devices, which factories."""

from fedgs.data import DataSet, Federation, build_federation
from fedgs.settings import Settings


def load_federation(settings: Settings) -> Federation:
    """Load the data set the settings name and deal it out."""
    data, wanted = settings.data, settings.federation
    return build_federation(
        load_data(settings),
        wanted.factories,
        data.partition,
        data.train_fraction,
        settings.seed,
        devices=wanted.devices,
        min_samples=0 if data.name == "glyphs" else data.min_samples,
        attribute=data.attribute,
    )


def load_data(settings: Settings) -> DataSet:
    """Load the data set; of glyphs as many cameras as there are devices."""
    if settings.data.name == "glyphs":
        from fedgs.data.glyphs import load_glyphs

        return load_glyphs(settings.federation.devices, settings.data.samples_per_device, settings.seed)
    from fedgs.data.sources import load_dataset

    return load_dataset(settings.data.name)
