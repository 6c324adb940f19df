"""Metrics and loss of the global model on a held-out set."""

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

from fedgs.data import DataSet, Federation
from fedgs.data.arrays import map_tree, take
from fedgs.data.dataset import ONE_BIN, IndexLists
from fedgs.tasks.bind import BoundTask, bind
from fedgs.tasks.prepare import as_tensor, call, prepare_targets
from fedgs.tasks.task import Task

_BATCH = 512


class HeldOut:
    """Tests weights on all samples of a data set."""

    def __init__(self, data: DataSet, task: Task, seed: int) -> None:
        everything = np.arange(len(data))
        none = IndexLists.of([np.empty(0, np.int64)])
        alone = Federation(
            data.name, data.inputs, data.targets,
            data.labels.astype(np.int32) if data.classes else np.zeros(len(data), np.int32), data.classes or ONE_BIN,
            ("all",), ("here",), np.zeros(1, np.int32), IndexLists.of([everything]), none,
        )  # fmt: skip
        self.task: BoundTask = bind(task, alone, seed)
        self._data = data
        self._module = self.task.module.eval().requires_grad_(False)

    @torch.inference_mode()
    def __call__(self, weights: Mapping[str, Tensor]) -> dict[str, float]:
        """Return the task's metrics and its mean loss."""
        known = {**dict(self._module.named_parameters()), **dict(self._module.named_buffers())}
        for name, value in weights.items():
            known[name].copy_(value)
        task = self.task
        losses: list[Tensor] = []
        values: dict[str, list[Tensor]] = {name: [] for name in task.metrics}
        for first in range(0, len(self._data), _BATCH):
            rows = np.arange(first, min(first + _BATCH, len(self._data)))
            inputs = task.prepare(map_tree(as_tensor, take(self._data.inputs, rows)))
            targets = prepare_targets(map_tree(as_tensor, take(self._data.targets, rows)))
            outputs = call(self._module, inputs)
            losses.append(task.loss(outputs, targets, inputs))
            for name, metric in task.metrics.items():
                values[name].append(metric.values(outputs, targets, inputs))
        pooled = {
            name: metric.pooled(torch.cat(values[name]).double().numpy(), self._data.targets)
            for name, metric in task.metrics.items()
        }
        return {**pooled, "loss": float(torch.cat(losses).double().mean())}
