"""A task brought together with a federation: the network is built, the bins are found, and everything is tried out.

Whatever does not fit (a loss that gives one number for all samples, outputs that do not suit the targets, a bin that
does not exist, a network that is another one at each call) is found here, on two samples, and ends in one line.
"""

import copy
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from fedgs import rng
from fedgs.data import Federation
from fedgs.data.arrays import leaves, map_tree, shapes_of, take
from fedgs.data.dataset import ONE_BIN
from fedgs.errors import ConfigError, DataError
from fedgs.tasks import prepare as preparing
from fedgs.tasks.cnn import MODELS, build_model
from fedgs.tasks.losses import Loss
from fedgs.tasks.metrics import USUAL, Metric, Mode
from fedgs.tasks.signals import SignalAutoEncoder, VibrationNet
from fedgs.tasks.strided import avoid_strided_kernel
from fedgs.tasks.task import PooledAuroc, QuantileBins, Task, column, reconstruction_error, resolve, users_own

BUILT_IN = (*MODELS, "vibration", "autoencoder")
"""The names of the built-in networks."""
RESERVED = (
    "round", "loss", "train_loss", "divergence", "seconds", "simulated_seconds", "events", "factories", "percentiles",
)  # fmt: skip
"""What a line of metrics says already."""


@dataclass(frozen=True, eq=False)
class BoundTask:
    """A task that fits a federation."""

    task: Task
    federation: Federation
    """With the task's bins as labels."""
    module: nn.Module
    """The network with its first weights, on the processor."""
    loss: Loss
    metrics: Mapping[str, Metric]
    score: str
    """The metric that counts, or ``loss``."""
    mode: Mode
    head: str | None = None
    """The name of the last layer in ``module``."""
    features: str | None = None
    """The name of the submodule whose output can be fused."""

    @property
    def classes(self) -> tuple[str, ...]:
        """The names of the bins."""
        return self.federation.classes

    @property
    def built_in(self) -> str | None:
        """The name of a built-in CNN that is used just as it is: it has a stacked form, for many clients at once."""
        task = self.task
        plain = task.loss == "cross_entropy" and task.prepare is None and task.augment is None and not task.keep_local
        inputs = self.federation.inputs
        bytes_of_images = hasattr(inputs, "dtype") and inputs.dtype == np.uint8 and len(inputs.shape) in (3, 4)
        same_bins = self.classifies and list(self.metrics) == ["accuracy"]
        known = isinstance(task.model, str) and task.model in MODELS and type(self.module) is MODELS[task.model]
        return str(task.model) if plain and bytes_of_images and same_bins and known else None

    @property
    def classifies(self) -> bool:
        """Whether the bins are the classes that the network's outputs stand for."""
        return self.task.loss == "cross_entropy" and self.task.balance is None and self.classes != ONE_BIN

    @property
    def reconstructs(self) -> bool:
        """Whether the network draws its inputs again."""
        return self.task.loss is reconstruction_error

    def prepare(self, raw: Any) -> Any:
        """Return the network's inputs of stored ones."""
        return prepare_of(self.task)(raw)

    def better(self, one: float, other: float) -> bool:
        """Tell whether one score is better than another."""
        return one > other if self.mode == "max" else one < other


def prepare_of(task: Task) -> Callable[[Any], Any]:
    """Return what makes network inputs of stored ones."""
    if task.prepare is not None:
        return task.prepare
    images = isinstance(task.model, str) and task.model in ("paper", "compact")
    return preparing.image_prepare if images else preparing.default_prepare


def parts_of(task: Task) -> tuple[str | None, str | None]:
    """Return the names of the last layer and of the part whose output can be fused; None where nobody says."""
    cnn = ("dense2", task.features)
    built_in = {"paper": cnn, "compact": cnn, "linear": ("dense", None), "vibration": ("head", "features")}
    own = (task.head, task.features)
    return built_in.get(task.model, own) if isinstance(task.model, str) else own


def bins_of(task: Task, targets: Any, number: int) -> NDArray[np.int64]:
    """Return the bin of each sample of a batch: its class, or what the task's balance says."""
    balance = resolve(task.balance, "task.balance")
    if balance is not None:
        return _bins(balance, targets, number, "a batch")
    labels = np.asarray(targets)
    if labels.ndim != 1 or labels.dtype.kind not in "iu":
        raise DataError("the source gives targets that are no classes; name the bins with task.balance")
    return labels.astype(np.int64)


def bind(task: Task, federation: Federation, seed: int = 0, normalise: str = "none") -> BoundTask:
    """Bring a task and a federation together.

    ``normalise``: ``per-channel`` puts mean and deviation of the training data in front of the network.
    """
    task, federation = _balanced(task, federation)
    loss = Loss.of(resolve(task.loss, "task.loss"))
    metrics = _metrics(task)
    score = task.score or next(iter(metrics), "loss")
    if score != "loss" and score not in metrics:
        raise ConfigError(f"task.score={score!r} is not among the metrics; there are {', '.join([*metrics, 'loss'])}")
    mode = task.mode or ("min" if score == "loss" else metrics[score].mode)
    if mode not in ("max", "min"):
        raise ConfigError(f"task.mode={mode!r}; it is max or min")
    _check_marks(metrics, federation)
    module = build_module(task, federation, seed)
    head, features = parts_of(task)
    _check_parts(module, head, features)
    bound = BoundTask(task, federation, module, loss, metrics, score, mode, head, features)
    if normalise == "per-channel":
        statistics = preparing.channel_statistics(federation, bound.prepare)
        wrapped = preparing.NormalisedInputs(module, statistics)
        inner = [f"network.{name}" if name else None for name in (head, features)]
        bound = replace(bound, module=wrapped, head=inner[0], features=inner[1])
    elif normalise != "none":
        raise ConfigError(f"data.normalise={normalise!r}; it is none or per-channel")
    try_out(bound)
    return bound


def build_module(task: Task, federation: Federation, seed: int) -> nn.Module:
    """Return the network of a task with the first weights of a run with this seed; on the processor, as float32."""
    model = resolve(task.model, "task.model")
    if isinstance(model, str):
        return _built_in(model, task, federation, seed)
    if isinstance(model, nn.Module):
        if task.options:
            raise ConfigError("task.options are for a model that is called; this one is a module already")
        module = copy.deepcopy(model)
    elif callable(model):
        module = _called(model, task, seed)
        again = _called(model, task, seed)
        _check_same(task, module, again)
    else:
        raise ConfigError(f"task.model={model!r} is neither a module, nor a callable that makes one, nor a name")
    if any(isinstance(weight, nn.parameter.UninitializedParameter) for weight in module.parameters()):
        with seeded(seed), torch.no_grad():  # lazy layers take their shapes from a first batch
            _run(task, module.eval(), _some_samples(task, federation)[0])
    for name, weight in module.named_parameters():
        if weight.dtype != torch.float32:
            kind = str(weight.dtype).removeprefix("torch.")
            raise ConfigError(f"task.model {task.named()}: weight {name!r} is {kind}; call .float() on the network")
    if not any(weight.requires_grad for weight in module.parameters()):
        raise ConfigError(f"task.model {task.named()}: has no weight to train; requires_grad is false for all of them")
    return avoid_strided_kernel(module)


def _called(model: Callable[..., Any], task: Task, seed: int) -> nn.Module:
    with users_own(f"task.model {task.named()}: fails when it is made"), seeded(seed), torch.device("cpu"):
        made = model(**task.options)
    if not isinstance(made, nn.Module):
        raise ConfigError(f"task.model {task.named()}: gives a {type(made).__name__}, not a torch.nn.Module")
    return made


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
    if len(shape) != 2:
        raise ConfigError(f"task.model={name!r} takes signals (channels, length), not inputs of shape {shape}")
    sizes = {"outputs": len(federation.classes)} if name == "vibration" else {"length": shape[1]}
    kind = VibrationNet if name == "vibration" else SignalAutoEncoder
    return _called(kind, replace(task, options={"channels": shape[0], **sizes, **task.options}), seed)


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Set all generators a network may draw its first weights from by the seed, and set them back at the end."""
    key = rng.key(seed, "model")
    before = torch.get_rng_state(), np.random.get_state(), random.getstate()  # noqa: NPY002
    torch.manual_seed(key)
    np.random.seed(key % 2**32)  # noqa: NPY002
    random.seed(key)
    try:
        yield
    finally:
        torch.set_rng_state(before[0])
        np.random.set_state(before[1])  # noqa: NPY002
        random.setstate(before[2])


def _check_same(task: Task, one: nn.Module, other: nn.Module) -> None:
    """Refuse a callable that gives another network each time: no checkpoint and no device would fit."""
    mine, theirs = (dict(module.state_dict()) for module in (one, other))
    lazy = (nn.parameter.UninitializedParameter, nn.parameter.UninitializedBuffer)
    for name in [*mine, *(name for name in theirs if name not in mine)]:
        if name not in mine or name not in theirs:
            problem = f"{name!r} is there at one call and not at the other"
        elif isinstance(mine[name], lazy) or isinstance(theirs[name], lazy):
            continue
        elif mine[name].shape != theirs[name].shape:
            problem = f"{name!r} has shape {tuple(mine[name].shape)}, then {tuple(theirs[name].shape)}"
        elif not torch.equal(mine[name], theirs[name]):
            problem = f"{name!r} has other values although the seed is the same; draw them with torch's generator"
        else:
            continue
        raise ConfigError(f"task.model {task.named()}: gives another network at each call; {problem}")


def _check_parts(module: nn.Module, head: str | None, features: str | None) -> None:
    known = dict(module.named_modules())
    for key, name in (("head", head), ("features", features)):
        if name is not None and name not in known:
            there = ", ".join(repr(one) for one in known if one and "." not in one)
            there = f"there are {there}" if there else "it is a single layer; put it into a torch.nn.Sequential"
            raise ConfigError(f"task.{key}={name!r} is not a part of the network; {there}")


def _balanced(task: Task, federation: Federation) -> tuple[Task, Federation]:
    """Return the task with its bins found, and the federation with these bins as labels."""
    balance = resolve(task.balance, "task.balance")
    names = task.bins if isinstance(task.bins, Sequence) else None
    number = task.bins if isinstance(task.bins, int) else len(names) if names is not None else None
    if balance is None:
        if federation.classes == ONE_BIN and task.loss == "cross_entropy" and not _one_class(federation):
            raise ConfigError(
                f"{federation.name}: its targets are no classes, which cross-entropy needs; use another task.loss, or "
                "targets of one whole number a sample"
            )
        if number is not None and federation.classes != ONE_BIN:
            federation = _with_classes(federation, number, names)
        return task, federation
    targets = federation.targets
    if isinstance(balance, QuantileBins) and balance.edges is None:
        balance = balance.fit([take(targets, federation.train[device]) for device in range(len(federation))])
    if isinstance(balance, QuantileBins):
        names, number = balance.names(), balance.bins
    bins = _bins(balance, targets, number, federation.name, federation)
    if number is None:
        number = int(bins.max()) + 1
    names = tuple(map(str, names)) if names is not None else tuple(f"bin {one}" for one in range(number))
    return replace(task, balance=balance), federation.balanced(bins, names)


def _with_classes(federation: Federation, number: int, names: Sequence[str] | None) -> Federation:
    highest = int(federation.labels.max())
    if highest >= number:
        raise ConfigError(
            f"{federation.name}: targets go up to class {highest}, but the task has {number} classes; they are "
            "numbered from 0"
        )
    known = federation.classes[:number]
    if names is not None:
        wanted = tuple(map(str, names))
        numbers = tuple(map(str, range(len(federation.classes))))
        if federation.classes not in (numbers, wanted[: len(federation.classes)]):
            raise ConfigError(
                f"{federation.name}: its classes are {', '.join(federation.classes)}, the task's {', '.join(wanted)}; "
                "give both the same names in the same order"
            )
        return federation.balanced(federation.labels, wanted)
    return federation.balanced(federation.labels, (*known, *(str(one) for one in range(len(known), number))))


def _bins(
    balance: Callable[[Any], Any], targets: Any, number: int | None, where: str, federation: Federation | None = None
) -> NDArray[np.int64]:
    """Return the bin of each sample, checked."""
    samples = len(next(leaves(targets))[1])
    # Bytes would wrap around below zero in the user's own arithmetic.
    signed = map_tree(
        lambda array: array.astype(np.int64) if array.dtype.kind == "u" else array, map_tree(np.asarray, targets)
    )
    with users_own(f"task.balance: fails on the targets of {where}"):
        found = np.asarray(balance(signed))
    if found.shape != (samples,) or found.dtype.kind not in "iub":
        raise ConfigError(
            f"task.balance: gives {found.dtype} of shape {found.shape} for {samples} samples; one whole number each"
        )
    bins = found.astype(np.int64)
    wrong = (bins < 0) | (bins >= (number if number is not None else np.iinfo(np.int64).max))
    if wrong.any():
        row = int(np.argmax(wrong))
        whose = "" if federation is None else f" (device {federation.client_of(row)!r})"
        bound = f"; there are {number} bins, numbered from 0" if number is not None else "; bins are numbered from 0"
        raise ConfigError(f"task.balance: gives bin {bins[row]} for sample {row}{whose}{bound}")
    return bins


def _one_class(federation: Federation) -> bool:
    targets = federation.targets
    return isinstance(targets, np.ndarray) and targets.dtype.kind in "iu" and targets.ndim == 1


def _metrics(task: Task) -> dict[str, Metric]:
    given = task.metrics
    if given is None:
        given = USUAL.get(task.loss, ()) if isinstance(task.loss, str) else ()
    if isinstance(given, str):
        given = (given,)
    pairs = given.items() if isinstance(given, Mapping) else [(_metric_name(one), one) for one in given]
    found = {str(name): Metric.of(str(name), resolve(one, "task.metrics")) for name, one in pairs}
    for name in found:
        if name in RESERVED:
            raise ConfigError(f"task.metrics: the name {name!r} is taken; call it something else")
    return found


def _check_marks(metrics: Mapping[str, Metric], federation: Federation) -> None:
    """Refuse an AUROC over test samples that are all of one kind: it has no value."""
    tested = take(federation.targets, federation.test.flat)
    for name, metric in metrics.items():
        if isinstance(metric.pool, PooledAuroc) and len(federation.test.flat):
            marks = column(tested, metric.pool.key).astype(bool)
            if marks.all() or not marks.any():
                raise ConfigError(
                    f"task.metrics {name}: {'every' if marks.any() else 'no'} test sample is marked in "
                    f"{metric.pool.key!r}; put both kinds into the test samples, or give anomalous=None"
                )


def _metric_name(given: Any) -> str:
    return str(given).rpartition(":")[2] if isinstance(given, str) else str(getattr(given, "__name__", "metric"))


def sample_inputs(bound: BoundTask, count: int) -> tuple[Any, Any]:
    """Return prepared inputs and targets of a few training samples of the largest device."""
    return _some_samples(bound.task, bound.federation, count)


def _some_samples(task: Task, federation: Federation, count: int = 2) -> tuple[Any, Any]:
    """Return prepared inputs and targets of training samples of one device, as many as it has at most."""
    device = int(np.argmax(federation.train.sizes))
    raw, targets = sample_raw(federation, np.asarray(federation.train[device][:count]))
    with users_own(f"task.prepare: fails on {_shown(raw)}"):
        return prepare_of(task)(raw), targets


def sample_raw(federation: Federation, rows: NDArray[np.integer]) -> tuple[Any, Any]:
    """Return inputs, as they are stored, and targets of samples."""
    try:
        raw = map_tree(preparing.as_tensor, take(federation.inputs, rows))
        return raw, preparing.prepare_targets(map_tree(preparing.as_tensor, take(federation.targets, rows)))
    except TypeError as error:
        raise DataError(f"{federation.name}: inputs and targets must be numbers ({error})") from None


def try_out(bound: BoundTask) -> None:
    """Run network, loss and metrics on two samples, and say in a line what does not fit."""
    task = bound.task
    inputs, targets = _some_samples(task, bound.federation)
    count = len(next(leaves(targets))[1])
    module = copy.deepcopy(bound.module).eval()
    with torch.no_grad():
        outputs = _run(task, module, inputs)
    _check_outputs(bound, outputs, targets)
    tried: list[tuple[str, str, Callable[..., Any]]] = [(f"task.loss {bound.loss.name}", "loss", bound.loss)]
    tried += [(f"task.metrics {name}", "value", metric.values) for name, metric in bound.metrics.items()]
    for what, noun, function in tried:
        takes = f"{what}: cannot take outputs {_shown(outputs)} and targets {_shown(targets)}"
        with users_own(takes), torch.no_grad():
            values = function(outputs, targets, inputs)
        _check_per_sample(what, noun, values, count)


def _run(task: Task, module: nn.Module, inputs: Any) -> Any:
    whole = task.prepare is None and any(value.dtype == torch.int64 for _, value in leaves(inputs))
    hint = "; if it takes floats, give the task prepare=lambda x: x.float()" if whole else ""
    with users_own(f"task.model {task.named()}: fails on inputs {_shown(inputs)}{hint}"):
        return preparing.call(module, inputs)


def _check_outputs(bound: BoundTask, outputs: Any, targets: Any) -> None:
    if bound.task.loss != "cross_entropy" or not isinstance(outputs, Tensor) or outputs.ndim != 2:
        return  # of a map of classes, some places may be left out (-100)
    if not isinstance(targets, Tensor) or targets.is_floating_point() or targets.ndim != 1:
        raise ConfigError(
            f"task.loss cross_entropy: targets are {_shown(targets)}; one class number a sample is needed"
        )
    lowest, highest = int(np.min(bound.federation.targets)), int(np.max(bound.federation.targets))
    if lowest < 0:
        row = int(np.argmin(bound.federation.targets))
        raise ConfigError(
            f"{bound.federation.name}: the target of sample {row} (device {bound.federation.client_of(row)!r}) is "
            f"{lowest}; classes are numbered from 0"
        )
    if highest >= outputs.shape[1]:
        raise ConfigError(
            f"task.model {bound.task.named()}: gives {outputs.shape[1]} outputs, the targets go up to class {highest}; "
            f"give the last layer {highest + 1} outputs"
        )


def _check_per_sample(what: str, noun: str, values: Any, count: int) -> None:
    if isinstance(values, Tensor) and values.ndim == 0:
        raise ConfigError(
            f"{what}: returns a single number; return one {noun} a sample, of shape (batch,), for example with "
            "reduction='none'"
        )
    if not isinstance(values, Tensor) or values.shape != (count,):
        shape = tuple(values.shape) if isinstance(values, Tensor) else type(values).__name__
        raise ConfigError(f"{what}: returns {shape} for {count} samples; one {noun} a sample is needed, ({count},)")


def _shown(tree: Any) -> str:
    """Return shapes and types of tensors, for a message."""

    def one(value: Any) -> str:
        if not isinstance(value, Tensor):
            return type(value).__name__
        return f"{tuple(value.shape)} {str(value.dtype).removeprefix('torch.')}"

    return ", ".join(f"{name + ': ' if name else ''}{one(value)}" for name, value in leaves(tree))
