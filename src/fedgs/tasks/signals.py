"""Built-in networks for signals (channels, length): a 1-D CNN with batch normalisation, and an autoencoder."""

import itertools

import torch
from torch import Tensor, nn


class VibrationNet(nn.Module):
    """Four convolutions with batch normalisation, the mean over time, one dense layer: for vibration and currents."""

    def __init__(self, channels: int = 3, outputs: int = 12, width: int = 16) -> None:
        super().__init__()
        sizes = [channels, width, 2 * width, 4 * width, 4 * width]
        layers: list[nn.Module] = []
        for number, (before, after) in enumerate(itertools.pairwise(sizes)):
            kernel, stride = (32, 4) if number == 0 else (9, 2)
            layers += [nn.Conv1d(before, after, kernel, stride, padding=kernel // 2, bias=False)]
            layers += [nn.BatchNorm1d(after), nn.ReLU(), nn.MaxPool1d(2)]
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
