"""``solve``: one problem in, one answer out, by any solver of the table ``SOLVERS``.

A solver is a function ``run(problem, key, record, **options) -> (chosen, proven)``. It may assume 0 < pick < N. ``key``
is 64 bits of randomness that belong to it alone, ``record(chosen)`` notes a step for the trace (None: nobody asked).
Adding one is a file with such a function and a line in the table below.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from difflib import get_close_matches
from inspect import signature
from typing import Any

import numpy as np

from fedgs import rng
from fedgs.errors import SolverError
from fedgs.selection.bayesian import solve_bayesian
from fedgs.selection.brute import solve_brute
from fedgs.selection.exact import solve_exact
from fedgs.selection.gbp_cs import solve_gbp_cs
from fedgs.selection.genetic import solve_genetic
from fedgs.selection.large import solve_large
from fedgs.selection.problem import Indices, SelectionProblem, SelectionResult
from fedgs.selection.sampling import solve_monte_carlo, solve_random
from fedgs.selection.swap import solve_multistart, solve_swap


@dataclass(frozen=True)
class Solver:
    """What the table knows of a solver."""

    run: Callable[..., tuple[Indices, bool]]
    summary: str
    bonus: bool = True
    """Whether it heeds the fairness term."""
    ratio: bool = True
    """Whether it minimises the divergence itself when batch sizes differ (else the paper's y with their mean)."""

    @property
    def options(self) -> dict[str, Any]:
        """Names and default values of its options."""
        parameters = signature(self.run).parameters.values()
        return {p.name: p.default for p in parameters if p.kind is p.KEYWORD_ONLY}


SOLVERS: dict[str, Solver] = {
    "random": Solver(solve_random, "uniformly at random", bonus=False, ratio=False),
    "monte-carlo": Solver(solve_monte_carlo, "best of 1000 random draws"),
    "bayesian": Solver(solve_bayesian, "Bayesian optimisation, 5 + 25 trials"),
    "genetic": Solver(solve_genetic, "evolution, population 100, 100 generations"),
    "brute": Solver(solve_brute, "every choice there is"),
    "gbp-cs": Solver(solve_gbp_cs, "the paper's gradient-based permutation", ratio=False),
    "swap": Solver(solve_swap, "best-swap descent from the paper's start"),
    "multistart": Solver(solve_multistart, "best-swap descent from a greedy and 16 random starts"),
    "exact": Solver(solve_exact, "proven optimum by a sphere decoder"),
    "large": Solver(solve_large, "greedy fill and repair, for hundreds of devices and more"),
}

EXACT_UP_TO = 60
"""``auto`` proves the optimum up to this many devices (about 2 ms there), …"""
MULTISTART_UP_TO = 200
"""… descends from many starts up to this many, and goes over to ``large`` beyond."""


def auto(problem: SelectionProblem) -> str:
    """Return the name of the solver that suits the size of a problem."""
    devices = len(problem.counts)
    if devices <= EXACT_UP_TO:
        return "exact"
    return "multistart" if devices <= MULTISTART_UP_TO else "large"


def solve(
    problem: SelectionProblem, solver: str = "exact", seed: int = 0, *, trace: bool = False, **options: Any
) -> SelectionResult:
    """Pick ``problem.pick`` devices.

    Args:
        problem: what to pick from and what to match.
        solver: a name in ``SOLVERS``, or ``"auto"`` to choose by size.
        seed: the same seed gives the same answer.
        trace: note (seconds, divergence) at each step of the solver.
        options: of the solver; ``SOLVERS[name].options`` lists them.
    """
    name = auto(problem) if solver == "auto" else solver
    chosen_solver = look_up(name, options)
    tracer = _Tracer(problem) if trace else None
    key = solver_key(seed, name)
    began = time.perf_counter()
    devices = len(problem.counts)
    if 0 < problem.pick < devices:
        chosen, proven = chosen_solver.run(problem, key, None if tracer is None else tracer.record, **options)
        chosen.sort()
    else:  # nobody or everybody: there is only one choice
        chosen, proven = np.arange(problem.pick), True
        if tracer is not None:
            tracer.record(chosen)
    seconds = time.perf_counter() - began - (tracer.overhead if tracer is not None else 0.0)
    divergence, distance = problem.measure(chosen)
    steps = None if tracer is None else tracer.steps
    return SelectionResult(chosen, divergence, distance, bool(proven), steps, name, seconds)


def look_up(name: str, options: dict[str, Any]) -> Solver:
    """Return a solver of the table, after checking that it exists and takes these options."""
    if name not in SOLVERS:
        raise SolverError(f"no solver is called {name!r}; {suggestion(name)}")
    found = SOLVERS[name]
    if options:
        for option in options:
            if option not in found.options:
                takes = ", ".join(found.options) or "none at all"
                raise SolverError(f"{name} has no option {option!r}; it takes {takes}")
    return found


def suggestion(name: str) -> str:
    """Say which solver somebody may have meant who wrote ``name``."""
    near = get_close_matches(name, SOLVERS, n=1)
    return f"did you mean {near[0]!r}?" if near else f"there are {', '.join(SOLVERS)} and auto"


def solver_key(seed: int, name: str) -> np.uint64:
    """Return the 64 random bits of a solver."""
    if isinstance(seed, bool) or not isinstance(seed, int | np.integer):
        raise SolverError(f"seed must be a whole number, not {seed!r}")
    return np.uint64(rng.key(int(seed), "selection", name))


class _Tracer:
    """Notes when a solver improved, without counting the time the noting takes."""

    def __init__(self, problem: SelectionProblem) -> None:
        self.problem = problem
        self.steps: list[tuple[float, float]] = []
        self.overhead = 0.0
        problem.divergence(np.arange(problem.pick))  # compiled before the clock starts
        self.began = time.perf_counter()

    def record(self, chosen: Indices) -> None:
        now = time.perf_counter()
        self.steps.append((now - self.began - self.overhead, self.problem.divergence(chosen)))
        self.overhead += time.perf_counter() - now
