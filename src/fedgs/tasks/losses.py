"""Losses by name: each gives one number a sample, so that short batches and many clients can share a step.

===================  ==========================================================================
``cross_entropy``    −log softmax(outputs)[target]; outputs (B, classes, …), targets (B, …)
``mse``              (output − target)², the mean over all but the first dimension
``l1``               |output − target|, likewise
``huber``            quadratic up to a difference of 1, linear beyond, likewise
``bce``              binary cross-entropy of logits, likewise
===================  ==========================================================================

A loss of your own is any function f(outputs, targets) → (B,); with a third parameter it is given the inputs too.
"""

from collections.abc import Callable
from dataclasses import dataclass
from inspect import Parameter, signature
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from fedgs.errors import ConfigError
from fedgs.imports import is_import_path, load_object

PerSample = Callable[..., Tensor]


def _flat_mean(losses: Tensor) -> Tensor:
    return losses if losses.ndim == 1 else losses.flatten(1).mean(1)


def _cross_entropy(outputs: Tensor, targets: Tensor) -> Tensor:
    return _flat_mean(functional.cross_entropy(outputs, targets, reduction="none"))


def _alike(outputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """Return both in one shape: a column of one stands for no column; nothing else is broadcast."""
    if outputs.shape == (*targets.shape, 1):
        outputs = outputs.squeeze(-1)
    elif targets.shape == (*outputs.shape, 1):
        targets = targets.squeeze(-1)
    if outputs.shape != targets.shape:
        raise ValueError(f"outputs of shape {tuple(outputs.shape)} for targets of shape {tuple(targets.shape)}")
    return outputs, targets.to(outputs.dtype)


def _elementwise(function: Callable[..., Tensor]) -> PerSample:
    def loss(outputs: Tensor, targets: Tensor) -> Tensor:
        return _flat_mean(function(*_alike(outputs, targets), reduction="none"))

    return loss


LOSSES: dict[str, PerSample] = {
    "cross_entropy": _cross_entropy,
    "mse": _elementwise(functional.mse_loss),
    "l1": _elementwise(functional.l1_loss),
    "huber": _elementwise(functional.huber_loss),
    "bce": _elementwise(functional.binary_cross_entropy_with_logits),
}


@dataclass(frozen=True)
class Loss:
    """A loss of the table, or the user's own."""

    name: str
    function: PerSample
    takes_inputs: bool = False

    @classmethod
    def of(cls, given: str | PerSample) -> "Loss":
        """Return the loss of a name, a function, or ``package.module:name`` of one."""
        if is_import_path(given):
            given = load_object(str(given), "task.loss")
        if isinstance(given, str):
            if given not in LOSSES:
                raise ConfigError(
                    f"task.loss={given!r} is not a loss; there are {', '.join(LOSSES)}, or package.module:name"
                )
            return cls(given, LOSSES[given])
        if not callable(given):
            raise ConfigError(f"task.loss={given!r} is neither a name nor a function of outputs and targets")
        return cls(getattr(given, "__name__", type(given).__name__), given, takes_three(given))

    def __call__(self, outputs: Any, targets: Any, inputs: Any = None) -> Tensor:
        """Return (B,) losses."""
        return self.function(outputs, targets, inputs) if self.takes_inputs else self.function(outputs, targets)

    def mean(self, outputs: Any, targets: Any, inputs: Any = None) -> Tensor:
        """Return the mean over the samples."""
        if self.function is _cross_entropy and outputs.ndim == 2:
            return functional.cross_entropy(outputs, targets)  # one kernel instead of two
        return self(outputs, targets, inputs).mean()


def takes_three(function: Callable[..., Any]) -> bool:
    """Tell whether a function wants the inputs beside outputs and targets."""
    try:
        parameters = signature(function).parameters.values()
    except (TypeError, ValueError):
        return False
    needed = [p for p in parameters if p.kind in (Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD)]
    return sum(parameter.default is Parameter.empty for parameter in needed) >= 3


def predicted_classes(outputs: Tensor) -> Tensor:
    """Return the class of each sample: the largest output, or the sign of a single one."""
    if outputs.ndim == 1 or outputs.shape[1] == 1:
        return (outputs.reshape(len(outputs), -1) > 0).squeeze(-1).to(torch.int64)
    return outputs.argmax(dim=1)
