"""From the settings to a federation: which data, how many devices, which factories."""

from dataclasses import replace

import numpy as np

from fedgs.data import Clients, DataSet, Federation, build_federation, classes_per_device, dirichlet
from fedgs.data.dataset import match_classes
from fedgs.data.sources import EMBEDDED, embedded, load_dataset
from fedgs.settings import Settings, SplitSettings
from fedgs.simulation.warm_start import classes_of_model


def load_federation(settings: Settings, dataset: DataSet | None = None) -> Federation:
    """Load the data set the settings name, unless it is given, and deal it out."""
    data, wanted = settings.data, settings.federation
    if dataset is None:
        dataset = load_data(settings)
    return build_federation(
        dataset,
        wanted.factories,
        data.partition,
        data.train_fraction,
        settings.seed,
        devices=wanted.devices,
        min_samples=least_samples(settings),
        attribute=data.attribute,
        clients=None if data.split is None else split_clients(dataset, data.split, wanted.devices, settings.seed),
    )


def split_clients(dataset: DataSet, split: SplitSettings, devices: int, seed: int) -> Clients:
    """Return the devices that the settings split a data set among; ``devices`` where they do not say how many."""
    number = split.devices or devices
    if split.kind == "dirichlet":
        return dirichlet(dataset.labels, number, split.alpha, seed=seed)
    return classes_per_device(dataset.labels, number, split.classes, seed=seed)


def default_pick(devices: int) -> int:
    """Return how many of a factory's devices are selected where nobody says: a fifth, at least two."""
    return min(devices, max(2, round(devices / 5)))


def least_samples(settings: Settings) -> int:
    """Return how many samples a client must have to become a device."""
    return 0 if settings.data.name in EMBEDDED or settings.data.split is not None else settings.data.min_samples


def load_data(settings: Settings) -> DataSet:
    """Load the data set; of an embedded one as many devices as there are to be.

    A run that begins with a trained model has that model's classes, also where the data lack some of them.
    """
    data = settings.data
    if data.name in EMBEDDED:
        return embedded(data.name, settings.federation.devices, data.samples_per_device, settings.seed)
    size = None if data.size is None else (data.size[0], data.size[1])
    found = load_dataset(data.name, size=size, grey=data.grey)
    known = () if settings.init is None or not found.classes else classes_of_model(settings.init)
    if set(found.classes) < set(known):
        places = match_classes(found.name, found.classes, known)
        found = replace(found, targets=places[found.targets].astype(np.int32), classes=tuple(known))
    return found
