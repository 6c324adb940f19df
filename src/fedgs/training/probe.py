"""What kind of network this is, found by trying it on a few samples: which ways of training it are exact.

The step of a team on its union batch equals the mean of its devices' steps only where the loss is a mean of terms of
single samples. Batch normalisation in training, attention across samples and the like break that; so does a buffer that
changes in training. The probe looks at the kinds of layers, and compares the outputs of a batch with those of its
halves.
"""

import copy
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.overrides import TorchFunctionMode

from fedgs.data.arrays import leaves, map_tree
from fedgs.errors import ConfigError
from fedgs.tasks.bind import BoundTask
from fedgs.tasks.prepare import call
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


def probe(task: BoundTask, inputs: Any, targets: Any) -> Traits:
    """Try the network of a task on a few prepared samples, on the processor."""
    count = len(next(leaves(targets))[1])
    plain = without_dropout(task.module)
    with one_thread_each(), generator_kept():  # a few samples are too few to share out among cores
        _check_buffers(task, plain, inputs)
        draws = _draws(plain, inputs)
        return Traits(
            _mixes(task.module, plain, inputs, count, draws),
            draws,
            _reads(task, plain, inputs, targets),
            _smallest(task, plain, inputs, count),
        )


def _outputs(module: nn.Module, inputs: Any, rows: slice = slice(None)) -> list[Tensor]:
    """Return the outputs of some samples; the module's own state stays as it was."""
    with torch.no_grad():
        found = call(copy.deepcopy(module), map_tree(lambda value: value[rows], inputs))
    return [value for _, value in leaves(found)]


def _alike(one: list[Tensor], other: list[Tensor]) -> bool:
    return all(mine.shape == theirs.shape and torch.allclose(mine, theirs, rtol=1e-4, atol=1e-5)
               for mine, theirs in zip(one, other, strict=True))  # fmt: skip


def _draws(plain: nn.Module, inputs: Any) -> bool:
    found = []
    for seed in (1, 2):
        torch.manual_seed(seed)
        found.append(_try(plain, inputs))
    return not _alike(*found)


def _try(plain: nn.Module, inputs: Any) -> list[Tensor]:
    try:
        return _outputs(plain, inputs)
    except ValueError:  # batch normalisation of a single sample
        return []


def _mixes(module: nn.Module, plain: nn.Module, inputs: Any, count: int, draws: bool) -> str:
    for name, layer in plain.named_modules():
        if isinstance(layer, _BatchNorm) and layer.training:
            return f"layer {name!r} normalises over the batch"
    changed = copy.deepcopy(plain)
    with torch.no_grad():
        call(changed, inputs)
    before = dict(persistent_buffers(plain))
    for name, value in persistent_buffers(changed):
        if not torch.equal(value, before[name]):
            return f"buffer {name!r} changes in training"
    if count < 2:
        return ""
    tried = copy.deepcopy(module).eval() if draws else plain
    whole, half = _outputs(tried, inputs), count // 2
    parts = [_outputs(tried, inputs, rows) for rows in (slice(0, half), slice(half, None))]
    try:
        joined = [torch.cat(pieces) for pieces in zip(*parts, strict=True)]
    except RuntimeError:
        return "its outputs do not have one row a sample"
    return "" if _alike(whole, joined) else "its output for a sample depends on the other samples of the batch"


def _check_buffers(task: BoundTask, plain: nn.Module, inputs: Any) -> None:
    """Refuse a network that puts new tensors in the place of its buffers, which nobody would see."""
    tried = copy.deepcopy(plain)
    before = {name: id(value) for name, value in persistent_buffers(tried)}
    held = dict(persistent_buffers(tried))  # alive, so that no new tensor gets the number of an old one
    try:
        with torch.no_grad():
            call(tried, inputs)
    except ValueError:
        return
    after = dict(persistent_buffers(tried))
    for name, number in before.items():
        if name not in after or id(after[name]) != number:
            raise ConfigError(
                f"task.model {task.task.named()}: changes between calls: its forward replaces buffer {name!r}; "
                "update it in place, with copy_()"
            )
    if len(after) != len(held):
        new = next(name for name in after if name not in held)
        raise ConfigError(f"task.model {task.task.named()}: changes between calls: its forward adds buffer {new!r}")


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
    tried = copy.deepcopy(plain)
    watch = _Watch()
    try:
        with watch:
            losses = task.loss(call(tried, inputs), targets, inputs)
            (losses * torch.ones_like(losses)).sum().backward()  # type: ignore[no-untyped-call]
    except ValueError:
        return ""
    return f"its training reads values of tensors ({watch.found})" if watch.found else ""


def _smallest(task: BoundTask, plain: nn.Module, inputs: Any, count: int) -> int:
    try:
        _outputs(plain, inputs, slice(0, 1))
    except ValueError as error:
        if count >= 2 and "more than 1 value per channel" in str(error):
            return 2
        raise ConfigError(f"task.model {task.task.named()}: cannot train on a batch of one sample ({error})") from error
    return 1
