"""The images of a federation where the training wants them: in numpy on processors, as uint8 on a GPU.

Images become numbers from 0 to 1 (value / 255) only when a batch is gathered. On a GPU all images that belong to a
device lie in its memory (FEMNIST's 80,000: 63 MB), and gathering is an index.
"""

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedgs.data import Federation
from fedgs.tasks.cnn import as_input, full_shape


class ImageStore:
    """Hands out batches of images, normalised and channels-last, with their labels."""

    def __init__(self, federation: Federation, device: torch.device) -> None:
        self.device = device
        self.shape = full_shape(federation.images.shape[1:])
        """(height, width, channels)."""
        self._images, self._labels = federation.images, federation.labels
        self._place: NDArray[np.int64] | None = None
        if device.type == "cuda":
            # A federation of some of the writers does not carry the others onto the GPU.
            self._used = np.unique(np.concatenate([federation.train.flat, federation.test.flat]))
            self._place = np.zeros(len(federation.labels), np.int64)
            self._place[self._used] = np.arange(len(self._used))

    def places(self, samples: NDArray[np.integer]) -> NDArray[np.int64]:
        """Return where samples lie in ``images`` and ``labels``; −1 (nobody) becomes some valid place."""
        places: NDArray[np.int64] = samples.astype(np.int64) if self._place is None else self._place[samples]
        return places

    @cached_property
    def images(self) -> Tensor:
        """All images as uint8, where the device has them."""
        used = self._used if self._place is not None else slice(None)
        return torch.from_numpy(np.array(self._images[used])).to(self.device)

    @cached_property
    def labels(self) -> Tensor:
        """All labels, in the order of ``images``."""
        used = self._used if self._place is not None else slice(None)
        return torch.from_numpy(self._labels[used].astype(np.int64)).to(self.device)

    def batch(self, samples: NDArray[np.int64]) -> tuple[Tensor, Tensor]:
        """Return images (batch, channels, height, width) from 0 to 1 and labels."""
        if self.device.type == "cuda":
            rows = torch.from_numpy(self.places(samples)).to(self.device)
            return self.normalised(self.images.index_select(0, rows)), self.labels.index_select(0, rows)
        return self.normalised(torch.from_numpy(self._images[samples])), self.labels_of(samples)

    def labels_of(self, samples: NDArray[np.int64]) -> Tensor:
        """Return the labels of samples, on the device."""
        return torch.from_numpy(self._labels[samples].astype(np.int64)).to(self.device)

    def pixels(self, places: Tensor) -> tuple[Tensor, Tensor]:
        """Return bytes (…, height, width, channels) and labels (…) of places, a tensor on the device."""
        rows = places.reshape(-1)
        if self.device.type == "cuda":
            images, labels = self.images.index_select(0, rows), self.labels.index_select(0, rows)
        else:
            own = rows.numpy()  # on processors a place is a sample; a memory-mapped file is read as it is needed
            images, labels = torch.from_numpy(self._images[own]), torch.from_numpy(self._labels[own].astype(np.int64))
        return images.view(*places.shape, *self.shape), labels.view(places.shape)

    def normalised(self, images: Tensor) -> Tensor:
        """Return uint8 images (batch, height, width[, channels]) as float32 from 0 to 1, channels-last."""
        return as_input(images)


@contextmanager
def one_thread_each() -> Iterator[None]:
    """Let every thread compute alone: factories are shared out over threads, not the insides of an operation.

    That is faster for small networks, and the result does not depend on the number of cores.
    """
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def mixed_precision(device: torch.device, precision: str) -> torch.autocast | nullcontext[None]:
    """Return the context in which a forward pass computes in bfloat16 when that is asked for, on a GPU."""
    if device.type == "cuda" and precision == "bfloat16":
        # Weights change in every step, so there is nothing to gain from keeping their rounded copies.
        return torch.autocast("cuda", torch.bfloat16, cache_enabled=False)
    return nullcontext()


@contextmanager
def gpu_precision(precision: str) -> Iterator[None]:
    """Set how a GPU computes float32 products (TF32 unless float32 was asked for), and set it back at the end."""
    wanted = "ieee" if precision == "float32" else "tf32"
    matmul: Any = torch.backends.cuda.matmul
    conv: Any = torch.backends.cudnn.conv  # type: ignore[attr-defined,unused-ignore]
    before = matmul.fp32_precision, conv.fp32_precision, torch.backends.cudnn.benchmark
    matmul.fp32_precision = conv.fp32_precision = wanted
    torch.backends.cudnn.benchmark = True  # shapes never change: the library may look for its fastest kernels
    try:
        yield
    finally:
        matmul.fp32_precision, conv.fp32_precision, torch.backends.cudnn.benchmark = before
