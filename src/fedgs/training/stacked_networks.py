"""The built-in CNNs as functions of stacked weights, for many clients at once.

    network = build_network("paper", num_classes=62)
    weights = {name: tensor.expand(clients, …) …}          # one set of weights a client, first dimension the client
    logits = network(weights, images, clients, keys)       # (D, B, classes) of bytes (D, B, height, width, channels)

A network is cut where algorithms take hold of it: ``maps`` (E, the convolutions), ``hidden`` (H, up to the last but one
layer), ``logits`` (C, the classifier). They are trained with cross-entropy.
"""

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Unpack

import torch
from torch import Tensor

from fedgs.errors import ConfigError
from fedgs.tasks.cnn import build_model
from fedgs.tasks.prepare import full_shape
from fedgs.training.layout import Layout
from fedgs.training.network import Cuts, Forward, Network
from fedgs.training.objective import Batch, Weights
from fedgs.training.stacked_layers import convolution, dense, normalised, paper_maps


@dataclass(frozen=True)
class StackedNetwork(Network):
    """What every stacked network is: first weights, and a way from images to logits."""

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

    @cached_property
    def layout(self) -> Layout:  # type: ignore[override]
        """Names and shapes of its weights."""
        return Layout.of_weights(self.first_weights(0))

    @property
    def head(self) -> str:
        """The name of the last layer."""
        return "dense2"

    @property
    def feature_channels(self) -> int:
        """Channels of the feature maps."""
        return len(self.first_weights(0)["conv2.bias"])

    @abstractmethod
    def maps(self, weights: Weights, images: Tensor) -> Tensor:
        """Return the feature maps (D, B, channels, height, width)."""

    def hidden(self, weights: Weights, maps: Tensor) -> Tensor:
        """Return what the classifier sees, (D, B, features)."""
        return torch.relu(dense(maps.flatten(2), weights["dense1.weight"], weights["dense1.bias"], self.dtype))

    def logits(self, weights: Weights, hidden: Tensor) -> Tensor:
        """Return the logits (D, B, classes)."""
        return dense(hidden, weights["dense2.weight"], weights["dense2.bias"], self.dtype).float()

    def forward(
        self, weights: Weights, inputs: Tensor, clients: Tensor, keys: Tensor | None = None, **cuts: Unpack[Cuts]
    ) -> Forward:
        """Return the logits of images."""
        maps = self.maps(weights, inputs)
        if "fuse" in cuts:
            maps = cuts["fuse"](maps)
        seen = self.hidden(weights, maps)
        return Forward(cuts["classify"](seen) if "classify" in cuts else self.logits(weights, seen), seen)

    def features(self, weights: Weights, inputs: Tensor) -> Tensor:
        """Return the feature maps."""
        with torch.no_grad():
            return self.maps(weights, inputs)

    def loss(self, outputs: Tensor, batch: Batch) -> Tensor:
        """Return each client's mean cross-entropy."""
        return cross_entropy(outputs, batch)

    def hits(self, outputs: Tensor, batch: Batch) -> Tensor:
        """Return how many samples of each client were right."""
        right: Tensor = (outputs.argmax(-1) == batch.targets) & (batch.shares > 0)
        return right.sum(1).to(torch.float32)

    def first_weights(self, seed: int) -> dict[str, Tensor]:
        """Return the weights a run starts from; the same for all clients, without their dimension."""
        model = build_model(self.name, self.num_classes, self.image_shape, seed)
        return {name: weight.detach() for name, weight in model.named_parameters()}


class PaperNetwork(StackedNetwork):
    """The paper's CNN."""

    name = "paper"

    def maps(self, weights: Weights, images: Tensor) -> Tensor:
        """Convolve, pool and rectify twice."""
        return paper_maps(images, dict(weights), self.dtype, self.tf32)


class CompactNetwork(StackedNetwork):
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
) -> StackedNetwork:
    """Return the stacked form of a network of ``fedgs.tasks.cnn.MODELS``."""
    if name not in NETWORKS:
        raise ConfigError(f"model {name!r} has no stacked form for many clients at once; use {' or '.join(NETWORKS)}")
    dtype = torch.bfloat16 if precision == "bfloat16" and torch.cuda.is_available() else torch.float32
    return NETWORKS[name](num_classes, full_shape(image_shape), dtype, precision != "float32")


def cross_entropy(logits: Tensor, batch: Batch) -> Tensor:
    """Return each client's mean cross-entropy over the samples that count."""
    chances = torch.log_softmax(logits, dim=-1)
    return -(chances.gather(2, batch.targets[..., None])[..., 0] * batch.shares).sum(1)
