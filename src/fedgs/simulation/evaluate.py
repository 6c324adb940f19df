"""Accuracy and loss of a model on every device's own test data (specification §1.3).

The primary numbers pool all test samples. Beside them stand the accuracy of each factory and, since a good mean can
hide a device that is served badly, the 10th, 50th and 90th percentile over devices.
"""

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import cross_entropy

from fedgs.data import Federation
from fedgs.simulation.process_group import World
from fedgs.training.store import ImageStore, gpu_precision, one_thread_each

Forward = Callable[[NDArray[np.int64], NDArray[np.int64]], Tensor]
"""From samples and the devices they belong to, to logits (samples, classes)."""
PERCENTILES = (10, 50, 90)
CPU_BATCH, GPU_BATCH = 256, 4096


@dataclass(frozen=True)
class Evaluation:
    """How good a model is."""

    accuracy: float
    """Share of all test samples that are right."""
    loss: float
    """Mean cross-entropy over all test samples."""
    factories: tuple[float, ...]
    """Accuracy of each factory (of the devices it began with)."""
    percentiles: tuple[float, ...]
    """10th, 50th and 90th percentile of the accuracy over devices."""
    devices: NDArray[np.float64]
    """(devices,) accuracy of each device."""


class Evaluator:
    """Tests models on all devices; the ranks of ``world`` share the samples out among themselves."""

    def __init__(
        self,
        federation: Federation,
        store: ImageStore,
        world: World | None = None,
        precision: str = "tf32",
        threads: int | None = None,
        weighting: str = "test_size",
    ) -> None:
        self.federation, self.store, self.precision = federation, store, precision
        self.world = world or World()
        self._weighting = weighting
        self._threads = threads or os.cpu_count() or 1
        self._device_of = federation.test.rows

    def evaluate(self, forward: Forward) -> Evaluation:
        """Test a model."""
        on_gpu = self.store.device.type == "cuda"
        samples = self.federation.test.flat
        size = GPU_BATCH if on_gpu else CPU_BATCH
        starts = [first for number, first in enumerate(range(0, len(samples), size)) if self.world.mine(number)]
        # Right or wrong, and the loss, sample by sample: each rank fills in its own, so that summing is exact.
        results = torch.zeros(2, len(samples))

        def test(first: int) -> None:
            part = slice(first, first + size)
            results[:, part] = self._test(forward, samples[part], self._device_of[part]).cpu()

        if on_gpu:
            with gpu_precision(self.precision):
                for first in starts:
                    test(first)
        else:
            with (
                one_thread_each(),
                ThreadPoolExecutor(self._threads, initializer=torch.set_num_threads, initargs=(1,)) as pool,
            ):
                list(pool.map(test, starts))
        self.world.add_up(results)
        return self._summary(results[0].double().numpy(), results[1].double().numpy())

    @torch.inference_mode()
    def _test(self, forward: Forward, samples: NDArray[np.int64], devices: NDArray[np.int64]) -> Tensor:
        logits = forward(samples, devices)
        labels = self.store.labels_of(samples)
        losses = cross_entropy(logits.float(), labels, reduction="none")
        return torch.stack([(logits.argmax(dim=1) == labels).float(), losses])

    def _summary(self, right: NDArray[np.float64], losses: NDArray[np.float64]) -> Evaluation:
        federation = self.federation
        sizes = federation.test.sizes
        hits = np.bincount(self._device_of, right, minlength=len(federation))
        in_factory = np.bincount(federation.factory_of, sizes, minlength=federation.factories)
        factory_hits = np.bincount(federation.factory_of, hits, minlength=federation.factories)
        accuracies = hits / sizes
        accuracy, loss = float(hits.sum() / sizes.sum()), float(losses.mean())
        if self._weighting == "leaf":  # as LEAF's scripts do: a device counts by all its samples, not by those tested
            counts = sizes + federation.train.sizes
            own_losses = np.bincount(self._device_of, losses, minlength=len(federation)) / sizes
            accuracy, loss = (
                float(np.average(accuracies, weights=counts)),
                float(np.average(own_losses, weights=counts)),
            )
        return Evaluation(
            accuracy=accuracy,
            loss=loss,
            factories=tuple((factory_hits / in_factory).tolist()),
            percentiles=tuple(np.percentile(accuracies, PERCENTILES).tolist()),
            devices=accuracies,
        )
