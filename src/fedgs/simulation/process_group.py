"""The processes of a run: one by default, or those ``torchrun`` started, with the factories shared out among them.

Every rank makes the whole selection plan (it follows from the seed, so there is nothing to send), trains its own
factories and tests its own part of the samples. They meet in the external synchronisation, one all-reduce of the sum of
station models in float64 (all stations' weights where a server rule needs them one by one), and exchange losses, test
results and, for checkpoints, the stations' momentum. Nothing here knows of models or data.
"""

import os
import re
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray
from torch import Tensor

from fedgs.errors import WorkerError


@dataclass(frozen=True)
class ProcessGroup:
    """Which rank this process is, and how ranks exchange tensors."""

    rank: int = 0
    size: int = 1
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    """Where tensors must lie to be exchanged: NCCL takes those of GPUs only."""

    @property
    def first(self) -> bool:
        """Whether this is the rank that writes files and prints."""
        return self.rank == 0

    def mine(self, number: int) -> bool:
        """Whether piece ``number`` of some work is this rank's."""
        return number % self.size == self.rank

    def shard(self, factories: int) -> NDArray[np.int64]:
        """Return this rank's factories: consecutive, as even as can be; the first ranks have one more."""
        return np.array_split(np.arange(factories), self.size)[self.rank]

    def add_up(self, tensor: Tensor) -> None:
        """Replace ``tensor`` on all ranks by the sum over ranks."""
        self._reduce(tensor, dist.ReduceOp.SUM)

    def greatest(self, tensor: Tensor) -> None:
        """Replace ``tensor`` on all ranks by the greatest over ranks, number by number."""
        self._reduce(tensor, dist.ReduceOp.MAX)

    def gather_rows(self, mine: Tensor, factories: int) -> Tensor:
        """Return the rows of all factories, (factories, …), from each rank's own."""
        if self.size == 1:
            return mine
        rows = mine.new_zeros((factories, *mine.shape[1:]))
        rows[torch.from_numpy(self.shard(factories))] = mine
        # Summing with zeros is exact, and works for uneven shards with every backend.
        self.add_up(rows)
        return rows

    def any(self, here: bool) -> bool:
        """Whether something is so on any rank."""
        flag = torch.tensor([float(here)])
        self.add_up(flag)
        return bool(flag.item())

    def wait(self) -> None:
        """Wait until all ranks are here."""
        if self.size > 1:
            self._exchange(dist.barrier)

    def stop(self, *_: object) -> None:
        """End this rank with one line: torchrun stops all ranks when it has lost one."""
        raise WorkerError(
            f"rank {self.rank} of {self.size} was stopped, most likely because another rank was lost; the run "
            "goes on from its last checkpoint with: fedgs resume RUN"
        )

    def _reduce(self, tensor: Tensor, operation: "dist.ReduceOp.RedOpType") -> None:
        if self.size == 1 or not tensor.numel():
            return
        there = tensor.to(self.device)
        self._exchange(lambda: dist.all_reduce(there, operation))
        if there is not tensor:
            tensor.copy_(there)

    def _exchange(self, work: Callable[[], object]) -> None:
        try:
            work()
        except WorkerError:
            raise
        except RuntimeError as error:
            reason = re.sub(r"^\[.*?\] *", "", str(error)).splitlines()[0].partition(". ")[0]  # without source lines
            raise WorkerError(
                f"rank {self.rank} of {self.size} has lost another rank ({reason}); the run goes on from its "
                "last checkpoint with: fedgs resume RUN"
            ) from None


@contextmanager
def join_process_group(device: torch.device) -> Iterator[ProcessGroup]:
    """Join the processes that torchrun started; without torchrun, a group of one."""
    size = int(os.environ.get("WORLD_SIZE", "1"))
    if size == 1 or not dist.is_available():
        yield ProcessGroup()
        return
    dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
    group = ProcessGroup(dist.get_rank(), size, device)
    before = signal.signal(signal.SIGTERM, group.stop)
    try:
        yield group
    finally:
        signal.signal(signal.SIGTERM, before)
        dist.destroy_process_group()
