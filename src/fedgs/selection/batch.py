"""``solve_batch``: the stations of many factories at once, in as many threads as there are cores.

Threads, not numba's own parallel loop: that one must not be entered from two Python threads at a time and does not
survive a fork, and a simulator does both.
"""

import os
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from time import thread_time
from typing import Any, TypeVar

import numpy as np

from fedgs import rng
from fedgs.compiled import composed
from fedgs.errors import SolverError
from fedgs.selection.exact import prove
from fedgs.selection.gbp_cs import largest_entries, least_squares, permute
from fedgs.selection.problem import NO_LIMIT, Indices, KernelProblem, SelectionProblem, SelectionResult, measure
from fedgs.selection.quadratic import gram_form
from fedgs.selection.solve import Solver, auto, look_up, resolve_solver, solve, solver_key
from fedgs.selection.swap import best_descent, descend

Done = TypeVar("Done")
IN_THE_LOOP = ("gbp-cs", "swap", "multistart", "exact")
"""Solvers that are compiled as a whole, by the number ``solve_one`` knows them by."""
Piece = bool | None
"""Whether a piece of ``solve_one`` is needed; None leaves it out of the machine code, and a first run waits less."""


def pieces_of(method: int) -> tuple[Piece, Piece]:
    """Return which pieces a method needs: the least-squares start, the quadratic form."""
    return (True if method <= 1 else None), (True if 1 <= method <= 3 else None)


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
    look_up("exact" if solver == "auto" else solver, {} if solver == "auto" else options)
    names = [auto(problem) if solver == "auto" else solver for problem in problems]
    compiled = [
        isinstance(name, str)
        and name in IN_THE_LOOP
        and 0 < problem.pick < len(problem.counts)
        and options.get("start", "mpinv") == "mpinv"
        for name, problem in zip(names, problems, strict=True)
    ]
    together = np.flatnonzero(compiled).tolist()

    def solve_compiled(place: int) -> SelectionResult:
        index = together[place]
        return _solve_compiled(problems[index], str(names[index]), seeds[index], options)

    answers = iter(side_by_side(solve_compiled, len(together), threads))
    return [
        next(answers) if ready else solve(problem, name, own_seed, **options)
        for ready, problem, name, own_seed in zip(compiled, problems, names, seeds, strict=True)
    ]


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


def _solve_compiled(problem: SelectionProblem, name: str, seed: int, options: dict[str, Any]) -> SelectionResult:
    began = thread_time()
    known, method = look_up(name, options).options | options, IN_THE_LOOP.index(name)
    effort = known.get("starts", 0), known.get("budget", 0)
    try:
        chosen, proven, divergence, distance = solve_measured(
            problem.parts, solver_key(seed, name), method, *effort, *pieces_of(method)
        )
    except np.linalg.LinAlgError:  # it cannot be proven, and says so by itself
        return solve(problem, name, seed, **options)
    return SelectionResult(np.sort(chosen), divergence, distance, proven, None, name, thread_time() - began)


@composed
def solve_one(
    problem: KernelProblem,
    key: np.uint64,
    method: int,
    starts: int,
    budget: int,
    start: Piece,
    quadratic: Piece,
    chosen: Indices,
) -> bool:
    """Solve one problem into ``chosen``: 0 gbp-cs, 1 swap, 2 multistart, 3 exact; return whether it is proven."""
    proven = False
    if start is not None:
        wanted = problem.expected_size * problem.target - problem.base
        chosen[:] = largest_entries(least_squares(problem.counts, wanted), problem.pick)
        if method == 0:
            permute(problem.counts, wanted, problem.bonus, chosen, NO_LIMIT)
    if quadratic is not None:
        form = gram_form(problem)
        if method == 1:
            descend(form, chosen, NO_LIMIT)
        elif method == 2:
            chosen[:] = best_descent(form, starts, key)[0]
        else:
            found, proven = prove(form, starts, key, budget)
            chosen[:] = found
    return proven


@composed
def solve_measured(
    problem: KernelProblem, key: np.uint64, method: int, starts: int, budget: int, start: Piece, quadratic: Piece
) -> tuple[Indices, bool, float, float]:
    """Solve one problem; return the choice, whether it is proven, its divergence and its distance."""
    chosen = np.empty(problem.pick, dtype=np.int64)
    proven = solve_one(problem, key, method, starts, budget, start, quadratic, chosen)
    divergence, distance = measure(problem, chosen)
    return chosen, proven, divergence, distance


def side_by_side(work: Callable[[int], Done], pieces: int, threads: int | None = None) -> list[Done]:
    """Do so many pieces of work in threads, this one among them; return what they give, in order."""
    workers = min(pieces, threads or os.cpu_count() or 1)

    def part(first: int) -> list[Done]:
        return [work(piece) for piece in range(first, pieces, workers)]

    waiting = [worker_threads().submit(part, first) for first in range(1, workers)]
    try:
        own = part(0) if pieces else []
    finally:  # also after an error: nobody goes on alone
        others = [one.result() for one in waiting]
    parts = [own, *others]
    return [parts[piece % workers][piece // workers] for piece in range(pieces)]


@cache
def worker_threads() -> ThreadPoolExecutor:
    """Return the threads that select beside each other, one a core."""
    return ThreadPoolExecutor(max_workers=os.cpu_count(), thread_name_prefix="fedgs-selection")


# Threads do not survive a fork: a child process makes its own pool.
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=worker_threads.cache_clear)
