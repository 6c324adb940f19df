"""What kind of task this is, found by trying it on a few samples: which ways of training it are exact.

The step of a team on its union batch equals the mean of its devices' steps only where the loss is a mean of terms of
single samples. Batch normalisation in training, attention across samples and the like break that; so does a buffer that
changes in training. The probe looks at the kinds of layers. Then it takes each part of a step by itself (prepare,
augment, network, loss) and asks whether a sample's result changes when the other samples of its batch do. And where a
loss is no finite number, :func:`explain_loss` looks at the data before the learning rate is blamed.
"""

import copy
import random
from collections.abc import Callable, Mapping
from contextlib import suppress
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
from fedgs.tasks.bind import BoundTask
from fedgs.tasks.build import sample_raw, seeded, shown
from fedgs.tasks.prepare import CHUNK, as_tensor, call, prepare_targets
from fedgs.tasks.task import users_own
from fedgs.training.dropout import without_dropout
from fedgs.training.layout import persistent_buffers
from fedgs.training.precision import one_thread_each

SAMPLES = 4
AUGMENTED = 8
"""Seeds that augment is tried with: some draws of a mixing one leave samples in their place."""
SHAKEN = 0.1
"""How much weights are changed for a second look, as a share of what their layer's outputs usually are."""
READS_VALUES = {
    "item", "tolist", "numpy", "cpu", "__bool__", "__int__", "__float__", "__index__", "__contains__", "nonzero",
    "masked_select", "unique", "unique_consecutive", "equal", "allclose", "argwhere", "bincount",
    "_pack_padded_sequence", "tensor", "new_tensor", "as_tensor", "asarray", "inverse", "linalg_inv", "linalg_solve",
    "linalg_cholesky", "linalg_eigh", "linalg_eig", "linalg_svd", "linalg_lstsq", "linalg_pinv",
}  # fmt: skip
"""What Python, or the shape of a tensor, depends on the values of, what copies numbers from the processor, and what
looks whether a matrix was regular; a captured graph cannot hold it."""
DECIDES = {
    "item", "tolist", "numpy", "bool", "int", "float", "index", "contains", "equal", "allclose"
}  # fmt: skip
"""Those after which Python may go one way or the other, as the whole batch says; a few samples do not show it."""


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
        reads, decides = _reads(task, plain, raw, inputs, targets)
        with users_own(f"task.model {task.task.named()}: network or loss take one batch and fail on another"):
            draws = _draws(task, plain, inputs, targets)
            mixes = _mixes(task, plain, inputs, targets, bool(draws), smallest)
        if "numpy" in draws or "Python" in draws:  # a graph would draw once, when it is captured
            reads = reads or f"its training draws from the generator of {draws[-1]}"
        return Traits(mixes or mixed or decides, bool(draws), reads, smallest)


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
    with users_own(f"task.model {task.task.named()}: cannot train on a batch of one sample"):
        try:
            _outputs(plain, map_tree(lambda value: value[:1], inputs))
        except ValueError as error:
            if count < 2 or "more than 1 value per channel" not in str(error):
                raise
            return 2
    return 1


def _changed_buffer(task: BoundTask, plain: nn.Module, inputs: Any) -> str:
    """Return a buffer that changes in training; "" where none does.

    Refuse a network that puts new tensors in the place of its weights and buffers, which nobody would see.
    """
    tried = copy.deepcopy(plain)
    before, weights = dict(persistent_buffers(tried)), dict(tried.named_parameters())
    values = {name: value.clone() for name, value in before.items()}
    with torch.no_grad():
        call(tried, inputs)
    after, weights_after = dict(persistent_buffers(tried)), dict(tried.named_parameters())
    does = _moved("buffer", before, after, "update it in place, with copy_()", "register it in __init__")
    does = does or _moved(
        "weight", weights, weights_after, "its weights must stay the same tensors",
        "make every layer in __init__, or a lazy one such as nn.LazyLinear if its size is not known",
    )  # fmt: skip
    if does:
        raise ConfigError(f"task.model {task.task.named()}: changes between calls: its forward {does}")
    changed = next((name for name, value in before.items() if not torch.equal(value, values[name])), "")
    if not changed:
        first, second = (_seeded_outputs(tried, inputs) for _ in range(2))
        if not _alike(first, second):
            raise ConfigError(
                f"task.model {task.task.named()}: changes between calls: the same weights and inputs give other "
                "outputs; keep what its forward counts or remembers in a buffer, updated in place"
            )
    return changed


def _moved(kind: str, before: Mapping[str, Tensor], after: Mapping[str, Tensor], replaced: str, added: str) -> str:
    """Return what a forward does to tensors it should leave where they are, and what to do instead; "" for nothing."""
    for name in [*before, *after]:
        if after.get(name) is not before.get(name):
            return f"replaces {kind} {name!r}; {replaced}" if name in before else f"adds {kind} {name!r}; {added}"
    return ""


def _seeded_outputs(module: nn.Module, inputs: Any) -> list[Tensor]:
    with seeded(0), torch.no_grad():
        return [value.clone() for value in _values(call(module, inputs))]


def _draws(task: BoundTask, plain: nn.Module, inputs: Any, targets: Any) -> list[str]:
    """Return whose generators a step draws from."""
    before = _generators()
    if task.task.augment is not None:
        _augmented(task.task.augment, 0, inputs)
    task.loss(_outputs(plain, inputs), targets, inputs)
    return [whose for whose, state in _generators().items() if state != before[whose]]


def _generators() -> dict[str, Any]:
    """Return the states of the generators a user's code may draw from."""
    return {
        "torch": torch.get_rng_state().tolist(),
        "numpy": [np.asarray(part).tolist() for part in np.random.get_state()],  # noqa: NPY002
        "Python": random.getstate(),
    }


def _mixes(task: BoundTask, plain: nn.Module, inputs: Any, targets: Any, draws: bool, smallest: int) -> str:
    """Return what of network and loss makes a sample's loss depend on the other samples; "" where nothing does."""
    changed = _changed_buffer(task, plain, inputs)
    for name, layer in plain.named_modules():
        if isinstance(layer, _BatchNorm) and layer.training:
            return f"layer {name!r} normalises over the batch"
    if changed:
        return f"buffer {changed!r} changes in training"
    found = _mixing(task, task.module, inputs, targets, draws, smallest)
    if not found:
        with suppress(Exception):  # some weights cannot be just anything
            found = _mixing(task, _shaken(task.module), inputs, targets, draws, smallest)
    return found


def _mixing(task: BoundTask, network: nn.Module, inputs: Any, targets: Any, draws: bool, smallest: int) -> str:
    """Return what of a network with these weights, and of the loss, mixes samples; "" where nothing does."""
    count, plain = len(next(leaves(targets))[1]), without_dropout(network)
    part = max(count // 2, smallest)
    tried = [(plain, count), (copy.deepcopy(network).eval(), part)] if draws else [(plain, part)]
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


def _shaken(module: nn.Module) -> nn.Module:
    """Return a copy with other weights: what a gate of zero hides at the start, a few steps will show."""
    found = copy.deepcopy(module)
    with torch.no_grad():
        for weight in found.parameters():
            if weight.requires_grad:
                inputs = weight[0].numel() if weight.ndim and len(weight) else 1
                weight.add_(torch.randn_like(weight), alpha=SHAKEN / max(1, inputs) ** 0.5)
    return found


class _Watch(TorchFunctionMode):
    """Notes the operations that read values, in their order."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = str(getattr(func, "__name__", ""))
        several = name == "__setitem__" and isinstance(args[2], Tensor) and args[2].numel() > 1  # one is filled in
        masks = [one for one in _indices(args) if isinstance(one, Tensor) and one.dtype == torch.bool]
        if masks and (name == "__getitem__" or several):
            self.found.append("an index of True and False")
        alone = name == "where" and len(args) + len(kwargs or ()) == 1
        repeats = name == "repeat_interleave" and any(isinstance(one, Tensor) for one in args[1:])
        if name in READS_VALUES or alone or repeats:
            self.found.append(name.strip("_"))
        return func(*args, **(kwargs or {}))


def _indices(arguments: Any) -> tuple[Any, ...]:
    index = arguments[1] if len(arguments) > 1 else ()
    return index if isinstance(index, tuple) else (index,)


def _reads(task: BoundTask, plain: nn.Module, raw: Any, inputs: Any, targets: Any) -> tuple[str, str]:
    """Return what of a step reads values of tensors, and what of it may decide by them how to go on; "" for nothing."""
    with _Watch() as preparing:
        task.prepare(map_tree(Tensor.clone, raw))
    with _Watch() as augmenting:
        if task.task.augment is not None:
            _augmented(task.task.augment, 0, inputs)
    with _Watch() as watch:
        with users_own(f"task.model {task.task.named()}: fails in training"):
            outputs = call(copy.deepcopy(plain), inputs)
        with users_own(f"task.loss {task.loss.name}: cannot take what the network gives in training, {shown(outputs)}"):
            losses = task.loss(outputs, targets, inputs)
        if not losses.requires_grad:
            raise ConfigError(
                f"task.loss {task.loss.name}: has no gradient, so nothing can be learnt; leave out detach(), no_grad() "
                "and argmax() between the network's weights and the loss"
            )
        (losses * torch.ones_like(losses)).sum().backward()  # type: ignore[no-untyped-call]
    decides = next((f"{what} of the batch ({name}), and may go another way in another one"
                    for what, seen in (("task.prepare reads values", preparing), ("training reads values", watch))
                    for name in seen.found if name in DECIDES), "")  # fmt: skip
    found = [*preparing.found, *augmenting.found, *watch.found]
    return f"its training needs values on the processor ({found[0]})" if found else "", decides


def explain_loss(task: BoundTask, samples: NDArray[np.integer]) -> str:
    """Return which of these samples hold NaN or infinity, stored or prepared, and whose they are; "" where none does.

    Samples are numbered as in the federation.
    """
    federation = task.federation
    for first in range(0, len(samples), CHUNK):
        rows = np.asarray(samples[first : first + CHUNK], dtype=np.int64)
        inputs, targets = take(federation.inputs, rows), take(federation.targets, rows)
        prepared = map_tree(lambda value: value.double().numpy(), task.prepare(map_tree(as_tensor, inputs)))
        wanted = map_tree(Tensor.numpy, prepare_targets(map_tree(as_tensor, targets)))
        makes = "as float32, inputs hold" if task.task.prepare is None else "task.prepare makes"
        for what, tree in (
            ("inputs hold", inputs), ("targets hold", targets), (makes, prepared),
            ("as float32, targets hold", wanted),
        ):  # fmt: skip
            for _, array in leaves(tree):
                place = find_not_finite(array)
                if place is not None:
                    row = int(rows[place])
                    return (
                        f"{what} NaN or infinity: sample {row} of the federation, device {federation.client_of(row)!r}"
                    )
    inputs, targets = sample_raw(federation, np.asarray(samples[:CHUNK], np.int64))
    inputs = task.prepare(inputs)
    if not torch.isfinite(task.loss(_outputs(copy.deepcopy(task.module).eval(), inputs), targets, inputs)).all():
        return "nor is it with the first weights, so mend the network or the loss"
    return ""
