"""The networks of the race, for an environment that has torch and no fedgs: the same layers and names as fedgs has.

``tests/test_race.py`` holds them equal to ``fedgs.tasks.cnn``.
"""

import torch
from torch import Tensor, nn


class PaperCNN(nn.Module):
    """Conv 5×5 to 32, max-pool, Conv 5×5 to 64, max-pool, Dense 2048, Dense classes; for images of 28×28."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, 32, 5, padding=2)
        self.conv2 = nn.Conv2d(32, 64, 5, padding=2)
        self.dense1 = nn.Linear(64 * 7 * 7, 2048)
        self.dense2 = nn.Linear(2048, classes)

    def forward(self, images: Tensor) -> Tensor:
        hidden = torch.relu(nn.functional.max_pool2d(self.conv1(images), 2))
        hidden = torch.relu(nn.functional.max_pool2d(self.conv2(hidden), 2))
        hidden = torch.relu(self.dense1(hidden.flatten(1)))
        return self.dense2(hidden)


class CompactCNN(nn.Module):
    """Strides in place of pooling, fewer than 60,000 weights; for images of 28×28."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, 12, 5, stride=3, padding=1)
        self.conv2 = nn.Conv2d(12, 24, 3, stride=2, padding=1)
        self.dense1 = nn.Linear(24 * 5 * 5, 80)
        self.dense2 = nn.Linear(80, classes)

    def forward(self, images: Tensor) -> Tensor:
        hidden = torch.relu(self.conv1(images))
        hidden = torch.relu(self.conv2(hidden))
        hidden = torch.relu(self.dense1(hidden.permute(0, 2, 3, 1).flatten(1)))
        return self.dense2(hidden)


NETWORKS = {"paper": PaperCNN, "compact": CompactCNN}
