"""The network of a task, built under the run's seed to the shapes of a federation, and a few samples to try it on."""

import copy
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from fedgs import rng
from fedgs.data import Federation
from fedgs.data.arrays import leaves, map_tree, shapes_of, take
from fedgs.errors import ConfigError, DataError
from fedgs.tasks import prepare as preparing
from fedgs.tasks.cnn import MODELS, build_model
from fedgs.tasks.photos import PhotoNet
from fedgs.tasks.regularised import RegularisedCNN
from fedgs.tasks.signals import SignalAutoEncoder, VibrationNet
from fedgs.tasks.strided import avoid_strided_kernel
from fedgs.tasks.task import Task, resolve, users_own

BUILT_IN = (*MODELS, "regularised", "photo", "vibration", "autoencoder")
"""The names of the built-in networks."""
LAZY = (nn.UninitializedParameter, nn.UninitializedBuffer)


def prepare_of(task: Task) -> Callable[[Any], Any]:
    """Return what makes network inputs of stored ones."""
    if task.prepare is not None:
        return task.prepare
    images = isinstance(task.model, str) and task.model in ("paper", "compact", "regularised", "photo")
    return preparing.image_prepare if images else preparing.default_prepare


def build_module(task: Task, federation: Federation, seed: int) -> nn.Module:
    """Return the network of a task with the first weights of a run with this seed; on the processor, as float32."""
    model = resolve(task.model, "task.model")
    if isinstance(model, str):
        return _built_in(model, task, federation, seed)
    if isinstance(model, nn.Module):
        if task.options:
            raise ConfigError("task.options are for a model that is called; this one is a module already")
        _check_kind(task, model)
        module = _copied(task, model)
    elif callable(model):
        module = _called(model, task, seed)
        again = _called(model, task, seed)
        _check_same(task, module, again)
        _copied(task, again)  # every thread needs one
    else:
        raise ConfigError(f"task.model={model!r} is neither a module, nor a callable that makes one, nor a name")
    if any(isinstance(value, LAZY) for value in (*module.parameters(), *module.buffers())):
        with seeded(seed), torch.no_grad():  # lazy layers take their shapes from a first batch
            run_network(task, module.eval(), some_samples(task, federation)[0])
    for name, weight in module.named_parameters():
        if weight.dtype != torch.float32:
            kind = str(weight.dtype).removeprefix("torch.")
            raise ConfigError(f"task.model {task.named()}: weight {name!r} is {kind}; call .float() on the network")
    if not any(weight.requires_grad for weight in module.parameters()):
        frozen = any(True for _ in module.parameters())
        why = "requires_grad is false for all of them" if frozen else "it has none; make its layers in __init__"
        raise ConfigError(f"task.model {task.named()}: has no weight to train; {why}")
    return avoid_strided_kernel(module)


def _copied(task: Task, module: nn.Module) -> nn.Module:
    # Torch copies lazy weights, but not the lazy buffers of batch normalisation.
    lazy = {
        id(value): nn.UninitializedBuffer(device=value.device, dtype=value.dtype)  # type: ignore[call-arg]
        for value in module.buffers()
        if isinstance(value, nn.UninitializedBuffer)
    }
    with users_own(f"task.model {task.named()}: cannot be copied"):
        return copy.deepcopy(module, lazy)


def _called(model: Callable[..., Any], task: Task, seed: int) -> nn.Module:
    with users_own(f"task.model {task.named()}: fails when it is made"), seeded(seed), torch.device("cpu"):
        made = model(**task.options)
    if not isinstance(made, nn.Module):
        raise ConfigError(f"task.model {task.named()}: gives a {type(made).__name__}, not a torch.nn.Module")
    _check_kind(task, made)
    return made


def _check_kind(task: Task, module: nn.Module) -> None:
    state = next((name for name, value in module.state_dict().items() if not isinstance(value, Tensor)), None)
    if state is not None:
        raise ConfigError(
            f"task.model {task.named()}: {state!r} is no tensor (get_extra_state) and cannot be exchanged; keep it in "
            "a buffer"
        )
    if any(isinstance(part, torch.jit.ScriptModule) for part in module.modules()):
        raise ConfigError(
            f"task.model {task.named()}: is a TorchScript module, whose weights cannot be exchanged; give the "
            "torch.nn.Module it was made of"
        )
    if any(weight.is_meta for weight in module.parameters()):
        raise ConfigError(
            f"task.model {task.named()}: has weights on the meta device, without values; make it on the CPU"
        )


def _built_in(name: str, task: Task, federation: Federation, seed: int) -> nn.Module:
    if name not in BUILT_IN:
        raise ConfigError(
            f"task.model={name!r} is not a built-in network; there are {', '.join(BUILT_IN)}, or package.module:name"
        )
    shape = shapes_of(federation.inputs)
    if not isinstance(shape, tuple) or (shape and not isinstance(shape[0], int)):
        raise ConfigError(f"task.model={name!r} takes one array of inputs, not several; use a network of your own")
    if name in MODELS:
        if task.options:
            raise ConfigError(f"task.options have no meaning with the built-in network {name!r}; remove them")
        return build_model(name, len(federation.classes), shape, seed)
    if name in ("photo", "regularised"):
        if len(shape) not in (2, 3) or (name == "regularised" and min(shape[:2]) < 4):
            raise ConfigError(
                f"task.model={name!r} takes images (height, width[, channels]), not inputs of shape {shape}"
            )
        given = {"num_classes": len(federation.classes), "image_shape": shape, **task.options}
        return _called(PhotoNet if name == "photo" else RegularisedCNN, replace(task, options=given), seed)
    if len(shape) != 2:
        raise ConfigError(f"task.model={name!r} takes signals (channels, length), not inputs of shape {shape}")
    sizes = {"outputs": len(federation.classes)} if name == "vibration" else {"length": shape[1]}
    kind = VibrationNet if name == "vibration" else SignalAutoEncoder
    return _called(kind, replace(task, options={"channels": shape[0], **sizes, **task.options}), seed)


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Set all generators a network may draw its first weights from by the seed, and set them back at the end."""
    with generators_kept():
        seed_generators(rng.key(seed, "model"))
        yield


def seed_generators(key: int) -> None:
    """Set the generators of torch, numpy and Python, which a user's code may draw from."""
    torch.manual_seed(key)
    np.random.seed(key % 2**32)  # noqa: NPY002
    random.seed(key)


@contextmanager
def generators_kept() -> Iterator[None]:
    """Leave the generators of torch, numpy and Python as they were: whoever sets them sets them back at the end."""
    before = torch.get_rng_state(), np.random.get_state(), random.getstate()  # noqa: NPY002
    try:
        yield
    finally:
        torch.set_rng_state(before[0])
        np.random.set_state(before[1])  # noqa: NPY002
        random.setstate(before[2])


def _check_same(task: Task, one: nn.Module, other: nn.Module) -> None:
    """Refuse a callable that gives another network each time: no checkpoint and no device would fit."""
    mine, theirs = (dict(module.state_dict()) for module in (one, other))
    for name in [*mine, *(name for name in theirs if name not in mine)]:
        if name not in mine or name not in theirs:
            problem = f"{name!r} is there at one call and not at the other"
        elif isinstance(mine[name], LAZY) or isinstance(theirs[name], LAZY):
            continue
        elif mine[name].shape != theirs[name].shape:
            problem = f"{name!r} has shape {tuple(mine[name].shape)}, then {tuple(theirs[name].shape)}"
        elif not torch.equal(mine[name], theirs[name]):
            problem = f"{name!r} has other values although the seed is the same; draw them with torch's generator"
        else:
            continue
        raise ConfigError(f"task.model {task.named()}: gives another network at each call; {problem}")


def run_network(task: Task, module: nn.Module, inputs: Any) -> Any:
    """Return a network's outputs; what its own code raises is said in a line."""
    whole = task.prepare is None and any(value.dtype == torch.int64 for _, value in leaves(inputs))
    hint = "; if it takes floats, give the task prepare=lambda x: x.float()" if whole else ""
    with users_own(f"task.model {task.named()}: fails on inputs {shown(inputs)}{hint}"):
        return preparing.call(module, inputs)


def some_samples(task: Task, federation: Federation, count: int = 2) -> tuple[Any, Any]:
    """Return prepared inputs and targets of training samples of the largest device, as many as it has at most."""
    device = int(np.argmax(federation.train.sizes))
    raw, targets = sample_raw(federation, np.asarray(federation.train[device][:count]))
    with users_own(f"task.prepare: fails on {shown(raw)}"):
        return prepare_of(task)(raw), targets


def sample_raw(federation: Federation, rows: NDArray[np.integer]) -> tuple[Any, Any]:
    """Return inputs, as they are stored, and targets of samples."""
    try:
        raw = map_tree(preparing.as_tensor, take(federation.inputs, rows))
        return raw, preparing.prepare_targets(map_tree(preparing.as_tensor, take(federation.targets, rows)))
    except TypeError as error:
        raise DataError(f"{federation.name}: inputs and targets must be numbers ({error})") from None


def shown(tree: Any) -> str:
    """Return shapes and types of tensors, for a message."""

    def one(value: Any) -> str:
        if not isinstance(value, Tensor):
            return type(value).__name__
        return f"{tuple(value.shape)} {str(value.dtype).removeprefix('torch.')}"

    return ", ".join(f"{name + ': ' if name else ''}{one(value)}" for name, value in leaves(tree))
