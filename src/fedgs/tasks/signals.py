"""Built-in networks for signals (channels, length): a 1-D CNN, and an autoencoder."""

import itertools
from typing import Literal

import torch
from torch import Tensor, nn

from fedgs.errors import ConfigError


class VibrationNet(nn.Module):
    """Four convolutions with normalisation, the mean over time, one dense layer: for vibration and currents."""

    def __init__(
        self, channels: int = 3, outputs: int = 12, width: int = 16, norm: Literal["batch", "group"] = "batch"
    ) -> None:
        """``norm``: batch normalisation, or group normalisation with eight groups, which mixes no samples."""
        super().__init__()
        if norm not in ("batch", "group"):
            raise ConfigError(f"task.options.norm={norm!r}: there are batch and group")
        sizes = [channels, width, 2 * width, 4 * width, 4 * width]
        layers: list[nn.Module] = []
        for number, (before, after) in enumerate(itertools.pairwise(sizes)):
            kernel, stride = (32, 4) if number == 0 else (9, 2)
            layers += [nn.Conv1d(before, after, kernel, stride, padding=kernel // 2, bias=False)]
            normalised = nn.BatchNorm1d(after) if norm == "batch" else nn.GroupNorm(8, after)
            layers += [normalised, nn.ReLU(), nn.MaxPool1d(2)]
        self.features = nn.Sequential(*layers)
        self.head = nn.Linear(2 * sizes[-1], outputs)

    def forward(self, signals: Tensor) -> Tensor:
        """Return the outputs of (batch, channels, length)."""
        maps = self.features(signals)
        outputs: Tensor = self.head(torch.cat([maps.mean(-1), maps.amax(-1)], dim=1))
        return outputs


class SignalAutoEncoder(nn.Module):
    """Squeezes a signal through a few numbers and draws it again; what it never saw it draws badly."""

    def __init__(self, channels: int = 3, length: int = 1024, code: int = 24, width: int = 128) -> None:
        super().__init__()
        self.channels, self.length = channels, length
        self.encoder = nn.Sequential(
            nn.Flatten(), nn.Linear(channels * length, width), nn.ReLU(), nn.Linear(width, code)
        )
        self.decoder = nn.Sequential(nn.Linear(code, width), nn.ReLU(), nn.Linear(width, channels * length))

    def forward(self, signals: Tensor) -> Tensor:
        """Return the signals as they are drawn again."""
        drawn: Tensor = self.decoder(self.encoder(signals))
        return drawn.view(-1, self.channels, self.length)
