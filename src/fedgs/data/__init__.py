"""Data: samples with clients, the federations built from them, and the device streams.

A :class:`DataSet` is what every loader gives; a :class:`Federation` assigns its clients, as devices, to factories;
:class:`DeviceStreams` hands out every device's next mini-batch. Nothing here knows of models or algorithms.
"""

from fedgs.data.dataset import Clients, DataSet, clients_of, regroup
from fedgs.data.drift import Drift
from fedgs.data.federation import Federation, build_federation
from fedgs.data.femnist import load_femnist
from fedgs.data.femnist_federations import leaf_federation, paper_federation
from fedgs.data.glyphs import load_glyphs
from fedgs.data.label_skew import classes_per_device, dirichlet, dirichlet_factories
from fedgs.data.npz import from_npz, load_npz, save_npz
from fedgs.data.sources import load_dataset
from fedgs.data.statistics import Heterogeneity, Quantiles, divergences, heterogeneity
from fedgs.data.streams import DeviceStreams
from fedgs.data.user_data import from_arrays, from_folder

__all__ = [
    "Clients",
    "DataSet",
    "DeviceStreams",
    "Drift",
    "Federation",
    "Heterogeneity",
    "Quantiles",
    "build_federation",
    "classes_per_device",
    "clients_of",
    "dirichlet",
    "dirichlet_factories",
    "divergences",
    "from_arrays",
    "from_folder",
    "from_npz",
    "heterogeneity",
    "leaf_federation",
    "load_dataset",
    "load_femnist",
    "load_glyphs",
    "load_npz",
    "paper_federation",
    "regroup",
    "save_npz",
]
