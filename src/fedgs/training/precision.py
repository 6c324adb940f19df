"""How a step computes: threads of a processor, precision of a GPU."""

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import torch


@contextmanager
def one_thread_each() -> Iterator[None]:
    """Let every thread compute alone: factories or clients are shared out over threads, not the insides of an
    operation.

    That is faster for small networks, and the result does not depend on the number of cores.
    """
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def mixed_precision(device: torch.device, precision: str) -> torch.autocast | nullcontext[None]:
    """Return the context in which a forward pass computes in bfloat16 when that is asked for, on a GPU."""
    if device.type == "cuda" and precision == "bfloat16":
        # Weights change in every step, so there is nothing to gain from keeping their rounded copies.
        return torch.autocast("cuda", torch.bfloat16, cache_enabled=False)
    return nullcontext()


@contextmanager
def gpu_precision(precision: str) -> Iterator[None]:
    """Set how a GPU computes float32 products (TF32 unless float32 was asked for), and set it back at the end."""
    wanted = "ieee" if precision == "float32" else "tf32"
    matmul: Any = torch.backends.cuda.matmul
    conv: Any = torch.backends.cudnn.conv  # type: ignore[attr-defined,unused-ignore]
    before = matmul.fp32_precision, conv.fp32_precision, torch.backends.cudnn.benchmark
    matmul.fp32_precision = conv.fp32_precision = wanted
    torch.backends.cudnn.benchmark = True  # shapes never change: the library may look for its fastest kernels
    try:
        yield
    finally:
        matmul.fp32_precision, conv.fp32_precision, torch.backends.cudnn.benchmark = before
