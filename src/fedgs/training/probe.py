"""What kind of network this is, found by trying it on a few samples: which ways of training it are exact.

The step of a team on its union batch equals the mean of its devices' steps only where the loss is a mean of terms of
single samples. Batch normalisation in training, attention across samples and the like break that; so does a buffer that
changes in training. The probe looks at the kinds of layers, and compares the outputs of a batch with those of its
halves. And where a loss is no finite number, :func:`explain_loss` looks at the data before the learning rate is blamed.
"""

import copy
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.overrides import TorchFunctionMode

from fedgs.data.arrays import find_not_finite, leaves, map_tree, take
from fedgs.errors import ConfigError
from fedgs.tasks.bind import BoundTask, sample_inputs
from fedgs.tasks.prepare import CHUNK, as_tensor, call
from fedgs.training.dropout import generator_kept, without_dropout
from fedgs.training.layout import persistent_buffers
from fedgs.training.precision import one_thread_each

SAMPLES = 4
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
    """Try the network of a task on a few prepared samples, on the processor."""
    inputs, targets = sample_inputs(task, SAMPLES)
    plain = without_dropout(task.module)
    with one_thread_each(), generator_kept():  # a few samples are too few to share out among cores
        smallest = _smallest(task, plain, inputs, len(next(leaves(targets))[1]))
        changed = _changed_buffer(task, plain, inputs)
        draws = _draws(plain, inputs)
        mixes = _mixes(copy.deepcopy(task.module).eval() if draws else plain, plain, inputs, changed)
        return Traits(mixes, draws, _reads(task, plain, inputs, targets), smallest)


def _outputs(module: nn.Module, inputs: Any, rows: slice = slice(None)) -> list[Tensor]:
    """Return the outputs of some samples; the module's own state stays as it was."""
    with torch.no_grad():
        found = call(copy.deepcopy(module), map_tree(lambda value: value[rows], inputs))
    return [value for _, value in leaves(found)]


def _alike(one: list[Tensor], other: list[Tensor]) -> bool:
    return all(mine.shape == theirs.shape and torch.allclose(mine, theirs, rtol=1e-4, atol=1e-5)
               for mine, theirs in zip(one, other, strict=True))  # fmt: skip


def _smallest(task: BoundTask, plain: nn.Module, inputs: Any, count: int) -> int:
    try:
        _outputs(plain, inputs, slice(0, 1))
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


def _draws(plain: nn.Module, inputs: Any) -> bool:
    found = []
    for seed in (1, 2):
        torch.manual_seed(seed)
        found.append(_outputs(plain, inputs))
    return not _alike(*found)


def _mixes(tried: nn.Module, plain: nn.Module, inputs: Any, changed: str) -> str:
    for name, layer in plain.named_modules():
        if isinstance(layer, _BatchNorm) and layer.training:
            return f"layer {name!r} normalises over the batch"
    if changed:
        return f"buffer {changed!r} changes in training"
    half = len(next(leaves(inputs))[1]) // 2
    if not half:
        return ""
    whole = _outputs(tried, inputs)
    parts = [_outputs(tried, inputs, rows) for rows in (slice(0, half), slice(half, None))]
    try:
        joined = [torch.cat(pieces) for pieces in zip(*parts, strict=True)]
    except RuntimeError:
        return "its outputs do not have one row a sample"
    return "" if _alike(whole, joined) else "its output for a sample depends on the other samples of the batch"


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
