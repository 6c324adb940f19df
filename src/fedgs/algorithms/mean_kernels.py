"""The arithmetic of :mod:`fedgs.algorithms.mean` for uploads that lie on a GPU: one pass over all of them.

A program holds a piece of the mean in float64 and walks through the uploads in their order, rounding each product and
each sum on its own (no fused multiply-add): the same bits as on a processor. Uploads may lie anywhere in the memory of
the GPU; the program is handed their addresses.
"""

from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor

BLOCK = 1024
MANY = 16
"""Blocks that one program of the distances adds up."""


@triton.jit
def _weighted_mean(own, addresses, shares, mean, count, size, block: tl.constexpr):
    number = tl.program_id(0) * block + tl.arange(0, block)
    known = number < size
    kind = tl.pointer_type(own.dtype.element_ty)
    first = tl.load(tl.load(addresses).to(kind) + number, mask=known).to(tl.float64)
    rest = tl.zeros((block,), tl.float64)
    for upload in range(1, count):
        value = tl.load(tl.load(addresses + upload).to(kind) + number, mask=known).to(tl.float64)
        rest += (value - first) * tl.load(shares + upload)
    tl.store(mean + number, first + rest, mask=known)


@triton.jit
def _distances(own, addresses, reference, sums, size, many: tl.constexpr, squared: tl.constexpr, block: tl.constexpr):
    upload = tl.program_id(1)
    kind = tl.pointer_type(own.dtype.element_ty)
    weights = tl.load(addresses + upload).to(kind)
    total = tl.zeros((block,), tl.float64)
    for piece in range(many):
        number = (tl.program_id(0) * many + piece) * block + tl.arange(0, block)
        known = number < size
        apart = tl.load(weights + number, mask=known, other=0).to(tl.float64)
        apart -= tl.load(reference + number, mask=known, other=0)
        total += apart * apart if squared else tl.abs(apart)
    tl.store(sums + upload * tl.num_programs(0) + tl.program_id(0), tl.sum(total, axis=0))


def fit(own: Tensor, tensors: Sequence[Tensor]) -> bool:
    """Tell whether these kernels can read the uploads: floats on one GPU, in memory as ``own`` is, without holes."""
    dense = own.is_floating_point() and own.dtype.itemsize > 1 and own.numel() > 0
    dense = dense and torch.empty_like(own).stride() == own.stride()
    return dense and all(
        tensor.device == own.device and tensor.dtype == own.dtype and tensor.stride() == own.stride()
        for tensor in tensors
    )


def weighted_mean(own: Tensor, tensors: Sequence[Tensor], shares: Sequence[float]) -> Tensor:
    """Return Σ c_k w_k in float64."""
    mean = torch.empty_like(own, dtype=torch.float64)
    weights = torch.tensor(shares, dtype=torch.float64, device=own.device)
    _weighted_mean[(triton.cdiv(own.numel(), BLOCK),)](
        own, _addresses(tensors), weights, mean, len(tensors), own.numel(), BLOCK, enable_fp_fusion=False
    )
    return mean


def distances_to(reference: Tensor, own: Tensor, tensors: Sequence[Tensor], squared: bool) -> list[float]:
    """Return Σ |w_k − reference|, or Σ (w_k − reference)², of each upload."""
    programs = triton.cdiv(own.numel(), BLOCK * MANY)
    sums = torch.empty(len(tensors), programs, dtype=torch.float64, device=own.device)
    _distances[(programs, len(tensors))](
        own, _addresses(tensors), reference, sums, own.numel(), MANY, squared, BLOCK, enable_fp_fusion=False
    )
    found: list[float] = sums.sum(1).tolist()
    return found


def _addresses(tensors: Sequence[Tensor]) -> Tensor:
    return torch.tensor([tensor.data_ptr() for tensor in tensors], dtype=torch.int64).to(tensors[0].device)
