"""Jobs side by side, each in a process of its own: one run seldom fills a GPU, nor all cores of a large machine.

Results are those of one job after the other, but for what a GPU's own order of adding changes. Times of a job are
longer than alone; a job's file says how many could be at work at a time.
"""

import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import suppress
from typing import TYPE_CHECKING

import torch

from fedgs.errors import DeviceError

if TYPE_CHECKING:
    from multiprocessing.process import BaseProcess

    from reproduction.experiments.jobs import Job, Result

Work = Callable[["Job"], "Result"]
STOP = signal.SIGUSR1
"""Asks a process to save a checkpoint and to end; SIGTERM, the pool's own way, leaves no time for that."""
PATIENCE = 20.0
"""Seconds that processes have to come to an end when they are stopped."""
_work: Work | None = None
"""What this process does with a job; set once, when it starts."""
_at_work = False


def side_by_side(
    jobs: Sequence["Job"], workers: int, work: Work, begin: Callable[["Job"], bool]
) -> "Iterator[tuple[Job, Result]]":
    """Yield jobs with their results as they are done, at most ``workers`` at work at a time.

    ``begin`` is asked before a job begins; from its first no on, nothing begins any more.
    """
    others = multiprocessing.active_children()
    waiting = iter(jobs)
    working: dict[Future[Result], Job] = {}
    pool = ProcessPoolExecutor(workers, multiprocessing.get_context("spawn"), _start, (work, workers))
    all_done = False
    try:
        while True:
            while len(working) < workers and (job := next(waiting, None)) is not None:
                if not begin(job):
                    waiting = iter(())
                    break
                working[pool.submit(_do, job)] = job
            if not working:
                all_done = True
                return
            for done in wait(working, return_when=FIRST_COMPLETED).done:
                yield working.pop(done), done.result()
    except BrokenProcessPool:
        raise DeviceError(
            f"a process that ran a job came to an end, out of memory perhaps; use fewer than --jobs {workers}"
        ) from None
    finally:
        if not all_done:  # an error, Ctrl-C
            _stop(pool, [process for process in multiprocessing.active_children() if process not in others])
        # Waits for the pool's own thread: a program that ends before it does has odd last words.
        pool.shutdown(wait=True, cancel_futures=True)


def _stop(pool: ProcessPoolExecutor, processes: "list[BaseProcess]") -> None:
    """Have all processes save a checkpoint and end; those that take too long are terminated."""
    for process in processes:
        with suppress(ProcessLookupError):
            os.kill(process.pid or 0, STOP)
    pool.shutdown(wait=False, cancel_futures=True)
    last = time.monotonic() + PATIENCE
    while any(process.is_alive() for process in processes) and time.monotonic() < last:
        time.sleep(0.05)
    for process in processes:
        process.terminate()


def _interrupt(number: int, frame: object) -> None:
    """Interrupt the job at work, as Ctrl-C would; who has none ends with the pool."""
    if _at_work:
        raise KeyboardInterrupt


def _start(work: Work, workers: int) -> None:
    """Make a process ready; the one that started it hears Ctrl-C for both."""
    signal.signal(STOP, _interrupt)
    global _work  # a pool has no other place for what is too large to be sent with every job
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    torch.set_num_threads(max(1, (os.cpu_count() or 1) // workers))
    _work = work


def _end_with_parent() -> None:
    """Leave nobody at work, and no GPU taken, when the process that started this one is killed."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)


def _do(job: "Job") -> "Result":
    global _at_work  # for the handler of a signal, which has no other way to know
    assert _work is not None
    _at_work = True
    try:
        return _work(job)
    finally:
        _at_work = False
