"""One SGD step on a device (eq. sgd): weights and a batch in, what the step moved them by and the loss out.

    change = −η ∇L(ω; D) ,    L the mean loss over the batch; of buffers, how far the forward pass moved them

A device imports its task itself, by the name the station tells it, and refuses one whose network is not the station's:
both digests are in the line. ``linear`` is computed with numpy, so that a device that trains it needs no torch; all
other networks take torch, on one thread.
"""

import json
from collections.abc import Iterable, Sequence
from dataclasses import replace
from hashlib import blake2b
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from fedgs.data.arrays import find_not_finite, leaves, map_tree, shapes_of
from fedgs.data.dataset import are_numbers, match_classes
from fedgs.deploy.proto import fedgs_wire_pb2 as pb
from fedgs.deploy.sources import Batch
from fedgs.deploy.tensors import Flat, Shapes
from fedgs.deploy.wire import json_of, task_label
from fedgs.errors import ConfigError, DataError


class Trainer(Protocol):
    """What a device does when it is selected."""

    shapes: Shapes
    """Of what travels."""

    def step(self, weights: Flat, batch: Batch, learning_rate: float) -> tuple[Flat, float]:
        """Return the change of weights and buffers, and the loss before the step."""
        ...

    def bins(self, batch: Batch) -> NDArray[np.int64]:
        """Return the bin of each sample: what is announced of a batch is how many fall into each."""
        ...

    def moments(self, pieces: Iterable[Any]) -> NDArray[np.float64]:
        """Return number, sum and sum of squares of each channel's values; asked of tasks that normalise."""
        ...


def network_digest(
    tensors: Iterable[tuple[str, Sequence[int], str]], bins: int, batch_size: int, frozen: bytes = b""
) -> str:
    """Return a network's digest, 16 hexadecimal digits: its weights, its bins and its batch size.

    Args:
        tensors: name, shape and type of all weights and buffers.
        bins: that selection balances.
        batch_size: samples of a mini-batch.
        frozen: the bytes of weights that are not trained: they never travel, so both ends must have the same.
    """
    digest = blake2b(digest_size=8)
    for name, shape, kind in sorted(tensors):
        digest.update(f"{name} {tuple(shape)} {kind}\n".encode())
    digest.update(f"{bins} {batch_size}\n".encode())
    digest.update(frozen)
    return digest.hexdigest()


def make_trainer(task: pb.Task) -> Trainer:
    """Return the trainer of a task, or refuse one that is another task here than at the station."""
    spec = json_of("spec", task.spec)
    inputs = json_of("inputs", task.inputs)
    linear = isinstance(spec, dict) and spec.get("model") == "linear" and set(spec) <= {"model", "loss"}
    made: Trainer
    linear = linear and spec.get("loss", "cross_entropy") == "cross_entropy" and not task.normalise
    if linear and _one_array(inputs):
        made = LinearTrainer(task.classes, tuple(inputs[0]))
        found = made.digest(task.batch_size)
    else:
        from fedgs.deploy.torch_trainer import TorchTrainer

        made = TorchTrainer(task, spec, inputs)
        found = made.digest
    if task.digest and found != task.digest:
        raise ConfigError(
            f"the task {task_label(task)!r} is another network here (digest {found}) than at the station "
            f"({task.digest}); install the same version of it on both"
        )
    return made


def with_classes_of(task: pb.Task, batch: Batch) -> Batch:
    """Return a batch with its classes numbered as the task does; a class that the task does not know is refused."""
    if are_numbers(batch.classes) or batch.classes == tuple(task.class_names):
        return batch
    if not task.class_names:
        raise DataError(
            f"the classes here have names ({', '.join(batch.classes)}), the task's have none; tell them to the top "
            "server: --classes NAME,NAME,…, or --held-out"
        )
    return replace(batch, targets=match_classes("the source", batch.classes, tuple(task.class_names))[batch.targets])


def check_batch(batch: Batch, task: pb.Task) -> None:
    """Refuse a batch that is not of the task's size or shape, or holds NaN or infinity."""
    described = json_of("inputs", task.inputs)
    if len(batch) != task.batch_size:
        raise DataError(f"the source gives {len(batch)} samples, the task has batches of {task.batch_size}")
    if described is not None:
        mine = json.loads(json.dumps(shapes_of(batch.inputs)))
        theirs = _shapes(described)
        if mine != theirs:
            raise DataError(f"the source gives inputs of shape {mine}, the task has {theirs}")
    for what, tree in (("inputs", batch.inputs), ("targets", batch.targets)):
        for name, array in leaves(map_tree(np.asarray, tree)):
            place = find_not_finite(array)
            if place is not None:
                raise DataError(
                    f"the source gives {what}{f' {name!r}' if name else ''} with NaN or infinity (sample {place} of a "
                    "batch)"
                )


def _one_array(inputs: Any) -> bool:
    return isinstance(inputs, list) and len(inputs) == 2 and isinstance(inputs[1], str)


def _shapes(described: Any) -> Any:
    if isinstance(described, dict):
        return {key: value[0] for key, value in described.items()}
    return described[0] if _one_array(described) else [value[0] for value in described]


class LinearTrainer:
    """Softmax regression: with p the predicted probabilities, ∇W = (p − y)ᵀ x / n and ∇b = Σ (p − y) / n."""

    def __init__(self, classes: int, input_shape: tuple[int, ...]) -> None:
        numbers = int(np.prod(input_shape))
        self._classes = classes
        self.shapes = Shapes((("dense.weight", (classes, numbers)), ("dense.bias", (classes,))))

    def digest(self, batch_size: int) -> str:
        """Return what stands for this network."""
        return network_digest(
            [(name, shape, "float32") for name, shape in self.shapes.tensors], self._classes, batch_size
        )

    def moments(self, pieces: Iterable[Any]) -> NDArray[np.float64]:
        """Return nothing: a task that normalises is trained with torch."""
        raise NotImplementedError

    def bins(self, batch: Batch) -> NDArray[np.int64]:
        """Return the classes."""
        labels = np.asarray(batch.targets)
        if labels.ndim != 1 or labels.dtype.kind not in "iu":
            raise DataError(f"the source gives targets of {labels.dtype}, which are no classes")
        return labels.astype(np.int64)

    def step(self, weights: Flat, batch: Batch, learning_rate: float) -> tuple[Flat, float]:
        """Return the change of the weights and the loss before the step."""
        now = self.shapes.views(weights)
        inputs, labels = batch.inputs, np.asarray(batch.targets, np.int64)
        if inputs.dtype == np.uint8 and inputs.ndim == 4:
            inputs = np.moveaxis(inputs, 3, 1)  # channels first, as networks see them
        numbers = inputs.reshape(len(inputs), -1).astype(np.float32)
        if batch.inputs.dtype == np.uint8:
            numbers /= np.float32(255)
        logits = numbers @ now["dense.weight"].T + now["dense.bias"]
        logits -= logits.max(axis=1, keepdims=True)
        odds = np.exp(logits)
        rows, total = np.arange(len(inputs)), odds.sum(axis=1)
        loss = float(np.mean(np.log(total) - logits[rows, labels]))
        odds /= total[:, None]
        odds[rows, labels] -= 1
        odds *= np.float32(-learning_rate / len(inputs))
        change: NDArray[np.float32] = np.empty(self.shapes.size, np.float32)
        view = self.shapes.views(change)
        np.matmul(odds.T, numbers, out=view["dense.weight"])
        odds.sum(axis=0, out=view["dense.bias"])
        return change, loss
