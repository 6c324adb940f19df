"""``solve_batch``: the stations of many factories at once, in as many threads as there are cores.

Threads, not numba's own parallel loop: that one must not be entered from two Python threads at a time and does not
survive a fork, and a simulator does both.
"""

import os
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from functools import cache
from time import thread_time
from typing import Any, TypeVar

import numpy as np

from fedgs import rng
from fedgs.errors import SolverError
from fedgs.selection.problem import SelectionProblem, SelectionResult
from fedgs.selection.solve import Solver, look_up, resolve_solver, solve_timed

Done = TypeVar("Done")


def solve_batch(
    problems: Iterable[SelectionProblem],
    solver: str | Solver = "exact",
    seed: int | Sequence[int] = 0,
    *,
    threads: int | None = None,
    **options: Any,
) -> list[SelectionResult]:
    """Solve many problems; the answers come in their order and do not depend on the number of threads.

    Args:
        problems: one a factory; they may differ in devices, picks and targets.
        solver: a name in ``SOLVERS``, or ``"auto"`` (then every problem gets what suits it).
        seed: one number, from which every problem gets its own, or a sequence with one a problem. Problem i is
            solved as ``solve(problems[i], solver, seeds[i])`` would.
        threads: at most so many (default: one a core).
        options: of the solver.

    ``seconds`` of each answer is what it took of its thread, as if the problems were solved one by one.
    """
    if isinstance(problems, SelectionProblem):
        raise SolverError("solve_batch takes a list of problems; for a single one call solve")
    problems = list(problems)
    if threads is not None and (isinstance(threads, bool) or not isinstance(threads, int) or threads < 1):
        raise SolverError(f"threads={threads!r} is not possible; give a whole number of 1 or more")
    seeds = _seeds(seed, len(problems))
    solver = resolve_solver(solver)
    # Kernels do not hold Python's lock.
    alone = not look_up("exact" if solver == "auto" else solver, {} if solver == "auto" else options).kernels

    def work(index: int) -> SelectionResult:
        return solve_timed(problems[index], solver, seeds[index], thread_time, **options)

    return side_by_side(work, len(problems), 1 if alone else threads)


def _seeds(seed: int | Sequence[int], problems: int) -> Sequence[int]:
    if (
        isinstance(seed, str)
        or not isinstance(seed, int | np.integer | Sequence | np.ndarray)
        or isinstance(seed, bool)
    ):
        raise SolverError(f"seed={seed!r} is not possible; give a whole number, or a list with one a problem")
    if isinstance(seed, int | np.integer):
        return [rng.key(int(seed), "batch", index) for index in range(problems)]
    if len(seed) != problems:
        raise SolverError(f"{len(seed)} seeds for {problems} problems; give one number, or one seed a problem")
    return seed


def side_by_side(work: Callable[[int], Done], pieces: int, threads: int | None = None) -> list[Done]:
    """Do so many pieces of work in threads, this one among them; return what they give, in order."""
    workers = min(pieces, threads or cores())

    def part(first: int) -> list[Done]:
        return [work(piece) for piece in range(first, pieces, workers)]

    waiting = [worker_threads().submit(copy_context().run, part, first) for first in range(1, workers)]
    try:
        own = part(0) if pieces else []
    finally:  # also after an error: nobody goes on alone
        others = [one.result() for one in waiting]
    parts = [own, *others]
    return [parts[piece % workers][piece // workers] for piece in range(pieces)]


@cache
def cores() -> int:
    """Return how many there are; asking the system takes as long as a selection."""
    return os.cpu_count() or 1


@cache
def worker_threads() -> ThreadPoolExecutor:
    """Return the threads that select beside each other, one a core."""
    return ThreadPoolExecutor(max_workers=cores(), thread_name_prefix="fedgs-selection")


# Threads do not survive a fork: a child process makes its own pool.
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=worker_threads.cache_clear)
