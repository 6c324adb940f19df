"""How a step computes: threads of a processor, precision of products."""

import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager, nullcontext
from functools import cache
from typing import Any

import torch

from fedgs.tasks.build import generators_kept


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


class Workers:
    """Threads that share out factories or clients, each computing alone; kept from round to round.

    They are kept because each thread has a copy of the network.
    """

    def __init__(self, device: torch.device, precision: str, threads: int | None) -> None:
        """``threads``: at most so many on processors, None: one a core; on a GPU there is only one."""
        self._precision, self._threads = precision, threads or os.cpu_count() or 1
        if device.type == "cuda":
            self._threads = 1
        self._pool: ThreadPoolExecutor | None = None

    def each(self, work: Callable[[int], None], numbers: range) -> None:
        """Do the work of each number; after an error, or Ctrl-C, nobody begins who has not begun."""
        with one_thread_each(), generators_kept(), gpu_precision(self._precision):
            if self._threads == 1:
                for number in numbers:
                    work(number)
                return
            if self._pool is None:
                self._pool = ThreadPoolExecutor(
                    self._threads, "fedgs", initializer=torch.set_num_threads, initargs=(1,)
                )
            futures = [self._pool.submit(work, number) for number in numbers]
            try:
                for future in futures:
                    future.result()
            finally:
                for future in futures:
                    future.cancel()
                wait(futures)

    def close(self) -> None:
        """End the threads."""
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)
            self._pool = None


def mixed_precision(device: torch.device, precision: str) -> torch.autocast | nullcontext[None]:
    """Return the context in which a forward pass computes in bfloat16, if that is asked for and the device is made for
    it.
    """
    if precision == "bfloat16" and (device.type == "cuda" or processor_has_bfloat16()):
        # Weights change in every step, so there is nothing to gain from keeping their rounded copies.
        return torch.autocast(device.type, torch.bfloat16, cache_enabled=False)
    return nullcontext()


@cache
def processor_has_bfloat16() -> bool:
    """Return whether the processor multiplies in bfloat16 itself; others would only imitate it."""
    known: dict[str, Any] = getattr(torch.cpu, "get_capabilities", dict)()  # older versions of torch have no such list
    return bool(known.get("avx512_bf16") or known.get("amx_bf16"))


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
