"""The samples of a federation where the training wants them: in numpy on processors, in its memory on a GPU.

Inputs are stored as they came and prepared (bytes to numbers from 0 to 1, …) only when a batch is gathered. On a GPU
all samples that belong to a device lie in its memory (FEMNIST's 80,000: 63 MB), and gathering is an index.
"""

from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedgs.data.arrays import map_tree, take
from fedgs.tasks.bind import BoundTask
from fedgs.tasks.build import seed_generators
from fedgs.tasks.prepare import as_tensor, full_shape, prepare_targets
from fedgs.tasks.task import users_own


class SampleStore:
    """Hands out batches of prepared inputs and targets."""

    def __init__(self, task: BoundTask, device: torch.device) -> None:
        self.task, self.device = task, device
        self._inputs, self._targets = task.federation.inputs, task.federation.targets
        self._place: NDArray[np.int64] | None = None
        if device.type == "cuda":
            # A federation of some of the writers does not carry the others onto the GPU.
            federation = task.federation
            self._used = np.unique(np.concatenate([federation.train.flat, federation.test.flat]))
            self._place = np.zeros(len(federation.labels), np.int64)
            self._place[self._used] = np.arange(len(self._used))

    @property
    def image_shape(self) -> tuple[int, int, int]:
        """(height, width, channels) of images of bytes."""
        return full_shape(self._inputs.shape[1:])

    def places(self, samples: NDArray[np.integer]) -> NDArray[np.int64]:
        """Return where samples lie on the device; −1 (nobody) becomes some valid place."""
        places: NDArray[np.int64] = samples.astype(np.int64) if self._place is None else self._place[samples]
        return places

    @cached_property
    def inputs(self) -> Any:
        """All inputs as they are stored, where the device has them."""
        used = self._used if self._place is not None else np.arange(len(self.task.federation.labels))
        return map_tree(lambda array: as_tensor(array).to(self.device), take(self._inputs, used))

    @cached_property
    def targets(self) -> Any:
        """All targets, in the order of ``inputs``."""
        used = self._used if self._place is not None else np.arange(len(self.task.federation.labels))
        return prepare_targets(map_tree(lambda array: as_tensor(array).to(self.device), take(self._targets, used)))

    def batch(self, samples: NDArray[np.int64]) -> tuple[Any, Any]:
        """Return the prepared inputs and the targets of samples."""
        if self.device.type == "cuda":
            return self.gather(torch.from_numpy(self.places(samples)).to(self.device))
        raw = map_tree(as_tensor, take(self._inputs, samples))
        return self.task.prepare(raw), self.targets_of(samples)

    def augmented(self, inputs: Any, key: int, draws_elsewhere: bool) -> Any:
        """Return inputs changed at random, where the task asks for it; ``key`` decides how.

        ``draws_elsewhere``: it may draw from other generators than its own, so they are set too.
        """
        if self.task.task.augment is None:
            return inputs
        if draws_elsewhere:
            seed_generators(key)
        return self.augment(inputs, torch.Generator(self.device).manual_seed(key))

    def augment(self, inputs: Any, generator: torch.Generator) -> Any:
        """Return inputs changed by the task's augment."""
        function = self.task.task.augment
        assert function is not None
        with users_own("task.augment: fails on a batch"):
            return function(inputs, generator)

    def gather(self, places: Tensor) -> tuple[Any, Any]:
        """Return the prepared inputs and the targets of places, a tensor on the device: a captured graph can do it."""
        raw = map_tree(lambda stored: stored.index_select(0, places), self.inputs)
        return self.task.prepare(raw), map_tree(lambda stored: stored.index_select(0, places), self.targets)

    def targets_of(self, samples: NDArray[np.int64]) -> Any:
        """Return the targets of samples, on the device."""
        found = prepare_targets(map_tree(as_tensor, take(self._targets, samples)))
        return found if self.device.type == "cpu" else map_tree(lambda value: value.to(self.device), found)

    def pixels(self, places: Tensor) -> tuple[Tensor, Tensor]:
        """Return bytes (…, height, width, channels) and labels (…) of places: for the stacked networks."""
        rows = places.reshape(-1)
        if self.device.type == "cuda":
            images, labels = self.inputs.index_select(0, rows), self.targets.index_select(0, rows)
        else:
            own = rows.numpy()  # on processors a place is a sample; a memory-mapped file is read as it is needed
            images, labels = torch.from_numpy(np.asarray(self._inputs[own])), self.targets_of(own)
        return images.view(*places.shape, *self.image_shape), labels.view(places.shape)
