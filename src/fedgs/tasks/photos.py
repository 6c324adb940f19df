"""A built-in network for photos: what it looks for may lie anywhere in the picture, and be of any size."""

import itertools
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from fedgs.tasks.prepare import full_shape


class PhotoNet(nn.Module):
    """Four convolutions, each followed by max-pooling, the mean and the maximum over places, one dense layer.

    About 50,000 weights whatever the size of the photos. Without batch normalisation samples do not depend on each
    other, so that a station trains the union of its devices' batches in one step.
    """

    def __init__(self, num_classes: int, image_shape: Sequence[int], width: int = 12) -> None:
        super().__init__()
        sizes = [full_shape(image_shape)[2], width, 2 * width, 3 * width, 4 * width]
        layers: list[nn.Module] = []
        side = min(image_shape[:2])
        for number, (before, after) in enumerate(itertools.pairwise(sizes)):
            layers += [nn.Conv2d(before, after, 5 if number == 0 else 3, padding=2 if number == 0 else 1)]
            if side >= 8:
                layers += [nn.MaxPool2d(2)]
                side //= 2
            layers += [nn.ReLU()]
        self.features = nn.Sequential(*layers)
        self.head = nn.Linear(2 * sizes[-1], num_classes)
        for layer in self.features:
            if isinstance(layer, nn.Conv2d):  # torch's own are a third as large, and the first rounds teach little
                nn.init.kaiming_normal_(layer.weight, nonlinearity="relu")

    def forward(self, images: Tensor) -> Tensor:
        """Return the logits."""
        maps = self.features(images)
        logits: Tensor = self.head(torch.cat([maps.mean((2, 3)), maps.amax((2, 3))], dim=1))
        return logits
