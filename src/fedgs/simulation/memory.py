"""How much memory this process holds, and what to say when there is not enough."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

from fedgs.errors import DeviceError
from fedgs.tasks.task import lacks_memory

_SMALLER = "lower training.batch_size, selection.pick or federation.factories"


def resident_megabytes() -> float:
    """Return the resident memory in MB now; its peak so far where the system does not report it."""
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
    except (OSError, ValueError, IndexError):
        import resource
        import sys

        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return round(peak / (1e6 if sys.platform == "darwin" else 1e3), 1)
    return round(pages * os.sysconf("SC_PAGE_SIZE") / 1e6, 1)


@contextmanager
def translate_oom() -> Iterator[None]:
    """Turn every way of running out of memory into one line."""
    try:
        yield
    except torch.OutOfMemoryError as error:
        need = str(error).partition(". ")[0]
        raise DeviceError(f"the GPU's memory does not suffice ({need}); {_SMALLER}, or choose device='cpu'") from None
    except MemoryError as error:
        raise DeviceError(f"memory does not suffice ({error or 'no detail'}); {_SMALLER}") from None
    except RuntimeError as error:
        if not lacks_memory(error):
            raise
        need = str(error).partition("you tried to allocate ")[2].partition(". ")[0]
        raise DeviceError(f"memory does not suffice (for {need or 'a tensor'}); {_SMALLER}") from None
