"""Data: samples with owners, the federations built from them, and the device streams.

A :class:`DataSet` is what every loader gives; a :class:`Federation` deals its owners out to factories;
:class:`DeviceStreams` hands out every device's next mini-batch. Nothing here knows of models or algorithms.
"""

from fedgs.data.dataset import DataSet
from fedgs.data.drift import Drift
from fedgs.data.federation import Federation, build_federation
from fedgs.data.femnist import load_femnist
from fedgs.data.glyphs import load_glyphs
from fedgs.data.npz import load_npz, save_npz
from fedgs.data.owners import Owners, owners_of, regroup
from fedgs.data.recipes import leaf_recipe, paper_federation
from fedgs.data.sources import load_dataset
from fedgs.data.statistics import Heterogeneity, Quantiles, divergences, heterogeneity
from fedgs.data.streams import DeviceStreams
from fedgs.data.synthesis import classes_per_device, dirichlet, dirichlet_factories
from fedgs.data.user_data import from_arrays, from_folder, from_npz

__all__ = [
    "DataSet",
    "DeviceStreams",
    "Drift",
    "Federation",
    "Heterogeneity",
    "Owners",
    "Quantiles",
    "build_federation",
    "classes_per_device",
    "dirichlet",
    "dirichlet_factories",
    "divergences",
    "from_arrays",
    "from_folder",
    "from_npz",
    "heterogeneity",
    "leaf_recipe",
    "load_dataset",
    "load_femnist",
    "load_glyphs",
    "load_npz",
    "owners_of",
    "paper_federation",
    "regroup",
    "save_npz",
]
