"""The networks: the paper's CNN, a compact one for processors, and a linear one for devices without torch.

``paper`` (FedGS, section VII-A): Conv 5×5 to 32, max-pool, Conv 5×5 to 64, max-pool, Dense 2048, Dense F. With 28×28
images and 62 classes 6,603,710 weights. ``compact`` has strides in place of pooling and fewer than
60,000 weights, so that an iteration takes milliseconds on a laptop. ``linear`` is softmax regression on the pixels,
whose step a device can make with numpy alone (:mod:`fedgs.deploy.trainers`).

Weights are Xavier uniform, U(−a, a) with a = √(6 / (fan_in + fan_out)), biases zero. They are drawn from a named
stream by numpy, hence the same on every machine and device. Networks take images of shape (batch, channels, height,
width) with values from 0 (ink) to 1 (paper) and return logits.
"""

import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor, nn

from fedgs.errors import ConfigError
from fedgs.rng import stream
from fedgs.tasks.prepare import full_shape


class PaperCNN(nn.Module):
    """The four-layer network of the paper."""

    def __init__(self, num_classes: int = 62, image_shape: Sequence[int] = (28, 28)) -> None:
        super().__init__()
        height, width, channels = full_shape(image_shape)
        self.conv1 = nn.Conv2d(channels, 32, 5, padding=2)
        self.conv2 = nn.Conv2d(32, 64, 5, padding=2)
        self.dense1 = nn.Linear(64 * (height // 4) * (width // 4), 2048)
        self.dense2 = nn.Linear(2048, num_classes)

    def forward(self, images: Tensor) -> Tensor:
        """Return the logits."""
        # The maximum of rectified values is the rectified maximum: pooling first does the same with a quarter of work.
        hidden = torch.relu(nn.functional.max_pool2d(self.conv1(images), 2))
        hidden = torch.relu(nn.functional.max_pool2d(self.conv2(hidden), 2))
        hidden = torch.relu(self.dense1(hidden.flatten(1)))
        logits: Tensor = self.dense2(hidden)
        return logits


class CompactCNN(nn.Module):
    """A small network that trains fast on two processor cores."""

    def __init__(self, num_classes: int = 62, image_shape: Sequence[int] = (28, 28)) -> None:
        super().__init__()
        height, width, channels = full_shape(image_shape)
        self.conv1 = nn.Conv2d(channels, 12, 5, stride=3, padding=1)
        self.conv2 = nn.Conv2d(12, 24, 3, stride=2, padding=1)
        features = 24
        for side in (height, width):
            features *= (((side - 3) // 3 + 1) + 1) // 2
        self.dense1 = nn.Linear(features, 80)
        self.dense2 = nn.Linear(80, num_classes)

    def forward(self, images: Tensor) -> Tensor:
        """Return the logits."""
        hidden = torch.relu(self.conv1(images))
        hidden = torch.relu(self.conv2(hidden))
        # Flattened as it lies in memory, channels last: no copy on the way there, none on the way back.
        hidden = torch.relu(self.dense1(hidden.permute(0, 2, 3, 1).flatten(1)))
        logits: Tensor = self.dense2(hidden)
        return logits


class LinearModel(nn.Module):
    """Softmax regression: one dense layer on the inputs, whatever their shape."""

    def __init__(self, num_classes: int = 62, image_shape: Sequence[int] = (28, 28)) -> None:
        super().__init__()
        self.dense = nn.Linear(math.prod(image_shape), num_classes)

    def forward(self, inputs: Tensor) -> Tensor:
        """Return the logits."""
        logits: Tensor = self.dense(inputs.flatten(1))
        return logits


MODELS: dict[str, type[PaperCNN] | type[CompactCNN] | type[LinearModel]] = {
    "paper": PaperCNN,
    "compact": CompactCNN,
    "linear": LinearModel,
}


def build_model(name: str, num_classes: int = 62, image_shape: Sequence[int] = (28, 28), seed: int = 0) -> nn.Module:
    """Return a network of the table ``MODELS`` with freshly drawn weights."""
    if name not in MODELS:
        raise ConfigError(f"no model is called {name!r}; there are {', '.join(MODELS)}")
    if num_classes < 1 or (name != "linear" and (len(image_shape) not in (2, 3) or min(image_shape[:2]) < 4)):
        raise ConfigError(
            f"model {name!r} needs images (height, width[, channels]) of 4×4 pixels or more and a class, not "
            f"{tuple(image_shape)}; use a network of your own: task.model=package.module:name"
        )
    with torch.device("cpu"):
        model = MODELS[name](num_classes, image_shape)
    initialise(model, seed)
    return model


def initialise(model: nn.Module, seed: int) -> None:
    """Draw all weights anew: matrices and kernels Xavier uniform, vectors zero."""
    draws = stream(seed, "model")
    with torch.no_grad():
        for weight in model.parameters():
            if weight.ndim < 2:
                weight.zero_()
                continue
            weight.copy_(xavier(draws, tuple(weight.shape)))


def xavier(draws: np.random.Generator, shape: tuple[int, ...]) -> Tensor:
    """Draw a matrix or kernels (out, in, …) uniformly from ±√(6 / (fan_in + fan_out))."""
    bound = (6.0 / ((shape[0] + shape[1]) * math.prod(shape[2:]))) ** 0.5
    return torch.from_numpy(draws.uniform(-bound, bound, size=shape).astype("float32"))
