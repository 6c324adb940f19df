"""``solve_batch``: the stations of many factories at once.

The problems are laid end to end in a few flat arrays and solved by one compiled loop, in as many threads as there
are cores. Threads, not numba's own parallel loop: that one must not be entered from two Python threads at a time and
does not survive a fork, and a simulator does both.
"""

import os
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from itertools import pairwise
from time import thread_time
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedgs import rng
from fedgs.compiled import composed
from fedgs.errors import SolverError
from fedgs.selection.exact import prove
from fedgs.selection.gbp_cs import largest_entries, least_squares, permute
from fedgs.selection.problem import (
    NO_LIMIT,
    Flags,
    Floats,
    Indices,
    KernelProblem,
    SelectionProblem,
    SelectionResult,
    measure,
)
from fedgs.selection.quadratic import gram_form
from fedgs.selection.solve import Solver, auto, look_up, resolve_solver, solve, solver_key
from fedgs.selection.swap import best_descent, descend

IN_THE_LOOP = ("gbp-cs", "swap", "multistart", "exact")
"""Solvers that are compiled as a whole, by the number ``solve_one`` knows them by."""
Piece = bool | None
"""Whether a piece of ``solve_one`` is needed; None leaves it out of the machine code, and a first run waits less."""


def pieces_of(method: int) -> tuple[Piece, Piece]:
    """Return which pieces a method needs: the least-squares start, the quadratic form."""
    return (True if method <= 1 else None), (True if 1 <= method <= 3 else None)


class ProblemBatch(NamedTuple):
    """Problems laid end to end. Problem i has the rows ``rows[i]:rows[i+1]`` and the answer ``picks[i]:picks[i+1]``."""

    counts: Floats
    sizes: Floats
    bonus: Floats
    rows: Indices
    targets: Floats
    bases: Floats
    base_sizes: Floats
    expected_sizes: Floats
    unit_sums: Flags
    picks: Indices
    keys: NDArray[np.uint64]


class Answers(NamedTuple):
    """Where the loop writes."""

    chosen: Indices
    proven: Flags
    divergence: Floats
    distance: Floats


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

    ``seconds`` of each answer is its share of the time of all threads together, as if they were solved one by one.
    """
    if isinstance(problems, SelectionProblem):
        raise SolverError("solve_batch takes a list of problems; for a single one call solve")
    problems = list(problems)
    if threads is not None and (isinstance(threads, bool) or not isinstance(threads, int) or threads < 1):
        raise SolverError(f"threads={threads!r} is not possible; give a whole number of 1 or more")
    seeds = _seeds(seed, len(problems))
    solver = resolve_solver(solver)
    look_up("exact" if solver == "auto" else solver, {} if solver == "auto" else options)
    results: list[SelectionResult | None] = [None] * len(problems)
    together: dict[tuple[str, int], list[int]] = {}
    for index, problem in enumerate(problems):
        name = auto(problem) if solver == "auto" else solver
        if (
            isinstance(name, str)
            and name in IN_THE_LOOP
            and 0 < problem.pick < len(problem.counts)
            and options.get("start", "mpinv") == "mpinv"
        ):
            together.setdefault((name, problem.counts.shape[1]), []).append(index)
        else:
            results[index] = solve(problem, name, seeds[index], **options)
    for (name, _), indices in together.items():
        group = [problems[i] for i in indices]
        try:
            answers = _solve_group(group, name, [seeds[i] for i in indices], threads, options)
        except np.linalg.LinAlgError:  # one of them cannot be proven; alone it says so and spares the others
            answers = [solve(problems[i], name, seeds[i], **options) for i in indices]
        for index, answer in zip(indices, answers, strict=True):
            results[index] = answer
    return [result for result in results if result is not None]


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


def _solve_group(
    problems: list[SelectionProblem], name: str, seeds: list[int], threads: int | None, options: dict[str, Any]
) -> list[SelectionResult]:
    began = thread_time()
    settings = look_up(name, options).options | options
    batch = _lay_out(problems, np.array([solver_key(seed, name) for seed in seeds]))
    total = len(problems)
    answers = Answers(
        np.empty(batch.picks[-1], dtype=np.int64), np.zeros(total, dtype=np.bool_), np.empty(total), np.empty(total)
    )
    method = IN_THE_LOOP.index(name)
    arguments = (batch, answers, method, settings.get("starts", 0), settings.get("budget", 0), *pieces_of(method))
    workers = min(total, threads or os.cpu_count() or 1)
    others = 0.0
    if workers == 1:
        solve_range(*arguments, 0, total)
    else:
        cuts = [total * part // workers for part in range(workers + 1)]
        waiting = [worker_threads().submit(_timed_range, *arguments, a, b) for a, b in pairwise(cuts[1:])]
        solve_range(*arguments, 0, cuts[1])  # this thread works too
        others = sum(part.result() for part in waiting)
    seconds = (thread_time() - began + others) / total
    return [
        SelectionResult(
            np.sort(answers.chosen[batch.picks[i] : batch.picks[i + 1]]),
            float(answers.divergence[i]),
            float(answers.distance[i]),
            bool(answers.proven[i]),
            None,
            name,
            seconds,
        )
        for i in range(total)
    ]


def _timed_range(*arguments: Any) -> float:
    """Call ``solve_range`` and return this thread's time on a processor."""
    began = thread_time()
    solve_range(*arguments)
    return thread_time() - began


def _lay_out(problems: list[SelectionProblem], keys: NDArray[np.uint64]) -> ProblemBatch:
    batch = ProblemBatch(
        counts=np.concatenate([p.counts for p in problems]),
        sizes=np.concatenate([p.sizes for p in problems]),
        bonus=np.concatenate([p.bonus for p in problems]),
        rows=np.cumsum([0] + [len(p.counts) for p in problems]),
        targets=np.stack([p.target for p in problems]),
        bases=np.stack([p.base for p in problems]),
        base_sizes=np.array([p.base_size for p in problems]),
        expected_sizes=np.array([p.expected_size for p in problems]),
        unit_sums=np.array([p.unit_sums for p in problems]),
        picks=np.cumsum([0] + [p.pick for p in problems]),
        keys=keys,
    )
    for array in batch:
        array.flags.writeable = False  # like a problem's arrays, so that kernels are compiled once for both
    return batch


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
def solve_range(
    batch: ProblemBatch,
    answers: Answers,
    method: int,
    starts: int,
    budget: int,
    start: Piece,
    quadratic: Piece,
    first: int,
    last: int,
) -> None:
    """Solve the problems from ``first`` to ``last``."""
    for i in range(first, last):
        begin, end = batch.rows[i], batch.rows[i + 1]
        problem = KernelProblem(
            batch.counts[begin:end], batch.targets[i], batch.bases[i], batch.bonus[begin:end], batch.sizes[begin:end],
            batch.base_sizes[i], batch.expected_sizes[i], batch.unit_sums[i], batch.picks[i + 1] - batch.picks[i],
        )  # fmt: skip
        chosen = answers.chosen[batch.picks[i] : batch.picks[i + 1]]
        answers.proven[i] = solve_one(problem, batch.keys[i], method, starts, budget, start, quadratic, chosen)
        divergence, distance = measure(problem, chosen)
        answers.divergence[i] = divergence
        answers.distance[i] = distance


@cache
def worker_threads() -> ThreadPoolExecutor:
    """Return the threads that select beside each other, one a core."""
    return ThreadPoolExecutor(max_workers=os.cpu_count(), thread_name_prefix="fedgs-selection")


# Threads do not survive a fork: a child process makes its own pool.
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=worker_threads.cache_clear)
