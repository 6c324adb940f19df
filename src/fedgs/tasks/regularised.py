"""The paper's CNN, regularised: dropout before the classifier, group normalisation after each convolution.

Dropout: Srivastava et al., "Dropout: a simple way to prevent neural networks from overfitting", JMLR 15, 2014. Group
normalisation: Wu and He, ECCV 2018. Neither looks at other samples of a batch, so a
station trains the union of its devices' batches in one step, as with the paper's network.

With dropout 0 and no normalisation the outputs are those of :class:`fedgs.tasks.cnn.PaperCNN` with the same weights.
"""

from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor, nn

from fedgs.errors import ConfigError
from fedgs.tasks.prepare import full_shape

GROUPS = 8


class RegularisedCNN(nn.Module):
    """Two convolutions with max-pooling, two dense layers; Xavier weights, as the paper's network."""

    def __init__(
        self,
        num_classes: int,
        image_shape: Sequence[int],
        dropout: float = 0.5,
        norm: Literal["none", "group"] = "none",
        hidden: int = 2048,
    ) -> None:
        """``dropout``: of the hidden dense layer; ``hidden``: its size."""
        super().__init__()
        if norm not in ("none", "group"):
            raise ConfigError(f"task.options.norm={norm!r}: there are none and group")
        height, width, channels = full_shape(image_shape)
        layers: list[nn.Module] = []
        for before, after in ((channels, 32), (32, 64)):
            layers += [nn.Conv2d(before, after, 5, padding=2), nn.MaxPool2d(2)]
            layers += [nn.GroupNorm(GROUPS, after)] if norm == "group" else []
            layers += [nn.ReLU()]
        self.features = nn.Sequential(*layers, nn.Flatten())
        self.dense = nn.Linear(64 * (height // 4) * (width // 4), hidden)
        self.dropout = nn.Dropout(dropout)
        self.head = nn.Linear(hidden, num_classes)
        for module in self.modules():
            if isinstance(module, nn.Conv2d | nn.Linear):
                nn.init.xavier_uniform_(module.weight)
                module.bias.data.zero_()  # type: ignore[union-attr]  # both have one here

    def forward(self, images: Tensor) -> Tensor:
        """Return the logits."""
        hidden = torch.relu(self.dense(self.features(images)))
        logits: Tensor = self.head(self.dropout(hidden))
        return logits
