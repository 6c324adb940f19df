"""Round plans made in a background thread while the rounds before them are trained.

The kernels of selection release Python's global lock, so the thread really runs beside the training. A bounded queue
keeps it at most ``depth`` rounds ahead. The plans are the same with and without it; each carries the plan's
state after its round, so that a checkpoint knows nothing of what was planned ahead.
"""

import threading
import time
from collections.abc import Iterator, Mapping
from queue import Empty, Full, Queue
from typing import Any, Generic, Protocol, TypeVar

_PATIENCE = 0.1
"""Seconds between two looks at whether the other side is still there."""


RoundOf = TypeVar("RoundOf", covariant=True)


class Plan(Protocol[RoundOf]):
    """What plans rounds, one after the other: the selection of FedGS, the participants of a baseline."""

    round: int

    def next_round(self) -> RoundOf:
        """Plan the next round."""
        ...

    def state_dict(self) -> dict[str, Any]:
        """Return where it has got to, in plain data."""
        ...

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Go on from there."""
        ...


class RunAhead(Generic[RoundOf]):
    """Iterates over the plans of the rounds up to ``last_round``; a context manager."""

    def __init__(self, plan: Plan[RoundOf], last_round: int, depth: int = 3) -> None:
        self.waited = 0.0
        """Seconds the consumer has waited for plans."""
        self._plan, self._rounds, self._last_round = plan, last_round - plan.round, last_round
        self._queue: Queue[RoundOf | BaseException] = Queue(max(1, depth))
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._work, name="fedgs-plan", daemon=True)

    def __enter__(self) -> "RunAhead[RoundOf]":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopped.set()
        self._thread.join()

    def __iter__(self) -> Iterator[RoundOf]:
        for _ in range(self._rounds):
            began = time.perf_counter()
            item = self._get()
            self.waited += time.perf_counter() - began
            if isinstance(item, BaseException):
                raise item
            yield item

    def _get(self) -> RoundOf | BaseException:
        while True:
            try:
                return self._queue.get(timeout=_PATIENCE)
            except Empty:
                if not self._thread.is_alive() and self._queue.empty():
                    raise RuntimeError("the thread that selects devices has ended early") from None

    def _work(self) -> None:
        try:
            while self._plan.round < self._last_round and not self._stopped.is_set():
                self._put(self._plan.next_round())
        except BaseException as error:  # handed over to the thread that asks for plans
            self._put(error)

    def _put(self, item: Any) -> None:
        while not self._stopped.is_set():
            try:
                return self._queue.put(item, timeout=_PATIENCE)
            except Full:
                continue
