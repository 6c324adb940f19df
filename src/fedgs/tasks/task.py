"""A task: a network, a loss, what it is judged by, and what selection balances.

    task = fedgs.Task(model=VibrationNet, loss="cross_entropy")
    task = fedgs.classification(VibrationNet, classes=["healthy", "inner race", "outer race"])
    task = fedgs.regression(WearNet, bins=10)
    task = fedgs.reconstruction(AutoEncoder, by="mode")

A task knows nothing of devices. :func:`fedgs.tasks.bind.bind` brings it together with a federation: it builds the
network under the run's seed, finds the bins of all samples, and tries everything out on two samples.
"""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray

from fedgs.config import plain
from fedgs.data.arrays import is_whole
from fedgs.errors import ConfigError, FedgsError, suggestion
from fedgs.imports import is_import_path, load_object, path_of
from fedgs.settings import TaskSettings
from fedgs.tasks.metrics import Metric, Mode, auroc

if TYPE_CHECKING:
    from torch import nn

Balance = Callable[[Any], Any]


@dataclass(frozen=True, eq=False)
class Task:
    """A network, its loss and metrics, and what selection balances.

    Examples:
        >>> import fedgs, torch
        >>> task = fedgs.Task(model=lambda: torch.nn.Linear(4, 3), loss="cross_entropy")
    """

    model: "nn.Module | Callable[..., nn.Module] | str"
    """A module, a callable that makes one (called under the run's seed), a built-in network's name, or
    ``package.module:name`` of one of these."""
    loss: str | Callable[..., Any] = "cross_entropy"
    """A name in ``fedgs.tasks.losses.LOSSES``, or f(outputs, targets) → (B,), one loss per sample."""
    metrics: Mapping[str, Any] | Sequence[str] | None = None
    """By name: f(outputs, targets) → (B,), a :class:`Metric`, or names in ``fedgs.tasks.metrics.METRICS``. None: those
    that go with the loss."""
    score: str | None = None
    """The main metric, or ``loss``; None: the first metric."""
    mode: Mode | None = None
    """``max``: a higher score is better, ``min``: a lower one; None: as the metric says."""
    balance: Balance | None = None
    """f(targets) → (samples,) bins: what selection balances. None: the class."""
    bins: int | Sequence[str] | None = None
    """The number of bins, or their names; None: the bins that occur."""
    prepare: Callable[[Any], Any] | None = None
    """From stored arrays (as tensors) to network inputs. None: uint8 images become float CHW from 0 to 1, floats
    float32, whole numbers int64."""
    augment: Callable[..., Any] | None = None
    """f(inputs, generator) → inputs, in training only; random numbers come from the generator."""
    features: str | None = None
    """The name of the submodule whose output FedFusion fuses."""
    head: str | None = None
    """The name of the last layer, a linear one with one bias per class. CGAU replaces it, class-wise averaging averages
    it row by row, and its input is FedMMD's hidden layer."""
    keep_local: Sequence[str] = ()
    """Patterns of weights and buffers that never leave a device, for example ``*.running_*`` (FedBN)."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """Keyword arguments for a callable ``model``."""
    path: str | None = None
    """``package.module:name`` this task came from; what a deployed device imports."""

    def __post_init__(self) -> None:
        for key in ("bins", "options"):  # numpy's numbers are taken for Python's
            object.__setattr__(self, key, plain(getattr(self, key)))
        if isinstance(self.keep_local, str):
            object.__setattr__(self, "keep_local", (self.keep_local,))
        bins: Any = self.bins
        if not (bins is None or (isinstance(bins, list) and bins) or (is_whole(bins) and bins >= 1)):
            raise ConfigError(f"task.bins={bins!r} is not possible; give a whole number from 1 on, or names")
        if isinstance(bins, list) and len(set(bins)) != len(bins):
            raise ConfigError(f"task.bins={bins!r}: a name is there twice")
        if self.mode not in (None, "max", "min"):
            raise ConfigError(f"task.mode={self.mode!r}; it is max or min")
        for key, kind, wanted in (
            ("options", Mapping, "a dict of keyword arguments of the model"),
            ("head", str | None, "a submodule's name"),
            ("features", str | None, "a submodule's name"),
            ("score", str | None, "the name of a metric"),
            ("keep_local", list | tuple, "a list of patterns"),
        ):
            if not isinstance(getattr(self, key), kind):
                raise ConfigError(f"task.{key}={getattr(self, key)!r}; give {wanted}")
        for pattern in self.keep_local:
            if not isinstance(pattern, str):
                raise ConfigError(f"task.keep_local: {pattern!r} is no pattern of names")
        for key, value in self.options.items():
            try:
                json.dumps(value)
            except (TypeError, ValueError):
                raise ConfigError(
                    f"task.options: {key!r} is a {type(value).__name__}, which settings cannot hold; give numbers, "
                    f"texts, lists or dicts, or a function: model=lambda: Net({key}=…)"
                ) from None

    def named(self) -> str:
        """Return a short name of the network, for messages and tables."""
        if isinstance(self.model, str):
            return self.model
        return str(getattr(self.model, "__name__", type(self.model).__name__))


@contextmanager
def users_own(fails: str) -> Iterator[None]:
    """Make one line of whatever the user's own code raises; too little memory is no fault of it."""
    try:
        yield
    except (FedgsError, MemoryError):
        raise
    except (Exception, SystemExit) as error:
        if lacks_memory(error):
            raise
        first_line = (str(error).splitlines() or [""])[0]
        raise ConfigError(f"{fails} ({type(error).__name__}: {first_line})") from error


def lacks_memory(error: BaseException) -> bool:
    """Tell whether torch had not enough memory; on the processor it has no class of its own for that."""
    said = str(error) if isinstance(error, RuntimeError) else ""
    return isinstance(error, torch.OutOfMemoryError) or "allocate memory" in said or "not enough memory" in said


def check_task(given: Any) -> None:
    """Refuse what is neither a task nor None."""
    if given is not None and not isinstance(given, Task):
        raise ConfigError(
            f"task is a {type(given).__name__}, not a fedgs.Task; make one of the network, for example with "
            "fedgs.classification(model)"
        )


def load_task(path: str, options: Mapping[str, Any] | None = None) -> Task:
    """Return the task that ``package.module:name`` is, or that a function of this name returns."""
    found = load_object(path, "task")
    if not isinstance(found, Task) and callable(found):
        with users_own(f"task={path!r}: fails when it is called"):
            found = found(**(options or {}))
    elif options:
        raise ConfigError(f"task={path!r}: is a Task, not a function, and takes no options")
    if not isinstance(found, Task):
        raise ConfigError(f"task={path!r}: gives a {type(found).__name__}, not a fedgs.Task")
    return replace(found, path=path)


def task_from(given: TaskSettings | str) -> Task:
    """Return the task that a section of settings, or ``package.module:name``, describes."""
    if isinstance(given, str):
        return load_task(given)
    values = given.model_dump()
    values["options"] = dict(given.options)
    values["metrics"] = None if given.metrics is None else tuple(given.metrics)
    values["keep_local"] = tuple(given.keep_local)
    for key in ("prepare", "augment"):
        if values[key] is not None:
            values[key] = load_object(values[key], f"task.{key}")
    return Task(**values)


def classification(model: Any, classes: int | Sequence[str] | None = None, **more: Any) -> Task:
    """Return a task that predicts one of some classes: cross-entropy, accuracy, balanced by class.

    Args:
        model: a network with one output per class.
        classes: the number of classes, or their names; None: those of the federation.
        more: other fields of :class:`Task`.

    Examples:
        >>> import fedgs, torch
        >>> fedgs.classification(lambda: torch.nn.Linear(4, 3), classes=3).loss
        'cross_entropy'
    """
    return _made({"model": model, "loss": "cross_entropy", "metrics": ("accuracy",), "bins": classes}, more)


def _made(usual: dict[str, Any], more: dict[str, Any]) -> Task:
    known = [one.name for one in fields(Task)]
    for key in more:
        if key not in known:
            raise ConfigError(f"a task has no {key!r}; {suggestion(key, known)}")
    return Task(**(usual | more))


def regression(
    model: Any, bins: int = 10, *, by: int | str | None = None, edges: Sequence[float] | None = None, **more: Any
) -> Task:
    """Return a task that predicts numbers: squared error, mean absolute error, balanced by quantiles of the target.

    Args:
        model: a network with outputs in the shape of the targets.
        bins: the number of quantile bins that selection balances.
        by: the column of the target that is binned; None: the first. Targets that are a dict need a ``loss`` of your
            own; then it is a key.
        edges: the inner edges of the bins, if known; None: quantiles of all devices' training targets.
        more: other fields of :class:`Task`.

    Examples:
        >>> import fedgs, torch
        >>> fedgs.regression(lambda: torch.nn.Linear(4, 1), bins=5).bins
        5
    """
    balance = QuantileBins(plain(bins), by, None if edges is None else tuple(plain(edges)))
    return _made({"model": model, "loss": "mse", "metrics": ("mae", "rmse"), "balance": balance, "bins": bins}, more)


def reconstruction(
    model: Any, by: int | str | None = None, *, anomalous: int | str | None = "anomalous", **more: Any
) -> Task:
    """Return a task that reconstructs its inputs, for anomaly detection by the reconstruction error.

    The loss is the mean squared error of a sample, in the units of the prepared inputs. If the targets mark anomalous
    samples, the score is the AUROC of that error over the test samples.

    Args:
        model: an autoencoder; outputs in the shape of the inputs.
        by: the column or key of the targets with the operating mode that selection balances; None: no balancing.
        anomalous: the column or key of the targets that marks anomalous samples; None: they are not marked.
        more: other fields of :class:`Task`.

    Examples:
        >>> import fedgs, torch
        >>> fedgs.reconstruction(lambda: torch.nn.Linear(4, 4), by="mode").score
        'auroc'
    """
    error = Metric(reconstruction_error, "min")
    metrics: dict[str, Metric] = {"error": error}
    if anomalous is not None:
        metrics = {"auroc": replace(error, mode="max", pool=PooledAuroc(anomalous)), "error": error}
    score = next(iter(metrics))
    usual = {"model": model, "loss": reconstruction_error, "metrics": metrics, "score": score, "balance": Column(by)}
    return _made(usual, more)


def reconstruction_error(outputs: Any, targets: Any, inputs: Any) -> Any:
    """Return the mean squared difference of outputs and inputs, one a sample."""
    if outputs.shape != inputs.shape:
        raise ValueError(f"outputs of shape {tuple(outputs.shape)} for inputs of shape {tuple(inputs.shape)}")
    return (outputs - inputs).square().flatten(1).mean(1)


@dataclass(frozen=True)
class PooledAuroc:
    """The AUROC of anomaly scores against the marks in one column of the targets."""

    key: int | str

    def __call__(self, values: NDArray[np.float64], targets: Any) -> float:
        """Return it; NaN where no sample, or every sample, is marked."""
        return auroc(values, column(targets, self.key))


@dataclass(frozen=True)
class Column:
    """Balances by one column (or key) of the targets; None: nothing is balanced."""

    key: int | str | None

    def __call__(self, targets: Any) -> NDArray[np.int64]:
        """Return the bin of each sample."""
        if self.key is None:
            first = next(iter(targets.values())) if isinstance(targets, Mapping) else targets
            return np.zeros(len(first), np.int64)
        found = column(targets, self.key)
        if found.dtype.kind not in "iubf":
            raise ConfigError(
                f"column {self.key!r} of the targets holds text; number its values, for example with "
                "np.unique(values, return_inverse=True)[1]"
            )
        if found.dtype.kind == "f" and (found != np.round(found)).any():
            raise ConfigError(f"column {self.key!r} of the targets holds fractions; make whole numbers of them")
        return found.astype(np.int64)


@dataclass(frozen=True)
class QuantileBins:
    """Balances by quantiles of a number: each bin holds as many training samples of all devices together."""

    bins: int
    key: int | str | None = None
    edges: tuple[float, ...] | None = None
    """Between the bins, one less than there are bins; None: to be found by :meth:`fit`."""

    CELLS = 4096
    """Cells of the histogram every device makes of its own targets."""
    PASSES = 5
    """Histograms at most: an outlier crowds all others into one cell, which is then looked at more closely."""

    def __post_init__(self) -> None:
        if not is_whole(self.bins) or self.bins < 1:
            raise ConfigError(f"bins={self.bins!r} is not possible; give a whole number from 1 on")
        if self.edges is not None and not all(isinstance(one, int | float) and np.isfinite(one) for one in self.edges):
            raise ConfigError(f"edges={list(self.edges)}: give finite numbers")
        if self.edges is not None and (len(self.edges) != self.bins - 1 or list(self.edges) != sorted(self.edges)):
            raise ConfigError(f"edges={list(self.edges)}: {self.bins} bins have {self.bins - 1} inner edges, ascending")

    def fit(self, parts: Sequence[NDArray[Any]]) -> "QuantileBins":
        """Return the bins with edges from each device's targets.

        A device gives its least and greatest target and a histogram between the least and greatest of all, never a
        target itself; so the edges are exact to a four-thousandth of the range. A cell at an edge that holds more
        samples than a bin should is divided in the same way, and counted again.
        """
        columns = [np.asarray(self.values(part), np.float64) for part in parts]
        least, most = min(part.min() for part in columns), max(part.max() for part in columns)
        if least == most:
            return replace(self, edges=tuple([float(least)] * (self.bins - 1)))
        wanted, edges = np.arange(1, self.bins) / self.bins, np.linspace(least, most, self.CELLS + 1)
        for _ in range(self.PASSES):
            counts = np.sum([np.histogram(part, edges)[0] for part in columns], axis=0)
            share = np.cumsum(counts) / np.sum(counts)
            found = np.interp(wanted, share, edges[1:])
            cells = np.unique(np.searchsorted(share, wanted))
            crowded = cells[counts[cells] * self.bins > np.sum(counts)]
            if not len(crowded):
                break
            finer = [np.linspace(edges[cell], edges[cell + 1], self.CELLS + 1) for cell in crowded]
            edges = np.unique(np.concatenate([edges, *finer]))
        return replace(self, edges=tuple(found.tolist()))

    def values(self, targets: Any) -> NDArray[Any]:
        """Return the number of each sample that is binned."""
        if self.key is not None:
            return np.asarray(column(targets, self.key))
        array = np.asarray(next(iter(targets.values())) if isinstance(targets, Mapping) else targets)
        return array.reshape(len(array), -1)[:, 0]

    def __call__(self, targets: Any) -> NDArray[np.int64]:
        """Return the bin of each sample."""
        if self.edges is None:
            raise ConfigError(
                "the edges of quantile bins are not known here; give them: fedgs.regression(…, edges=[…])"
            )
        return np.searchsorted(np.array(self.edges), self.values(targets), side="right").astype(np.int64)

    def names(self) -> tuple[str, ...]:
        """Return what the bins are called: their ranges."""
        edges = [f"{edge:.4g}" for edge in self.edges or ()]
        bounds = list(zip(["", *edges], [*edges, ""], strict=True))
        return tuple(f"{low or '…'} to {high or '…'}{'' if len(set(bounds)) == len(bounds) else f' ({number})'}"
                     for number, (low, high) in enumerate(bounds))  # fmt: skip


def column(targets: Any, key: int | str) -> NDArray[Any]:
    """Return one column of the targets: a key of a dict, a number of a tuple or of a table's columns."""
    try:
        if isinstance(targets, Mapping | tuple | list):
            named: Any = targets
            return np.asarray(named[key])
        array = np.asarray(targets)
        if isinstance(key, int) and array.ndim == 2:
            return np.asarray(array[:, key])
        if isinstance(key, int) and array.ndim == 1 and key == 0:
            return array
    except (KeyError, IndexError):
        pass
    known = ", ".join(map(repr, targets)) if isinstance(targets, Mapping) else "columns by number, without names"
    raise ConfigError(f"the targets have no column {key!r}; there are {known}")


def resolve(given: Any, setting: str) -> Any:
    """Return what a setting names by ``package.module:name``, or the value itself."""
    return load_object(given, setting) if is_import_path(given) else given


def describe(task: Task) -> dict[str, Any]:
    """Return what a file says of a task: names, never code."""
    model = task.model if isinstance(task.model, str) else path_of(task.model)
    loss = task.loss if isinstance(task.loss, str) else path_of(task.loss)
    return {"model": model, "loss": loss, "path": task.path}
