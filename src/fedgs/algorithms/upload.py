"""What a participant sends to the server, and every way in which it can fail to fit.

Nothing is broadcast, converted or skipped: all uploads of a round have the keys, shapes and dtypes of the server's own
weights, or the round is refused with a line that names the upload, the key and both values. Order of keys and device
may differ; an upload can wait in host memory while the server computes on a GPU.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from numbers import Real

import torch
from torch import Tensor

from fedgs.errors import AlgorithmError

Weights = Mapping[str, Tensor]
"""Parameters and buffers by name: ``model.state_dict()``, or any dict of tensors."""

MOST_SAMPLES = 2**63
"""More samples than this in one upload are taken for a mistake; shares stay exact numbers far below it."""


@dataclass(frozen=True, eq=False)
class Upload:
    """One participant's trained weights (w_k), how many samples it trained on (n_k), and what it measured."""

    weights: Weights
    num_samples: float
    metrics: Mapping[str, float] = field(default_factory=dict)
    """``train_acc``, the training accuracy between 0 and 1, is needed by ``ida+intrac``, ``steps`` by ``fednova``."""


def check_weights(weights: Weights) -> None:
    """Refuse global weights that no rule can average."""
    if not isinstance(weights, Mapping):
        raise AlgorithmError(
            f"weights is a {type(weights).__name__}, not a dict of tensors; give model.state_dict() or a dict"
        )
    if not weights:
        raise AlgorithmError("weights is empty; give at least one tensor")
    for key, tensor in weights.items():
        if not isinstance(tensor, Tensor):
            raise AlgorithmError(f"weights[{key!r}] is a {type(tensor).__name__}, not a tensor")
        if tensor.is_complex() or tensor.is_quantized or tensor.layout != torch.strided:
            kind = "a sparse tensor" if tensor.layout != torch.strided else f"of dtype {_short(tensor.dtype)}"
            raise AlgorithmError(f"weights[{key!r}] is {kind}; rules take dense real and whole numbers only")


def check_uploads(weights: Weights, uploads: Sequence[Upload]) -> None:
    """Refuse a round whose uploads do not all fit the global weights."""
    check_weights(weights)
    if not uploads:
        raise AlgorithmError("no uploads in this round; skip the update, or wait for at least one participant")
    for index, upload in enumerate(uploads):
        if not isinstance(upload, Upload):
            raise AlgorithmError(
                f"uploads[{index}] is a {type(upload).__name__}, not an Upload; "
                "write Upload(weights, num_samples, metrics)"
            )
        _check_tensors(weights, index, upload)
    _check_samples(uploads)


def check_finite(key: str, uploads: Sequence[Upload]) -> None:
    """Name the first upload that holds NaN or infinity under this key, if any does.

    Called once something non-finite has come out: looking at every upload beforehand would cost a pass over all of
    them, while NaN and infinity cannot leave a weighted sum unseen.
    """
    for index, upload in enumerate(uploads):
        bad = first_non_finite(upload.weights[key])
        if bad is not None:
            raise AlgorithmError(
                f"uploads[{index}].weights[{key!r}] holds {bad}; leave this upload out, "
                "or lower the learning rate of its device"
            )


def first_non_finite(tensor: Tensor) -> float | None:
    """Return the first NaN or infinity of a tensor, None where all is finite."""
    if not tensor.is_floating_point():
        return None
    values = tensor.detach()
    if values.dtype.itemsize == 1:  # float8 knows no isfinite of its own
        values = values.float()
    finite = torch.isfinite(values)
    return None if bool(finite.all()) else float(values[~finite][0])


def _check_tensors(weights: Weights, index: int, upload: Upload) -> None:
    if not isinstance(upload.weights, Mapping):
        raise AlgorithmError(f"uploads[{index}].weights is a {type(upload.weights).__name__}, not a dict of tensors")
    for key in upload.weights:
        if key not in weights:
            raise AlgorithmError(
                f"uploads[{index}].weights has {key!r}, which the server's weights do not have; train the same model"
            )
    for key, own in weights.items():
        if key not in upload.weights:
            raise AlgorithmError(f"uploads[{index}].weights lacks {key!r}, which the server's weights have")
        if misfit := _misfit(upload.weights[key], own):
            raise AlgorithmError(f"uploads[{index}].weights[{key!r}] {misfit}")


def _misfit(tensor: Tensor, own: Tensor) -> str:
    """Return why a tensor cannot be averaged with the server's own; "" where it can."""
    if not isinstance(tensor, Tensor):
        return f"is a {type(tensor).__name__}, not a tensor"
    if tensor.shape != own.shape:
        return f"has shape {tuple(tensor.shape)}, the server's weights have {tuple(own.shape)}; train the same model"
    if tensor.dtype != own.dtype:
        return f"is {_short(tensor.dtype)}, the server's weights are {_short(own.dtype)}; convert before uploading"
    return "is a sparse tensor; rules take dense ones only" if tensor.layout != torch.strided else ""


def _check_samples(uploads: Sequence[Upload]) -> None:
    for index, upload in enumerate(uploads):
        samples = upload.num_samples
        if isinstance(samples, bool) or not isinstance(samples, Real):
            raise AlgorithmError(f"uploads[{index}].num_samples is {samples!r}, not a number")
    if all(upload.num_samples == 0 for upload in uploads):
        raise AlgorithmError(
            f"num_samples is 0 in all {len(uploads)} uploads, so nobody has any weight; leave out participants that "
            "trained on nothing"
        )
    for index, upload in enumerate(uploads):
        if not 0 < upload.num_samples <= MOST_SAMPLES:  # NaN fails this too
            raise AlgorithmError(
                f"uploads[{index}].num_samples is {upload.num_samples!r}; it must be above 0 (and at most 2**63): "
                "leave out a participant that trained on nothing"
            )


def _short(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
