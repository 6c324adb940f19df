"""The networks: as torch modules for one model, and as functions of stacked weights for many devices at once."""

from fedgs.models.cnn import (
    MODELS,
    CompactCNN,
    LinearModel,
    PaperCNN,
    as_input,
    build_model,
    full_shape,
    initialise,
)
from fedgs.models.networks import NETWORKS, Network, build_network

__all__ = [
    "MODELS",
    "NETWORKS",
    "CompactCNN",
    "LinearModel",
    "Network",
    "PaperCNN",
    "as_input",
    "build_model",
    "build_network",
    "full_shape",
    "initialise",
]
