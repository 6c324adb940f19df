"""The open stream of a device, the step it was asked for, and its answer."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import grpc
import numpy as np
from numpy.typing import NDArray

from fedgs.deploy.connections import peer_of
from fedgs.deploy.tensors import Flat, Shapes
from fedgs.deploy.wire import Ready


class UpdateRejected(Exception):  # noqa: N818  (it is an outcome, not an error of the program)
    """A selected device gave no update that can be used; ``outcome`` is late, gone or rejected."""

    def __init__(self, outcome: str, reason: str) -> None:
        super().__init__(reason)
        self.outcome = outcome


@dataclass
class Answer:
    """A good update."""

    change: Flat
    counts: NDArray[np.int64]
    """Class counts of its batch, as announced."""
    loss: float
    norm: float = 0.0
    """Of the trained part of the change."""

    @property
    def num_samples(self) -> int:
        """How many samples there are in it (n^{m,k})."""
        return int(self.counts.sum())

    def shortened(self, length: float, trained: int) -> "Answer":
        """Return the answer with a change of this norm; buffers, after the first ``trained`` numbers, stay."""
        change = self.change.copy()
        change[:trained] *= np.float32(length / self.norm)
        return replace(self, change=change, norm=length)


@dataclass
class Asked:
    """The step a device was asked for, and what its answer must look like."""

    step: int
    ready: Ready
    shapes: Shapes
    wire: int
    answer: "asyncio.Future[Answer]"


class StreamLink:
    """The open stream of one device."""

    def __init__(self, context: Any) -> None:
        self._context = context
        self.address = peer_of(context.peer())[0]
        self._lock = asyncio.Lock()
        self.ended = asyncio.Event()
        self.reason = ""

    async def send(self, messages: Sequence[bytes]) -> None:
        """Send messages, in order."""
        async with self._lock:
            try:
                for message in messages:
                    await self._context.write(message)
            except grpc.aio.BaseError:  # the stream has ended meanwhile
                raise ConnectionError("the connection was lost") from None

    def hang_up(self, reason: str) -> None:
        """End the stream."""
        self.reason = self.reason or reason
        self.ended.set()
