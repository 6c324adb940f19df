"""From the settings to a federation: which data, how many devices, which factories."""

from fedgs.data import DataSet, Federation, build_federation
from fedgs.data.sources import EMBEDDED, embedded, load_dataset
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
        min_samples=0 if data.name in EMBEDDED else data.min_samples,
        attribute=data.attribute,
    )


def load_data(settings: Settings) -> DataSet:
    """Load the data set; of an embedded one as many devices as there are to be."""
    data = settings.data
    if data.name in EMBEDDED:
        return embedded(data.name, settings.federation.devices, data.samples_per_device, settings.seed)
    return load_dataset(data.name)
