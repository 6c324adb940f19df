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


def ordered_map(
    function: Callable[[Task], Result],
    tasks: Sequence[Task],
    workers: int | None = None,
    *,
    sizes: Sequence[int] | None = None,
    few: int = 0,
    title: str = "",
    progress: bool = False,
) -> Iterator[Result]:
    """Yield ``function(task)`` for each task, in order; ``workers=None`` takes every core.

    Tasks whose ``sizes`` add up to less than ``few`` are done here, before other processes would have started, where
    the number of workers is not given. ``progress`` shows a bar of the sizes.
    """
    if workers is not None and workers < 1:
        raise DataError(f"workers={workers}: there must be at least one")
    amounts = [1] * len(tasks) if sizes is None else sizes
    wanted = min(workers or (1 if sum(amounts) < few else os.cpu_count() or 1), max(1, len(tasks)))
    done = map(function, tasks) if wanted == 1 else _spread(function, tasks, wanted)
    with progress_bar(title, sum(amounts), progress) as update:
        for amount, result in zip(amounts, done, strict=True):
            yield result
            update(advance=amount)


def _spread(function: Callable[[Task], Result], tasks: Sequence[Task], workers: int) -> Iterator[Result]:
    pool = ProcessPoolExecutor(workers, mp_context=multiprocessing.get_context("spawn"))
    try:
        queue = iter(tasks)
        # A few pieces ahead of the reader and no more: finished pieces are images waiting in memory.
        pending: deque[Future[Result]] = deque(pool.submit(function, task) for task in islice(queue, 3 * workers))
        while pending:
            yield pending.popleft().result()
            pending.extend(pool.submit(function, task) for task in islice(queue, 1))
    except BrokenProcessPool as error:
        raise DataError(
            "a worker process died: out of memory (try one worker), or a script without 'if __name__ == \"__main__\":'"
        ) from error
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


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
