"""The networks of :mod:`fedgs.tasks.cnn` as functions of stacked weights, for many devices at once.

    network = build_network("paper", num_classes=62)
    weights = {name: tensor.expand(devices, …) …}        # one set of weights a device, first dimension the device
    logits = network(weights, images, owners, keys)      # (D, B, classes) of bytes (D, B, height, width, channels)

A network is cut where approaches take hold of it: ``maps`` (E, the convolutions), ``hidden`` (H, up to the last but one
layer), ``logits`` (C, the classifier). ``owners`` (D, B) are the devices the samples belong to, and ``keys`` (D,) the
random numbers of this step, None when testing; only a network that knows its devices (CGAU) looks at them.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fedgs.errors import ConfigError
from fedgs.tasks.cnn import build_model, full_shape
from fedgs.training.stacked_layers import convolution, dense, normalised, paper_maps

Weights = Mapping[str, Tensor]


@dataclass(frozen=True)
class Network(ABC):
    """What every network is: first weights, and a way from images to logits."""

    num_classes: int = 62
    image_shape: tuple[int, int, int] = (28, 28, 1)
    dtype: torch.dtype = torch.float32
    """In which the products of a GPU are taken; bfloat16 or float32."""
    tf32: bool = True
    """Whether a GPU may round float32 products to TF32."""

    @property
    @abstractmethod
    def name(self) -> str:
        """Its name in ``fedgs.tasks.cnn.MODELS``."""

    @abstractmethod
    def maps(self, weights: Weights, images: Tensor) -> Tensor:
        """Return the feature maps (D, B, channels, height, width)."""

    def hidden(self, weights: Weights, maps: Tensor) -> Tensor:
        """Return what the classifier sees, (D, B, features)."""
        return torch.relu(dense(maps.flatten(2), weights["dense1.weight"], weights["dense1.bias"], self.dtype))

    def logits(self, weights: Weights, hidden: Tensor, owners: Tensor, keys: Tensor | None = None) -> Tensor:
        """Return the logits (D, B, classes)."""
        return dense(hidden, weights["dense2.weight"], weights["dense2.bias"], self.dtype).float()

    def __call__(self, weights: Weights, images: Tensor, owners: Tensor, keys: Tensor | None = None) -> Tensor:
        """Return the logits of images."""
        return self.logits(weights, self.hidden(weights, self.maps(weights, images)), owners, keys)

    def first_weights(self, seed: int) -> dict[str, Tensor]:
        """Return the weights a run starts from; the same for all devices, without their dimension."""
        model = build_model(self.name, self.num_classes, self.image_shape, seed)
        return {name: weight.detach() for name, weight in model.named_parameters()}

    def on_backbone(self, plain: Weights, seed: int) -> dict[str, Tensor]:
        """Return first weights that take from a trained plain network what they have in common."""
        return self.first_weights(seed) | dict(plain)


class PaperNetwork(Network):
    """The paper's CNN."""

    name = "paper"

    def maps(self, weights: Weights, images: Tensor) -> Tensor:
        """Convolve, pool and rectify twice."""
        return paper_maps(images, dict(weights), self.dtype, self.tf32)


class CompactNetwork(Network):
    """The compact CNN; it flattens channels last."""

    name = "compact"

    def maps(self, weights: Weights, images: Tensor) -> Tensor:
        """Convolve with strides and rectify twice."""
        pixels = normalised(images)
        first = convolution(pixels, weights["conv1.weight"], weights["conv1.bias"], stride=3, padding=1)
        second = convolution(first.relu(), weights["conv2.weight"], weights["conv2.bias"], stride=2, padding=1)
        return second.relu()

    def hidden(self, weights: Weights, maps: Tensor) -> Tensor:
        """Flatten with the channels last."""
        return super().hidden(weights, maps.permute(0, 1, 3, 4, 2))


NETWORKS: dict[str, type[PaperNetwork] | type[CompactNetwork]] = {"paper": PaperNetwork, "compact": CompactNetwork}


def build_network(
    name: str, num_classes: int = 62, image_shape: Sequence[int] = (28, 28), precision: str = "tf32"
) -> Network:
    """Return the stacked form of a network of ``fedgs.tasks.cnn.MODELS``."""
    if name not in NETWORKS:
        raise ConfigError(f"model {name!r} has no stacked form for many devices at once; use {' or '.join(NETWORKS)}")
    dtype = torch.bfloat16 if precision == "bfloat16" and torch.cuda.is_available() else torch.float32
    return NETWORKS[name](num_classes, full_shape(image_shape), dtype, precision != "float32")
