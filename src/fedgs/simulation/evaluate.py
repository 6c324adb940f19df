"""Loss and metrics of a model on every device's own test data (specification §1.3).

The primary numbers pool all test samples. There are also the score of each factory and, since a good mean can hide a
device that is served badly, the 10th, 50th and 90th percentile of the score over devices.
"""

import itertools
import os
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedgs.data.arrays import leaves, take
from fedgs.simulation.process_group import ProcessGroup
from fedgs.tasks.bind import BoundTask
from fedgs.tasks.losses import predicted_classes
from fedgs.tasks.metrics import Metric, confusion_matrix
from fedgs.tasks.task import users_own
from fedgs.training.precision import gpu_precision, one_thread_each
from fedgs.training.store import SampleStore

if TYPE_CHECKING:
    from fedgs.algorithms.algorithm import Forward

PERCENTILES = (10, 50, 90)
CPU_BATCH, GPU_BATCH = 256, 4096
GPU_NUMBERS = 1 << 27
"""Numbers of inputs that a GPU tests at a time at most."""


@dataclass(frozen=True)
class Evaluation:
    """How good a model is."""

    loss: float
    """Mean loss over all test samples."""
    metrics: Mapping[str, float]
    """The task's metrics over all test samples, by name."""
    score: float
    """The one that counts."""
    factories: tuple[float, ...]
    """The score of each factory (of the devices it began with); NaN where it has no test sample."""
    percentiles: tuple[float, ...]
    """10th, 50th and 90th percentile of the score over devices."""
    devices: NDArray[np.float64]
    """(devices,) the score of each device; NaN where it has no test sample."""
    confusion: NDArray[np.int64] | None = None
    """(classes, classes) test samples of each class (rows) that were taken for each class; None without classes."""

    @property
    def accuracy(self) -> float:
        """Share of all test samples that are right, where the task has classes."""
        return self.metrics["accuracy"]


class Evaluator:
    """Tests models on all devices; the processes of a run share the samples out among themselves."""

    def __init__(
        self,
        task: BoundTask,
        store: SampleStore,
        group: ProcessGroup | None = None,
        precision: str = "tf32",
        threads: int | None = None,
        weighting: str = "test_size",
        by_device: bool = False,
    ) -> None:
        """``by_device``: every device is tested by itself, for it has weights of its own."""
        self.task, self.store, self.precision = task, store, precision
        self.federation = task.federation
        self.group = group or ProcessGroup()
        self._weighting = weighting
        self._threads = threads or os.cpu_count() or 1
        self._device_of = self.federation.test.rows
        self._by_device = by_device

    def evaluate(self, forward: "Forward") -> Evaluation:
        """Test a model."""
        on_gpu = self.store.device.type == "cuda"
        samples = self.federation.test.flat
        parts = [part for number, part in enumerate(self._parts(on_gpu)) if self.group.mine(number)]
        # Losses and metrics sample by sample: each process fills in its own, so that summing is exact.
        results = torch.zeros(1 + len(self.task.metrics) + self.task.classifies, len(samples))

        def test(part: slice) -> None:
            results[:, part] = self._test(forward, samples[part], self._device_of[part]).cpu()

        if on_gpu:
            with gpu_precision(self.precision):
                for part in parts:
                    test(part)
        else:
            with (
                one_thread_each(),
                ThreadPoolExecutor(self._threads, initializer=torch.set_num_threads, initargs=(1,)) as pool,
            ):
                list(pool.map(test, parts))
        self.group.add_up(results)
        return self._summary(results.double().numpy())

    def _parts(self, on_gpu: bool) -> list[slice]:
        """Return which samples are tested together."""
        if self._by_device:
            offsets = self.federation.test.offsets.tolist()
            return [slice(first, last) for first, last in itertools.pairwise(offsets) if last > first]
        numbers = sum(int(np.prod(array.shape[1:])) for _, array in leaves(self.federation.inputs))
        size = max(1, min(GPU_BATCH, GPU_NUMBERS // max(1, numbers))) if on_gpu else CPU_BATCH
        return [slice(first, first + size) for first in range(0, len(self.federation.test.flat), size)]

    @torch.no_grad()  # a forward pass may ask for gradients of its own
    def _test(self, forward: "Forward", samples: NDArray[np.int64], devices: NDArray[np.int64]) -> Tensor:
        outputs = forward(samples, devices)
        task = self.task
        wants_inputs = task.loss.takes_inputs or any(metric.wants_inputs for metric in task.metrics.values())
        inputs, targets = self.store.batch(samples) if wants_inputs else (None, self.store.targets_of(samples))
        with users_own(f"task.loss {task.loss.name}: fails on test samples"):
            found = [task.loss(outputs, targets, inputs)]
        for name, metric in task.metrics.items():
            with users_own(f"task.metrics {name}: fails on test samples"):
                found.append(metric.values(outputs, targets, inputs).float())
        if task.classifies:
            found.append(predicted_classes(outputs).float())
        return torch.stack(found)

    def _summary(self, results: NDArray[np.float64]) -> Evaluation:
        federation, task = self.federation, self.task
        losses, names = results[0], list(task.metrics)
        targets = take(federation.targets, federation.test.flat)
        pooled = {
            name: self._pooled(name, metric, results[1 + row], targets)
            for row, (name, metric) in enumerate(task.metrics.items())
        }
        metric = task.metrics[task.score] if task.score != "loss" else Metric(lambda outputs, targets: outputs)
        values = losses if task.score == "loss" else results[1 + names.index(task.score)]
        devices = self._grouped(metric, values, targets, self._device_of, len(federation))
        factory_of = federation.factory_of[self._device_of]
        factories = self._grouped(metric, values, targets, factory_of, federation.factories)
        loss = float(losses.mean())
        score = loss if task.score == "loss" else pooled[task.score]
        if self._weighting == "leaf":  # as LEAF's scripts do: a device counts by all its samples, not by those tested
            sizes = federation.test.sizes
            counts = np.where(sizes > 0, sizes + federation.train.sizes, 0)
            per_device = np.bincount(self._device_of, losses, minlength=len(federation)) / np.maximum(sizes, 1)
            loss, score = (
                float(np.average(per_device, weights=counts)),
                float(np.average(np.nan_to_num(devices), weights=counts)),
            )
            pooled = {**pooled, task.score: score} if task.score != "loss" else pooled
        known = devices[np.isfinite(devices)]
        percentiles = np.percentile(known, PERCENTILES) if len(known) else np.full(len(PERCENTILES), np.nan)
        labels, last = federation.labels[federation.test.flat], results[-1]
        return Evaluation(
            loss, pooled, score, tuple(factories.tolist()), tuple(percentiles.tolist()), devices,
            confusion_matrix(labels, last, len(task.classes)) if task.classifies else None,
        )  # fmt: skip

    def _grouped(
        self, metric: Metric, values: NDArray[np.float64], targets: object, group_of: NDArray[np.integer], groups: int
    ) -> NDArray[np.float64]:
        """Return the metric of each group of samples; NaN where it has none."""
        if metric.pool is None:
            sizes = np.bincount(group_of, minlength=groups)
            sums = np.bincount(group_of, values, minlength=groups)
            return np.where(sizes > 0, sums / np.maximum(sizes, 1), np.nan)
        found = np.full(groups, np.nan)
        for group in range(groups):
            rows = np.flatnonzero(group_of == group)
            if len(rows):
                found[group] = self._pooled(self.task.score, metric, values[rows], take(targets, rows))
        return found

    def _pooled(self, name: str, metric: Metric, values: NDArray[np.float64], targets: object) -> float:
        with users_own(f"task.metrics {name}: its pool fails on {len(values)} samples"):
            return metric.pooled(values, targets)
