"""Round plans made in a background thread while the rounds before them are trained.

The kernels of selection release Python's global lock, so the thread really runs beside the training. It is at most
``depth`` rounds ahead. The plans are the same with and without it; each carries the plan's state after its round, so
that a checkpoint knows nothing of what was planned ahead.
"""

import time
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Generic, TypeVar

RoundPlan = TypeVar("RoundPlan")


class Prefetch(Generic[RoundPlan]):
    """Iterates over the plans of so many rounds; a context manager."""

    def __init__(self, next_round: Callable[[], RoundPlan], rounds: int, depth: int = 3) -> None:
        self.waited = 0.0
        """Seconds the consumer has waited for plans."""
        self._next_round, self._rounds, self._depth = next_round, rounds, max(1, depth)
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="fedgs-plan")

    def __enter__(self) -> "Prefetch[RoundPlan]":
        return self

    def __exit__(self, *_: object) -> None:
        self._thread.shutdown(cancel_futures=True)

    def __iter__(self) -> Iterator[RoundPlan]:
        coming: deque[Future[RoundPlan]] = deque()
        asked = 0
        for number in range(self._rounds):
            while asked < min(number + self._depth, self._rounds):
                coming.append(self._thread.submit(self._next_round))
                asked += 1
            began = time.perf_counter()
            plan = coming.popleft().result()
            self.waited += time.perf_counter() - began
            yield plan
