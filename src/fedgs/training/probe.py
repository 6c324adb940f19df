"""What kind of task this is, found by trying it on a few samples: which ways of training it are exact.

The step of a team on its union batch equals the mean of its devices' steps only where the loss is a mean of terms of
single samples. Batch normalisation in training, attention across samples and the like break that; so does a buffer that
changes in training. The probe looks at the kinds of layers. Then it takes each part of a step by itself (prepare,
augment, network, loss) and asks whether a sample's result changes when the other samples of its batch do. And where a
loss is no finite number, :func:`explain_loss` looks at the data before the learning rate is blamed.
"""

import copy
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.overrides import TorchFunctionMode

from fedgs.data import Federation
from fedgs.data.arrays import find_not_finite, leaves, map_tree, take
from fedgs.errors import ConfigError
from fedgs.tasks.bind import BoundTask, sample_raw, seeded
from fedgs.tasks.prepare import CHUNK, as_tensor, call
from fedgs.tasks.task import users_own
from fedgs.training.dropout import without_dropout
from fedgs.training.layout import persistent_buffers
from fedgs.training.precision import one_thread_each

SAMPLES = 4
AUGMENTED = 8
"""Seeds that augment is tried with: some draws of a mixing one leave samples in their place."""
READS_VALUES = {
    "item", "tolist", "numpy", "cpu", "__bool__", "__int__", "__float__", "__index__", "__contains__", "nonzero",
    "masked_select", "unique", "unique_consecutive", "equal", "allclose",
}  # fmt: skip
"""What Python, or the shape of a tensor, depends on the values of; a captured graph cannot hold it."""


@dataclass(frozen=True)
class Traits:
    """What was found."""

    mixes_samples: str = ""
    """Why samples of a batch are not independent of each other; "" where they are."""
    draws_elsewhere: bool = False
    """Whether training draws random numbers outside dropout layers."""
    reads_values: str = ""
    """What keeps a step from being captured as a graph; "" where nothing does."""
    smallest_batch: int = 1
    """Samples that a training step needs at least."""


def probe(task: BoundTask) -> Traits:
    """Try the step of a task on a few samples, on the processor."""
    raw, targets = sample_raw(task.federation, _various(task.federation))
    count = len(next(leaves(targets))[1])
    plain = without_dropout(task.module)
    with one_thread_each(), seeded(0):  # a few samples are too few to share out among cores
        inputs, mixed = _try_inputs(task, raw, count)
        smallest = _smallest(task, plain, inputs, count)
        reads = _reads(task, plain, inputs, targets)
        draws = _draws(task, plain, inputs, targets)
        mixes = _mixes(task, plain, inputs, targets, draws, smallest)
        return Traits(mixes or mixed, draws, reads, smallest)


def _various(federation: Federation) -> NDArray[np.int64]:
    """Return a few training samples, of as many classes and devices as possible: among equals no mixing shows."""
    flat = federation.train.flat
    some = np.asarray(flat[np.unique(np.linspace(0, len(flat) - 1, 64).astype(np.int64))], np.int64)
    first = np.unique(federation.labels[some], return_index=True)[1]
    return np.concatenate([some[first], np.delete(some, first)])[:SAMPLES]


def _depends(function: Callable[[Any], Any], given: Any, count: int, size: int, seed: int = 0) -> bool | None:
    """Tell whether a sample's result changes with the others of its batch; None: there is not one row a sample.

    The first and the last sample are compared with batches of ``size`` copies of each. What draws random numbers draws
    the same ones where ``size`` is that of the whole batch.
    """

    def results(rows: Any) -> list[Tensor]:
        with seeded(seed):
            return _values(function(map_tree(lambda value: value[rows], given)))

    whole = results(list(range(count)))
    for row in sorted({0, count - 1}):
        copies = results([row] * size)
        for values, length in ((whole, count), (copies, size)):
            if any(not value.ndim or len(value) != length for value in values):
                return None
        if not _alike([value[row] for value in whole], [value[row % size] for value in copies]):
            return True
    return False


def _values(tree: Any) -> list[Tensor]:
    return [value for _, value in leaves(tree)]


def _alike(one: list[Tensor], other: list[Tensor]) -> bool:
    return all(mine.shape == theirs.shape and torch.allclose(mine, theirs, rtol=1e-4, atol=1e-5, equal_nan=True)
               for mine, theirs in zip(one, other, strict=True))  # fmt: skip


def _try_inputs(task: BoundTask, raw: Any, count: int) -> tuple[Any, str]:
    """Return prepared inputs, and what of prepare and augment mixes samples."""
    rows = "must give one row a sample"
    with users_own("task.prepare: fails on a few samples"):
        inputs = task.prepare(map_tree(Tensor.clone, raw))  # it may change what it is given
        with seeded(1):
            again = task.prepare(map_tree(Tensor.clone, raw))
        if not _alike(_values(inputs), _values(again)):
            raise ConfigError("task.prepare: draws random numbers, in tests too; do that in task.augment")
        mixed = _depends(task.prepare, raw, count, max(1, count // 2))
        if mixed is None:
            raise ConfigError(f"task.prepare: {rows}")
        if mixed:
            return inputs, "task.prepare makes a sample's inputs depend on the other samples of the batch"
    augment = task.task.augment
    if augment is None:
        return inputs, ""
    with users_own("task.augment: fails on a few samples"):
        for seed in range(AUGMENTED):
            mixed = _depends(partial(_augmented, augment, seed), inputs, count, count, seed)
            if mixed is None:
                raise ConfigError(f"task.augment: {rows}")
            if mixed:
                why = "makes a sample's inputs depend on the other samples, or draws without its generator"
                return inputs, f"task.augment {why}"
    return inputs, ""


def _augmented(augment: Callable[..., Any], seed: int, inputs: Any) -> Any:
    return augment(inputs, torch.Generator().manual_seed(seed))


def _outputs(module: nn.Module, inputs: Any) -> Any:
    """Return the outputs of some samples; the module's own state stays as it was."""
    with torch.no_grad():
        return call(copy.deepcopy(module), inputs)


def _smallest(task: BoundTask, plain: nn.Module, inputs: Any, count: int) -> int:
    try:
        _outputs(plain, map_tree(lambda value: value[:1], inputs))
    except ValueError as error:
        if count >= 2 and "more than 1 value per channel" in str(error):
            return 2
        raise ConfigError(f"task.model {task.task.named()}: cannot train on a batch of one sample ({error})") from error
    return 1


def _changed_buffer(task: BoundTask, plain: nn.Module, inputs: Any) -> str:
    """Return a buffer that changes in training; "" where none does.

    Refuse a network that puts new tensors in the place of its buffers, which nobody would see.
    """
    tried = copy.deepcopy(plain)
    before = dict(persistent_buffers(tried))
    values = {name: value.clone() for name, value in before.items()}
    with torch.no_grad():
        call(tried, inputs)
    after = dict(persistent_buffers(tried))
    for name in [*before, *after]:
        if after.get(name) is not before.get(name):
            does = f"replaces buffer {name!r}; update it in place, with copy_()"
            does = does if name in before else f"adds buffer {name!r}"
            raise ConfigError(f"task.model {task.task.named()}: changes between calls: its forward {does}")
    return next((name for name, value in before.items() if not torch.equal(value, values[name])), "")


def _draws(task: BoundTask, plain: nn.Module, inputs: Any, targets: Any) -> bool:
    found = []
    for seed in (1, 2):
        with seeded(seed):
            outputs = _outputs(plain, inputs)
            found.append([*_values(outputs), task.loss(outputs, targets, inputs)])
    return not _alike(*found)


def _mixes(task: BoundTask, plain: nn.Module, inputs: Any, targets: Any, draws: bool, smallest: int) -> str:
    """Return what of network and loss makes a sample's loss depend on the other samples; "" where nothing does."""
    for name, layer in plain.named_modules():
        if isinstance(layer, _BatchNorm) and layer.training:
            return f"layer {name!r} normalises over the batch"
    if changed := _changed_buffer(task, plain, inputs):
        return f"buffer {changed!r} changes in training"
    count = len(next(leaves(targets))[1])
    part = max(count // 2, smallest)
    tried = [(plain, count), (copy.deepcopy(task.module).eval(), part)] if draws else [(plain, part)]
    for module, size in tried:  # a smaller batch draws other numbers, so what draws is asked in eval mode
        mixed = _depends(partial(_outputs, module), inputs, count, size)
        if mixed is None:
            return "the network's outputs do not have one row a sample"
        if mixed:
            return "the network's output for a sample depends on the other samples of the batch"
    outputs = _outputs(plain, inputs)
    if not _depends(lambda given: task.loss(*given), (outputs, targets, inputs), count, tried[0][1]):
        return ""
    shapes = [value.shape for tree in (outputs, targets) for value in _values(tree)]
    if len(shapes) == 2 and ((*shapes[0], 1) == shapes[1] or (*shapes[1], 1) == shapes[0]):
        one, other = ("(batch, 1)" if len(shape) > 1 else "(batch,)" for shape in shapes)
        raise ConfigError(
            f"task.loss {task.loss.name}: compares every sample with the targets of all, for the outputs are {one} and "
            f"the targets {other}; give them one shape, for example with outputs.squeeze(-1)"
        )
    return f"task.loss {task.loss.name} gives a sample another loss when the other samples of the batch change"


class _Watch(TorchFunctionMode):
    """Notes the first operation that reads values."""

    def __init__(self) -> None:
        super().__init__()
        self.found = ""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = str(getattr(func, "__name__", ""))
        if name == "__getitem__" and any(isinstance(one, Tensor) and one.dtype == torch.bool for one in _indices(args)):
            self.found = self.found or "an index of True and False"
        if name in READS_VALUES:
            self.found = self.found or name.strip("_")
        return func(*args, **(kwargs or {}))


def _indices(arguments: Any) -> tuple[Any, ...]:
    index = arguments[1] if len(arguments) > 1 else ()
    return index if isinstance(index, tuple) else (index,)


def _reads(task: BoundTask, plain: nn.Module, inputs: Any, targets: Any) -> str:
    with _Watch() as watch:
        losses = task.loss(call(copy.deepcopy(plain), inputs), targets, inputs)
        if not losses.requires_grad:
            raise ConfigError(
                f"task.loss {task.loss.name}: has no gradient, so nothing can be learnt; leave out detach(), no_grad() "
                "and argmax() between the network's weights and the loss"
            )
        (losses * torch.ones_like(losses)).sum().backward()  # type: ignore[no-untyped-call]
    return f"its training reads values of tensors ({watch.found})" if watch.found else ""


def explain_loss(task: BoundTask, samples: NDArray[np.integer]) -> str:
    """Return which of these samples hold NaN or infinity, stored or prepared, and whose they are; "" where none does.

    Samples are numbered as in the federation.
    """
    federation = task.federation
    for first in range(0, len(samples), CHUNK):
        rows = np.asarray(samples[first : first + CHUNK], dtype=np.int64)
        inputs, targets = take(federation.inputs, rows), take(federation.targets, rows)
        prepared = map_tree(lambda value: value.double().numpy(), task.prepare(map_tree(as_tensor, inputs)))
        for what, tree in (("inputs hold", inputs), ("targets hold", targets), ("task.prepare makes", prepared)):
            for _, array in leaves(tree):
                place = find_not_finite(array)
                if place is not None:
                    row = int(rows[place])
                    return (
                        f"{what} NaN or infinity: sample {row} of the federation, device {federation.client_of(row)!r}"
                    )
    return ""
