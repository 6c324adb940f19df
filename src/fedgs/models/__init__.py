"""The networks: as torch modules for one model, and as functions of stacked weights for many devices at once."""

from fedgs.models.cnn import MODELS, CompactCNN, PaperCNN, build_model, full_shape, initialise
from fedgs.models.networks import NETWORKS, Network, build_network

__all__ = [
    "MODELS",
    "NETWORKS",
    "CompactCNN",
    "Network",
    "PaperCNN",
    "build_model",
    "build_network",
    "full_shape",
    "initialise",
]
