"""The arithmetic all rules share: weighted means and distances, in float64, in the order of the uploads.

A mean is taken as Σ c_k w_k = w_1 + Σ_k c_k (w_k − w_1), which is the same number for shares that sum to 1, gives back
identical uploads bit for bit, and loses nothing to cancellation when uploads differ little.

Only one tensor is in the making at a time, on the CPU only a few rows of it, so that a round needs far less room than
one more upload, however many there are. On a GPU the uploads that lie there are taken in one pass
(:mod:`fedgs.algorithms.mean_kernels`). Every element goes through the same single roundings wherever it stands (no
fused multiply-add), so a mean does not depend on the number of threads, and is the same on CPU and GPU.

Whole-number tensors (counters such as BatchNorm's ``num_batches_tracked``, masks) are averaged with the same shares and
rounded to the nearest, halves upwards; they take no part in distances, momenta or server learning rates.
"""

from collections.abc import Callable, Iterator, Sequence
from math import fsum
from types import EllipsisType, ModuleType
from typing import Literal

import torch
from torch import Tensor

from fedgs.algorithms.upload import Upload, Weights, check_finite, first_non_finite
from fedgs.errors import AlgorithmError

Weighting = Literal["samples", "uniform"]
Norm = Literal["l1", "l2"]
Step = Callable[[str, Tensor, Tensor], Tensor]
"""From a key, the old weight and the mean of the uploads, both float64, to the new weight."""

PIECE = 32_000
"""Elements handled at once on the CPU: they stay in its cache, and torch sums fewer than 32 768 in one thread."""


def sample_shares(uploads: Sequence[Upload], weighting: Weighting) -> list[float]:
    """Return p_k = n_k / Σ n over the participants, or 1/|S| each."""
    if weighting == "uniform":
        return [1 / len(uploads)] * len(uploads)
    return normalised([float(upload.num_samples) for upload in uploads])


def normalised(values: Sequence[float]) -> list[float]:
    """Return values divided by their sum, which does not depend on their order."""
    total = fsum(values)
    return [value / total for value in values]


def average(
    weights: Weights, uploads: Sequence[Upload], shares: Sequence[float], step: Step | None = None
) -> dict[str, Tensor]:
    """Return Σ c_k w_k of all tensors, or where a rule's ``step`` goes instead, each in its own dtype."""

    def one(key: str, own: Tensor) -> Tensor:
        value = weighted_mean(key, own, uploads, shares)
        if step is not None and own.is_floating_point():
            value = step(key, own.detach().to(torch.float64), value)
        cast = value.to(own.dtype)
        bad = first_non_finite(cast)
        if bad is not None:
            check_finite(key, uploads)
            explain_non_finite(key, bad, own)
        return cast

    return {key: one(key, own) for key, own in weights.items()}


def weighted_mean(key: str, own: Tensor, uploads: Sequence[Upload], shares: Sequence[float]) -> Tensor:
    """Return Σ c_k w_k of one tensor on the device of ``own``: float64, or int64 where it holds whole numbers."""
    kernels, tensors = _kernels(own, key, uploads)
    if kernels is not None:
        mean: Tensor = kernels.weighted_mean(own, tensors, shares)
        return mean
    exact = torch.float64 if own.is_floating_point() else torch.int64
    mean = torch.empty(own.shape, dtype=exact, device=own.device)
    for where in _pieces(own):
        first = _piece(uploads[0], key, where, own.device, exact)
        rest = torch.zeros(first.shape, dtype=torch.float64, device=own.device)
        for upload, share in zip(uploads[1:], shares[1:], strict=True):
            difference = _piece(upload, key, where, own.device, exact) - first
            rest += difference.to(torch.float64) * share  # int64 × share would be float32
        if exact == torch.int64:
            rest = torch.floor(rest + 0.5).to(torch.int64)
        torch.add(first, rest, out=mean[where])
    return mean


def distances_to(reference: Tensor, key: str, uploads: Sequence[Upload], norm: Norm) -> list[float]:
    """Return Σ |w_k − reference|, or Σ (w_k − reference)², of one tensor for each upload."""
    kernels, tensors = _kernels(uploads[0].weights[key], key, uploads)
    if kernels is not None and tensors[0].device == reference.device and tensors[0].stride() == reference.stride():
        on_gpu: list[float] = kernels.distances_to(reference, tensors[0], tensors, norm == "l2")
        return on_gpu
    sums = torch.zeros(len(uploads), dtype=torch.float64, device=reference.device)
    for where in _pieces(reference):
        for index, upload in enumerate(uploads):
            difference = _piece(upload, key, where, reference.device, torch.float64) - reference[where]
            sums[index] += _total(difference.abs_() if norm == "l1" else difference.square_())
    found: list[float] = sums.tolist()
    return found


def explain_non_finite(key: str, bad: float, own: Tensor) -> None:
    """Raise the error for a result that is not finite although all uploads are."""
    held = first_non_finite(own)
    if held is not None:
        raise AlgorithmError(f"weights[{key!r}] of the server holds {held}; go back to the last good weights")
    dtype = str(own.dtype).removeprefix("torch.")
    raise AlgorithmError(
        f"the new weights[{key!r}] come out as {bad} in {dtype}; lower server_lr, or use a wider dtype"
    )


def _kernels(own: Tensor, key: str, uploads: Sequence[Upload]) -> tuple[ModuleType | None, list[Tensor]]:
    """Return the kernels that can take these uploads in one pass, None where none can, and the uploads' tensors."""
    tensors = [upload.weights[key].detach() for upload in uploads]
    if own.device.type != "cuda":
        return None, tensors
    try:
        from fedgs.algorithms import mean_kernels
    except ImportError:  # no Triton
        return None, tensors
    return mean_kernels if mean_kernels.fit(own, tensors) else None, tensors


def _pieces(like: Tensor) -> Iterator[slice | EllipsisType]:
    """Cut along the first axis, which needs no copy whatever the strides; a GPU takes a tensor whole."""
    if like.device.type != "cpu" or like.ndim == 0 or like.numel() <= PIECE:
        yield ...
        return
    rows = max(1, PIECE * like.shape[0] // like.numel())
    for start in range(0, like.shape[0], rows):
        yield slice(start, start + rows)


def _piece(upload: Upload, key: str, where: slice | EllipsisType, device: torch.device, dtype: torch.dtype) -> Tensor:
    # First over the bus, then wider: half the traffic.
    return upload.weights[key].detach()[where].to(device).to(dtype)


def _total(values: Tensor) -> Tensor:
    if values.device.type != "cpu":
        return values.sum()
    return torch.stack([part.sum() for part in torch.split(values.reshape(-1), PIECE)]).sum()
