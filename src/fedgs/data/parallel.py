"""Long conversions: many independent pieces, done by several processes, given back in order.

The result never depends on the number of workers: pieces are cut before they are handed to workers, and come back in
the order they were cut. New processes are spawned (never forked: a forked child inherits locks of threads it
does not have), so a script that asks for workers needs the usual ``if __name__ == "__main__":``.
"""

import multiprocessing
import os
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from functools import partial
from itertools import islice
from typing import TypeVar

from fedgs.errors import DataError

Task = TypeVar("Task")
Result = TypeVar("Result")


def ordered_map(function: Callable[[Task], Result], tasks: Sequence[Task], workers: int | None) -> Iterator[Result]:
    """Yield ``function(task)`` for each task, in order; ``workers=None`` takes every core."""
    wanted = min(_worker_count(workers), max(1, len(tasks)))
    if wanted == 1:
        yield from map(function, tasks)
        return
    pool = ProcessPoolExecutor(wanted, mp_context=multiprocessing.get_context("spawn"))
    try:
        queue = iter(tasks)
        # A few pieces ahead of the reader and no more: finished pieces are images waiting in memory.
        pending: deque[Future[Result]] = deque(pool.submit(function, task) for task in islice(queue, 3 * wanted))
        while pending:
            yield pending.popleft().result()
            pending.extend(pool.submit(function, task) for task in islice(queue, 1))
    except BrokenProcessPool as error:
        raise DataError(
            "a worker process died: out of memory (try one worker), or a script without 'if __name__ == \"__main__\":'"
        ) from error
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def _worker_count(workers: int | None) -> int:
    if workers is None:
        return os.cpu_count() or 1
    if workers < 1:
        raise DataError(f"workers={workers}: there must be at least one")
    return workers


@contextmanager
def progress_bar(what: str, total: int | None, shown: bool, in_bytes: bool = False) -> Iterator[Callable[..., None]]:
    """Show a bar on stderr while the block runs; the block calls ``update(advance=…)`` or ``update(completed=…)``."""
    if not shown:
        yield lambda **_: None
        return
    from rich import progress
    from rich.console import Console

    console = Console(stderr=True)
    amounts = (progress.DownloadColumn(), progress.TransferSpeedColumn())
    columns = (
        progress.TextColumn("{task.description}"), progress.BarColumn(),
        *(amounts if in_bytes else (progress.MofNCompleteColumn(),)), progress.TimeRemainingColumn(),
    )  # fmt: skip
    with progress.Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        yield partial(bar.update, bar.add_task(what, total=total))
