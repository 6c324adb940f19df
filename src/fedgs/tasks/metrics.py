"""What a model is judged by: one number a sample, pooled over samples, devices or factories.

A metric of your own is any function f(outputs, targets) → (B,), with a third parameter the inputs too; its pooled value
is the mean. :class:`Metric` says more: whether less is better, and another way to pool (AUROC, root of a mean).
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from fedgs.errors import ConfigError
from fedgs.tasks.losses import LOSSES, predicted_classes, takes_three

MOST_CLASSES = 100
"""Classes whose accuracies a line of metrics lists."""
Mode = Literal["max", "min"]
Pool = Callable[[NDArray[np.float64], Any], float]


@dataclass(frozen=True)
class Metric:
    """A metric: one number per sample, and how to pool these numbers.

    Examples:
        >>> import fedgs, torch
        >>> error = fedgs.Metric(lambda outputs, targets: (outputs - targets).abs().flatten(1).mean(1), mode="min")
        >>> task = fedgs.Task(lambda: torch.nn.Linear(4, 1), loss="mse", metrics={"error": error})
        >>> task.metrics["error"].mode
        'min'
    """

    per_sample: Callable[..., Tensor]
    """f(outputs, targets[, inputs]) → (B,)."""
    mode: Mode = "max"
    """``max``: higher is better; ``min``: lower is better."""
    pool: Pool | None = None
    """f(values, targets of some samples) → one number; None: the mean. NaN if it is not defined."""

    def __post_init__(self) -> None:
        if self.mode not in ("max", "min"):
            raise ConfigError(f"Metric: mode={self.mode!r}; it is max or min")

    @classmethod
    def of(cls, name: str, given: Any) -> "Metric":
        """Return the metric for a name, a function or a metric."""
        if isinstance(given, Metric):
            return given
        if isinstance(given, str):
            if given not in METRICS:
                raise ConfigError(
                    f"task.metrics: {given!r} is not a metric; there are {', '.join(METRICS)}, or package.module:name"
                )
            return METRICS[given]
        if not callable(given):
            raise ConfigError(f"task.metrics: {name!r} is neither a name nor a function of outputs and targets")
        return cls(given)

    @property
    def wants_inputs(self) -> bool:
        """Whether the function also takes the inputs."""
        return takes_three(self.per_sample)

    def values(self, outputs: Any, targets: Any, inputs: Any) -> Tensor:
        """Return the value of each sample, (B,)."""
        return self.per_sample(outputs, targets, inputs) if self.wants_inputs else self.per_sample(outputs, targets)

    def pooled(self, values: NDArray[np.float64], targets: Any) -> float:
        """Return one pooled number for these samples."""
        if not len(values):
            return float("nan")
        if self.pool is None:
            return float(values.mean())
        found = self.pool(values, targets)
        if np.ndim(found) or found is None:
            raise ConfigError(f"Metric: its pool gives {type(found).__name__} for {len(values)} samples; one number")
        return float(found)


def accuracy(outputs: Tensor, targets: Tensor) -> Tensor:
    """Return 1 for each sample whose class is the right one, else 0; of several yes-or-no labels the right share."""
    if outputs.shape == targets.shape:
        return ((outputs > 0) == (targets > 0.5)).float().reshape(len(outputs), -1).mean(1)
    right = predicted_classes(outputs) == targets.reshape(targets.shape[: max(1, outputs.ndim - 1)])
    return right.float() if right.ndim == 1 else right.float().flatten(1).mean(1)


def root_mean(values: NDArray[np.float64], targets: Any) -> float:
    """Return the root of the mean: of squared errors, the RMSE."""
    return float(np.sqrt(values.mean()))


def auroc(scores: NDArray[np.float64], positive: NDArray[Any]) -> float:
    """Return the area under the receiver operating characteristic; NaN unless both kinds occur.

    It is the chance that a positive sample has a higher score than a negative one, ties counting half (Hanley and
    McNeil, 1982): with R the sum of the ranks of the P positive ones among all, (R − P(P + 1)/2) / (P·N).
    """
    marked = np.asarray(positive).astype(bool).reshape(len(scores))
    number = int(marked.sum())
    others = len(scores) - number
    if not number or not others:
        return float("nan")
    _, place, ties = np.unique(scores, return_inverse=True, return_counts=True)
    ranks = (np.cumsum(ties) - (ties - 1) / 2)[place]  # the mean rank of equal scores
    return float((ranks[marked].sum() - number * (number + 1) / 2) / (number * others))


def confusion_matrix(labels: NDArray[Any], predicted: NDArray[Any], classes: int) -> NDArray[np.int64]:
    """Return how many samples of each class (rows) were taken for each class (columns)."""
    width = max(classes, int(predicted.max(initial=0)) + 1)  # a network may have more outputs than there are classes
    cells = labels.astype(np.int64) * width + predicted.astype(np.int64)
    return np.bincount(cells, minlength=classes * width).reshape(classes, width)


def class_metrics(confusion: NDArray[np.int64]) -> dict[str, Any]:
    """Return what a confusion matrix says in a line of metrics.

    ``balanced_accuracy`` is the mean of the accuracies of all classes that have samples: a model that always says the
    same class has 1/classes, however frequent that class is. Of more than :data:`MOST_CLASSES` classes
    ``class_accuracy`` is left out.
    """
    sizes = confusion.sum(1)
    right = np.diag(confusion) / np.maximum(sizes, 1)
    each = [round(float(share), 4) if size else None for share, size in zip(right, sizes, strict=True)]
    return {
        "balanced_accuracy": float(right[sizes > 0].mean()),
        **({"class_accuracy": each} if len(each) <= MOST_CLASSES else {}),
        "predicted_classes": int((confusion.sum(0) > 0).sum()),
    }


METRICS: dict[str, Metric] = {
    "accuracy": Metric(accuracy),
    "mae": Metric(LOSSES["l1"], "min"),
    "mse": Metric(LOSSES["mse"], "min"),
    "rmse": Metric(LOSSES["mse"], "min", root_mean),
}
USUAL = {
    "cross_entropy": ("accuracy",),
    "bce": ("accuracy",),
    "mse": ("mae", "rmse"),
    "l1": ("mae", "rmse"),
    "huber": ("mae", "rmse"),
}
"""The metrics of a task that names none, by its loss; with a loss of one's own the loss itself is the score."""
