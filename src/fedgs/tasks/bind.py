"""A task brought together with a federation: the network is built, the bins are found, and everything is tried out.

Whatever does not fit (a loss that gives one number for all samples, outputs that do not suit the targets, a bin that
does not exist, a network that is another one at each call) is found here, on two samples, and ends in one line.
"""

import copy
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from fedgs.data import Federation
from fedgs.data.arrays import leaves, map_tree, take
from fedgs.data.dataset import ONE_BIN, are_numbers, match_classes
from fedgs.data.user_data import MAX_CLASSES
from fedgs.errors import ConfigError, DataError
from fedgs.tasks import prepare as preparing
from fedgs.tasks.build import build_module, prepare_of, run_network, shown, some_samples
from fedgs.tasks.cnn import MODELS
from fedgs.tasks.losses import LOSSES, Loss
from fedgs.tasks.metrics import USUAL, Metric, Mode
from fedgs.tasks.task import PooledAuroc, QuantileBins, Task, column, reconstruction_error, resolve, users_own

RESERVED = (
    "round", "loss", "train_loss", "divergence", "seconds", "simulated_seconds", "events", "factories", "percentiles",
    "class_accuracy", "predicted_classes", "divergence_of_round", "missing_classes", "learning_rate",
    "devices_selected", "selections", "samples", "sat_out", "fedgs", "data", "fingerprint", "baseline", "options",
    "solver", "rounds", "iterations", "devices_per_round", "local_epochs", "score", "target", "one_class_since",
    "selection", "pretraining", "clock", "traffic", "machine", "",
)  # fmt: skip
"""What a line of metrics, or the summary of a run, says already."""
ROWS = 1 << 16
"""Targets that are looked at together: they may be a memory map."""


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
        with users_own("task.prepare: fails on some samples"):
            return prepare_of(self.task)(raw)

    def better(self, one: float, other: float) -> bool:
        """Tell whether one score is better than another."""
        return one > other if self.mode == "max" else one < other


def parts_of(task: Task) -> tuple[str | None, str | None]:
    """Return the names of the last layer and of the part whose output can be fused; None where nobody says."""
    cnn = ("dense2", task.features)
    built_in = {"paper": cnn, "compact": cnn, "linear": ("dense", None), "vibration": ("head", "features"),
                "photo": ("head", "features"), "regularised": ("head", "features")}  # fmt: skip
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
    loss = Loss.of(task.loss)
    metrics = _metrics(task)
    score = task.score or next(iter(metrics), "loss")
    if score != "loss" and score not in metrics:
        raise ConfigError(f"task.score={score!r} is not among the metrics; there are {', '.join([*metrics, 'loss'])}")
    mode = task.mode or ("min" if score == "loss" else metrics[score].mode)
    _check_marks(metrics, federation)
    module = build_module(task, federation, seed)
    head, features = parts_of(task)
    _check_parts(module, head, features)
    bound = BoundTask(task, federation, module, loss, metrics, score, mode, head, features)
    if normalise == "per-channel":
        wrapped = preparing.normalised(module, federation, bound.prepare)
        if wrapped is not module:
            inner = [f"network.{name}" if name else None for name in (head, features)]
            task = replace(task, keep_local=tuple(f"network.{pattern}" for pattern in task.keep_local))
            bound = replace(bound, task=task, module=wrapped, head=inner[0], features=inner[1])
    elif normalise != "none":
        raise ConfigError(f"data.normalise={normalise!r}; it is none or per-channel")
    try_out(bound)
    return bound


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
                f"{federation.name}: its targets are no classes, which cross-entropy needs; use another task.loss, "
                "targets of one whole number a sample, or task.balance, which tells the bin of each sample"
            )
        if number is not None and federation.classes != ONE_BIN:
            federation = _with_classes(federation, number, names)
        return task, federation
    targets = federation.targets
    if isinstance(balance, QuantileBins) and _names_of_classes(federation):
        raise ConfigError(f"{federation.name}: its targets are names ({federation.classes[0]}, …), not numbers")
    if isinstance(balance, QuantileBins) and balance.edges is None:
        balance = balance.fit([take(targets, federation.train[device]) for device in range(len(federation))])
    if isinstance(balance, QuantileBins):
        names, number = balance.names(), balance.bins
    bins = _bins(balance, targets, number, federation.name, federation)
    if number is None:
        number = int(bins.max()) + 1
        if number > MAX_CLASSES:
            raise ConfigError(f"task.balance: gives bin {number - 1}; number them 0, 1, 2, …, at most {MAX_CLASSES}")
    names = tuple(map(str, names)) if names is not None else tuple(f"bin {one}" for one in range(number))
    return replace(task, balance=balance), federation.balanced(bins, names)


def _with_classes(federation: Federation, number: int, names: Sequence[str] | None) -> Federation:
    wanted = None if names is None else tuple(map(str, names))
    if wanted is not None:
        try:
            places = match_classes(federation.name, federation.classes, wanted)
        except DataError as error:
            raise ConfigError(str(error)) from None
        if np.any(places != np.arange(len(places))):  # the task has them in another order
            labels = places[federation.labels].astype(np.int32)
            federation = replace(federation, labels=labels, targets=places[federation.targets])
    highest = int(federation.labels.max())
    if highest >= number:
        raise ConfigError(
            f"{federation.name}: targets go up to class {highest}, but the task has {number} classes; they are "
            "numbered from 0"
        )
    if wanted is not None:
        return federation.balanced(federation.labels, wanted)
    known = federation.classes[:number]
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


def _names_of_classes(federation: Federation) -> bool:
    return _one_class(federation) and federation.classes != ONE_BIN and not are_numbers(federation.classes)


def _one_class(federation: Federation) -> bool:
    targets = federation.targets
    return isinstance(targets, np.ndarray) and targets.dtype.kind in "iu" and targets.ndim == 1


def _metrics(task: Task) -> dict[str, Metric]:
    given = task.metrics
    if given is None:
        given = USUAL.get(task.loss, ()) if isinstance(task.loss, str) else ()
    if isinstance(given, str | Metric) or callable(given):
        given = (given,)
    if not isinstance(given, Iterable):
        raise ConfigError(f"task.metrics={given!r}; give names, or a dict from name to function")
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
            try:
                marks = column(tested, metric.pool.key).astype(bool)
            except ConfigError as error:
                raise ConfigError(
                    f"task.metrics {name}: {error}; mark the anomalous samples, or give anomalous=None"
                ) from None
            if marks.all() or not marks.any():
                raise ConfigError(
                    f"task.metrics {name}: {'every' if marks.any() else 'no'} test sample is marked in "
                    f"{metric.pool.key!r}; put both kinds into the test samples, or give anomalous=None"
                )


def _metric_name(given: Any) -> str:
    return str(given).rpartition(":")[2] if isinstance(given, str) else str(getattr(given, "__name__", "metric"))


def some_outputs(bound: BoundTask) -> tuple[Any, Any, Any]:
    """Return inputs and targets of two samples, and the network's outputs for them."""
    inputs, targets = some_samples(bound.task, bound.federation)
    with torch.no_grad():
        return inputs, targets, run_network(bound.task, copy.deepcopy(bound.module).eval(), inputs)


def try_out(bound: BoundTask) -> None:
    """Run network, loss and metrics on two samples, and say in a line what does not fit."""
    inputs, targets, outputs = some_outputs(bound)
    count = len(next(leaves(targets))[1])
    _check_outputs(bound, outputs, targets)
    tried: list[tuple[str, str, Callable[..., Any]]] = [(f"task.loss {bound.loss.name}", "loss", bound.loss)]
    tried += [(f"task.metrics {name}", "value", metric.values) for name, metric in bound.metrics.items()]
    for what, noun, function in tried:
        takes = f"{what}: cannot take outputs {shown(outputs)} and targets {shown(targets)}"
        with users_own(takes), torch.no_grad():
            values = function(outputs, targets, inputs)
        _check_per_sample(what, noun, values, count)


def _check_outputs(bound: BoundTask, outputs: Any, targets: Any) -> None:
    if bound.task.loss in LOSSES and not isinstance(targets, Tensor):
        raise ConfigError(
            f"task.loss {bound.task.loss}: needs one array of targets, these are {shown(targets)}; give one of "
            "them, or a loss of your own"
        )
    if bound.task.loss == "bce":
        _check_shares(bound.federation)
    if bound.task.loss != "cross_entropy" or not isinstance(outputs, Tensor) or outputs.ndim != 2:
        return  # of a map of classes, some places may be left out (-100)
    if not isinstance(targets, Tensor) or targets.is_floating_point() or targets.ndim != 1:
        raise ConfigError(f"task.loss cross_entropy: targets are {shown(targets)}; one class number a sample is needed")
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


def _check_shares(federation: Federation) -> None:
    """Refuse targets that binary cross-entropy would take, and that are no probabilities."""
    for _, array in leaves(federation.targets):
        for first in range(0, len(array), ROWS):
            part = np.asarray(array[first : first + ROWS]).reshape(min(ROWS, len(array) - first), -1)
            wrong = ((part < 0) | (part > 1)).any(axis=1)
            if wrong.any():
                row = first + int(np.argmax(wrong))
                raise ConfigError(
                    f"task.loss bce: the target of sample {row} (device {federation.client_of(row)!r}) is not between "
                    "0 and 1; for several classes use cross_entropy"
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
