"""One SGD step on a device (eq. sgd): weights and a batch in, what the step moved them by and the loss out.

    change = −η ∇L(ω; D) ,    L the mean cross-entropy over the batch

``linear`` is computed with numpy, so that a device that trains it needs no torch; networks take torch, on one thread.
"""

from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from fedgs.deploy.sources import Batch
from fedgs.deploy.tensors import Flat, Shapes
from fedgs.deploy.wire import Task
from fedgs.errors import ConfigError


class Trainer(Protocol):
    """What a device does when it is selected."""

    shapes: Shapes

    def step(self, weights: Flat, batch: Batch, learning_rate: float) -> tuple[Flat, float]:
        """Return the change of the weights and the loss before the step."""
        ...


def make_trainer(task: Task) -> Trainer:
    """Return the trainer of a task."""
    if task.model == "linear":
        return LinearTrainer(task.classes, task.image_shape)
    return TorchTrainer(task)


class LinearTrainer:
    """Softmax regression: with p the predicted probabilities, ∇W = (p − y)ᵀ x / n and ∇b = Σ (p − y) / n."""

    def __init__(self, classes: int, image_shape: tuple[int, ...]) -> None:
        pixels = int(np.prod(image_shape))
        self.shapes = Shapes((("dense.weight", (classes, pixels)), ("dense.bias", (classes,))))

    def step(self, weights: Flat, batch: Batch, learning_rate: float) -> tuple[Flat, float]:
        """Return the change of the weights and the loss before the step."""
        now = self.shapes.views(weights)
        images = batch.images
        if images.ndim == 4:
            images = np.moveaxis(images, 3, 1)  # channels first, as networks see them
        pixels = images.reshape(len(images), -1).astype(np.float32) / np.float32(255)
        logits = pixels @ now["dense.weight"].T + now["dense.bias"]
        logits -= logits.max(axis=1, keepdims=True)
        odds = np.exp(logits)
        rows, total = np.arange(len(images)), odds.sum(axis=1)
        loss = float(np.mean(np.log(total) - logits[rows, batch.labels]))
        odds /= total[:, None]
        odds[rows, batch.labels] -= 1
        odds *= np.float32(-learning_rate / len(images))
        change: NDArray[np.float32] = np.empty(self.shapes.size, np.float32)
        view = self.shapes.views(change)
        np.matmul(odds.T, pixels, out=view["dense.weight"])
        odds.sum(axis=0, out=view["dense.bias"])
        return change, loss


class TorchTrainer:
    """Any network of ``fedgs.tasks``."""

    def __init__(self, task: Task) -> None:
        import torch

        from fedgs.tasks.cnn import MODELS, build_model

        if task.model not in MODELS:
            raise ConfigError(f"the station trains a model {task.model!r}, which this version of fedgs does not know")
        torch.set_num_threads(1)  # a mini-batch is too small to share out among cores
        self._model = build_model(task.model, task.classes, task.image_shape)
        self._model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        self._parameters = list(self._model.parameters())
        self.shapes = Shapes.of(dict(self._model.named_parameters()))

    def step(self, weights: Flat, batch: Batch, learning_rate: float) -> tuple[Flat, float]:
        """Return the change of the weights and the loss before the step."""
        import torch
        from torch.nn.functional import cross_entropy

        from fedgs.tasks.cnn import as_input

        with torch.no_grad():
            for parameter, value in zip(self._parameters, self.shapes.views(weights).values(), strict=True):
                parameter.copy_(torch.from_numpy(np.array(value)))
        images, labels = as_input(torch.from_numpy(batch.images)), torch.from_numpy(batch.labels)
        loss = cross_entropy(self._model(images), labels)
        gradients = torch.autograd.grad(loss, self._parameters)
        change = np.empty(self.shapes.size, np.float32)
        for view, gradient in zip(self.shapes.views(change).values(), gradients, strict=True):
            np.multiply(gradient.numpy(), np.float32(-learning_rate), out=view)
        return change, float(loss.detach())
