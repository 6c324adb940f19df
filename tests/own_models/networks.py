"""Eight networks as users bring them, each with a small federation it can train on."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import fedgs

CLASSES, DEVICES, FACTORIES = 4, 8, 2
SIZES = (11, 14, 9, 16, 12, 10, 13, 15)
"""Training and test samples of the devices: no two alike, no multiple of the batch."""


class Table(nn.Module):
    """An MLP on a table of sensor values, with layer normalisation."""

    def __init__(self, features: int = 6) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(features, 16), nn.LayerNorm(16), nn.Tanh(), nn.Linear(16, CLASSES))

    def forward(self, rows: Tensor) -> Tensor:
        outputs: Tensor = self.layers(rows)
        return outputs


class Signal(nn.Module):
    """A 1-D CNN with batch normalisation."""

    def __init__(self, channels: int = 2) -> None:
        super().__init__()
        # Without biases, whose gradient is zero in front of batch normalisation: Adam would make steps of its rounding.
        self.body = nn.Sequential(
            nn.Conv1d(channels, 6, 5, 2, bias=False), nn.BatchNorm1d(6), nn.Tanh(),
            nn.Conv1d(6, 8, 3, bias=False), nn.BatchNorm1d(8), nn.Tanh(),
        )  # fmt: skip
        self.fc = nn.Linear(8, CLASSES)

    def forward(self, signals: Tensor) -> Tensor:
        outputs: Tensor = self.fc(self.body(signals).mean(-1))
        return outputs


class Block(nn.Module):
    def __init__(self, before: int, after: int, stride: int) -> None:
        super().__init__()
        self.one = nn.Conv2d(before, after, 3, stride, 1, bias=False)
        self.first, self.second = nn.GroupNorm(2, after), nn.GroupNorm(2, after)
        self.two = nn.Conv2d(after, after, 3, 1, 1, bias=False)
        self.short = nn.Conv2d(before, after, 1, stride, bias=False) if before != after else nn.Identity()

    def forward(self, maps: Tensor) -> Tensor:
        inner = self.second(self.two(torch.tanh(self.first(self.one(maps)))))
        return torch.tanh(inner + self.short(maps))


class ResNet8(nn.Module):
    """A small ResNet with group normalisation, for colour images."""

    def __init__(self, width: int = 4) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, width, 3, padding=1, bias=False)
        self.blocks = nn.Sequential(Block(width, width, 1), Block(width, 2 * width, 2), Block(2 * width, 4 * width, 2))
        self.head = nn.Linear(4 * width, CLASSES)

    def forward(self, images: Tensor) -> Tensor:
        outputs: Tensor = self.head(self.blocks(self.stem(images)).mean((2, 3)))
        return outputs


class Dropping(nn.Module):
    """A CNN with dropout."""

    def __init__(self, p: float = 0.0) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(1, 4, 3, padding=1), nn.Tanh(), nn.Dropout2d(p), nn.AvgPool2d(2), nn.Flatten(), nn.Dropout(p),
            nn.Linear(64, CLASSES),
        )  # fmt: skip

    def forward(self, images: Tensor) -> Tensor:
        outputs: Tensor = self.layers(images)
        return outputs


class Frozen(nn.Module):
    """A backbone that somebody has trained, and a head to train."""

    def __init__(self) -> None:
        super().__init__()
        self.backbone = nn.Sequential(nn.Linear(6, 12), nn.Tanh())
        self.backbone.requires_grad_(False)
        self.head = nn.Linear(12, CLASSES)

    def forward(self, rows: Tensor) -> Tensor:
        outputs: Tensor = self.head(self.backbone(rows))
        return outputs


class Words(nn.Module):
    """An LSTM on numbers of words."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(20, 5)
        self.lstm = nn.LSTM(5, 7, batch_first=True)
        self.fc = nn.Linear(7, CLASSES)

    def forward(self, words: Tensor) -> Tensor:
        outputs: Tensor = self.fc(self.lstm(self.embedding(words))[0][:, -1])
        return outputs


class Attention(nn.Module):
    """A small transformer encoder."""

    def __init__(self) -> None:
        super().__init__()
        self.inputs = nn.Linear(2, 8)
        layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 1, enable_nested_tensor=False)
        self.fc = nn.Linear(8, CLASSES)

    def forward(self, signals: Tensor) -> Tensor:
        outputs: Tensor = self.fc(self.encoder(self.inputs(signals.transpose(1, 2))).mean(1))
        return outputs


class Squeeze(nn.Module):
    """An autoencoder."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.decoder = nn.Linear(6, 3), nn.Linear(3, 6)

    def forward(self, rows: Tensor) -> Tensor:
        outputs: Tensor = self.decoder(torch.tanh(self.encoder(rows)))
        return outputs


@dataclass(frozen=True)
class Case:
    """A network and its data."""

    model: Callable[[], nn.Module]
    shape: tuple[int, ...]
    kind: str = "float32"
    autoencodes: bool = False
    head: str | None = None

    @property
    def task(self) -> fedgs.Task:
        if self.autoencodes:
            return fedgs.reconstruction(self.model, by="mode")
        return fedgs.classification(self.model, CLASSES, head=self.head)

    def federation(self, seed: int = 0) -> fedgs.Federation:
        draws = np.random.default_rng(seed)
        devices = np.repeat(np.arange(DEVICES), SIZES)
        labels = draws.integers(0, CLASSES, len(devices))
        labels[:CLASSES] = np.arange(CLASSES)
        inputs: Any
        if self.kind == "int64":
            inputs = draws.integers(0, 5, (len(devices), *self.shape)) + 5 * (labels[:, None] % 3)
        elif self.kind == "uint8":
            inputs = draws.integers(0, 120, (len(devices), *self.shape)) + 40 * labels.reshape(
                -1, *[1] * len(self.shape)
            )
            inputs = inputs.astype(np.uint8)
        else:
            inputs = draws.normal(0, 1, (len(devices), *self.shape)) + labels.reshape(-1, *[1] * len(self.shape)) / 2
            inputs = inputs.astype(self.kind)
        targets: Any = labels
        if self.autoencodes:
            targets = {"mode": labels % 2, "anomalous": (labels == 3).astype(np.int64)}
        return fedgs.Federation.from_arrays(
            inputs, targets, devices=devices, factories=devices % FACTORIES, test=0.2, seed=seed
        )


CASES = {
    "mlp on tables": Case(Table, (6,), "float64"),
    "1-D CNN with BatchNorm": Case(Signal, (2, 24), head="fc"),
    "ResNet-8 with GroupNorm": Case(ResNet8, (32, 32, 3), "uint8"),
    "dropout CNN": Case(Dropping, (8, 8), "uint8"),
    "frozen backbone": Case(Frozen, (6,)),
    "LSTM": Case(Words, (7,), "int64"),
    "transformer encoder": Case(Attention, (2, 6)),
    "autoencoder": Case(Squeeze, (6,), autoencodes=True),
}
