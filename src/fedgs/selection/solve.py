"""``solve``: one problem in, one answer out, by any solver of the table ``SOLVERS``.

A solver is a function ``run(problem, key, record, **options) -> (chosen, proven)``. It may assume 0 < pick < N. ``key``
is 64 bits of randomness that belong to it alone, ``record(chosen)`` notes a step for the trace (None: there is none).
Adding one is a file with such a function and a line in the table below.
"""

import time
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import cached_property
from inspect import signature
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import ArrayLike

from fedgs import rng
from fedgs.compiled import WhereItPays, running
from fedgs.errors import FedgsError, SolverError, suggestion
from fedgs.imports import load_object
from fedgs.selection.divfl import solve_divfl
from fedgs.selection.exact import solve_brute, solve_exact
from fedgs.selection.fed_cbs import solve_fed_cbs
from fedgs.selection.fedcgd import solve_fedcgd
from fedgs.selection.gbp_cs import Start, solve_gbp_cs
from fedgs.selection.group_fel import solve_group_fel
from fedgs.selection.hics_fl import solve_hics_fl
from fedgs.selection.large import solve_large
from fedgs.selection.oort import solve_oort
from fedgs.selection.power_of_choice import solve_power_of_choice
from fedgs.selection.problem import NO_LIMIT, Indices, SelectionProblem, SelectionResult
from fedgs.selection.sampling import (
    solve_bayesian,
    solve_genetic,
    solve_monte_carlo,
    solve_random,
    solve_random_by_data,
)
from fedgs.selection.swap import solve_multistart, solve_swap

OwnSolver = Callable[..., Any]
"""f(problem, generator, **options) → the numbers of the chosen devices, or what :func:`solve` returned; ``f.learns`` as
``Solver.learns``."""


@dataclass(frozen=True)
class Solver:
    """What the table knows of a solver."""

    run: Callable[..., tuple[Indices, bool]]
    summary: str
    bonus: bool = True
    """Whether it heeds the fairness term."""
    ratio: bool = True
    """Whether it minimises the divergence itself when batch sizes differ (else the paper's y with their mean)."""
    allowed: Mapping[str, tuple[float, float] | tuple[str, ...]] = field(default_factory=dict)
    """What its options may be: from least to most, or one of some words."""
    kernels: bool = True
    """Whether its work is done in kernels."""
    learns: Literal["", "turns", "loss", "gradient"] = ""
    """What it goes by beside the problem (:mod:`fedgs.selection.feedback`); losses and gradients come from training."""
    name: str = ""
    """Of one that is not in the table."""

    @cached_property
    def options(self) -> dict[str, Any]:
        """Names and default values of its options."""
        parameters = signature(self.run).parameters.values()
        return {p.name: p.default for p in parameters if p.kind is p.KEYWORD_ONLY}


SOLVERS: dict[str, Solver] = {
    "random": Solver(solve_random, "uniformly at random", bonus=False, ratio=False),
    "random-by-data": Solver(
        solve_random_by_data, "at random, chances in proportion to data", bonus=False, ratio=False
    ),
    "monte-carlo": Solver(solve_monte_carlo, "best of 1000 random draws", allowed={"draws": (1, NO_LIMIT)}),
    "bayesian": Solver(
        solve_bayesian,
        "Bayesian optimisation, 5 + 25 trials",
        allowed={"initial": (1, NO_LIMIT), "iterations": (0, NO_LIMIT)},
        kernels=False,
    ),
    "genetic": Solver(
        solve_genetic,
        "evolution, population 100, 100 generations",
        allowed={"population": (4, NO_LIMIT), "generations": (0, NO_LIMIT), "mutation": (0.0, 1.0)},
        kernels=False,
    ),
    "brute": Solver(solve_brute, "every choice there is"),
    "gbp-cs": Solver(
        solve_gbp_cs, "the paper's gradient-based permutation", ratio=False, allowed={"start": get_args(Start)}
    ),
    "swap": Solver(solve_swap, "best-swap descent from the paper's start"),
    "multistart": Solver(
        solve_multistart, "best-swap descent from a greedy and 16 random starts", allowed={"starts": (0, NO_LIMIT)}
    ),
    "exact": Solver(
        solve_exact,
        "proven optimum by a sphere decoder",
        allowed={"budget": (0, NO_LIMIT), "starts": (0, NO_LIMIT)},
    ),
    "large": Solver(
        solve_large,
        "greedy fill and repair, for hundreds of devices and more",
        allowed={"repairs": (0, NO_LIMIT), "seconds": (1e-6, 1e9)},
    ),
}
"""Ways to solve FedGS's selection problem."""


def _rival(run: Callable[..., tuple[Indices, bool]], summary: str, learns: Any = "", **allowed: Any) -> Solver:
    """Return the entry of a policy of another paper; it takes neither bonus nor match as its aim."""
    return Solver(run, summary, bonus=False, ratio=False, allowed=allowed, kernels=False, learns=learns)


RIVALS: dict[str, Solver] = {
    "fed-cbs": _rival(
        solve_fed_cbs,
        "Fed-CBS: one after the other, even classes likelier",
        "turns",
        beta=(0.0, 100.0),
        exploration=(0.0, 1e9),
    ),
    "power-of-choice": _rival(
        solve_power_of_choice, "largest losses among candidates drawn by data", "loss", candidates=(0, NO_LIMIT)
    ),
    "oort": _rival(
        solve_oort, "Oort: large losses, fast devices, some unknown ones", "loss",
        alpha=(0.0, 100.0), epsilon=(0.0, 1.0), decay=(0.0, 1.0), least_epsilon=(0.0, 1.0), cutoff=(0.0, 1.0),
        preferred=(0.0, 100.0), pacer=(0.0, 100.0), window=(1, NO_LIMIT),
    ),
    "fedcgd": _rival(
        solve_fedcgd, "FedCGD: class mix near the target, many samples", sigma=(0.0, 1e9), candidates=(0, NO_LIMIT)
    ),
    "divfl": _rival(solve_divfl, "DivFL: gradients that stand for those of all", "gradient", epsilon=(1e-9, 1.0)),
    "hics-fl": _rival(
        solve_hics_fl, "HiCS-FL: clusters by gradients, even devices likelier", "gradient",
        temperature=(1e-6, 1e6), entropy_weight=(0.0, 1e6), gamma=(0.0, 1e3), turns=(0, NO_LIMIT),
    ),
    "group-fel": _rival(solve_group_fel, "Group-FEL: one of groups with even classes", power=(0.0, 100.0)),
}  # fmt: skip
"""Policies of other papers."""
SOLVERS |= RIVALS

EXACT_UP_TO = 60
"""``auto`` tries to prove the optimum up to this many devices (about 2 ms there at the paper's pick), …"""
MULTISTART_UP_TO = 200
"""… descends from many starts up to this many, and goes over to ``large`` beyond."""


def auto(devices: int, bonus: bool) -> str:
    """Return the name of the solver that suits so many devices.

    A bonus makes the proof long, up to 40 times, and nearly always what is found without it is the optimum: such a
    problem is not proven.
    """
    if devices <= EXACT_UP_TO and not bonus:
        return "exact"
    return "multistart" if devices <= MULTISTART_UP_TO else "large"


def resolve_solver(solver: "str | Solver | OwnSolver") -> "str | Solver":
    """Return a solver's name, or the solver that ``package.module:name`` or a function of the user's own stands for."""
    if isinstance(solver, Solver):
        return solver
    if isinstance(solver, str) and ":" not in solver:
        return solver
    if not isinstance(solver, str) and not callable(solver):
        raise SolverError(f"no solver is called {solver!r}; {suggestion(solver, [*SOLVERS, 'auto'])}")
    name = solver if isinstance(solver, str) else getattr(solver, "__name__", type(solver).__name__)
    function: Any = load_object(solver, "selection.solver") if isinstance(solver, str) else solver
    if isinstance(function, Solver):
        return function
    if not callable(function):
        raise SolverError(f"solver {name!r} is no function of a problem and a random generator")

    def run(problem: SelectionProblem, key: np.uint64, record: Any, **options: Any) -> tuple[Indices, bool]:
        try:
            given = function(problem, np.random.Generator(np.random.Philox(key=int(key))), **options)
            found = np.asarray(given.chosen if isinstance(given, SelectionResult) else given)
        except FedgsError:
            raise
        except Exception as error:  # whatever somebody's own function may raise
            with_options = f" with selection.options={options}" if options else ""
            reason = " ".join(f"{type(error).__name__}: {error}".split())  # one line, however many it has
            raise SolverError(f"solver {name!r}{with_options} failed: {reason}") from error
        devices = len(problem.counts)
        fits = found.shape == (problem.pick,) and found.dtype.kind in "iu" and len(np.unique(found)) == problem.pick
        if not fits or (problem.pick and not 0 <= found.min() <= found.max() < devices):
            raise SolverError(
                f"solver {name!r} gave {found.tolist() if found.size < 30 else found.shape}; it must give "
                f"{problem.pick} "
                f"different numbers from 0 to {devices - 1}"
            )
        return found.astype(np.int64), False

    return Solver(run, "of your own", kernels=False, name=str(name), learns=getattr(function, "learns", ""))


def solver_options(selection: Any) -> dict[str, Any]:
    """Return the options of the solver of some settings."""
    options = dict(selection.options)
    if selection.solver == "gbp-cs" and selection.start != "mpinv":
        options.setdefault("start", selection.start)
    return options


def solve(
    problem: SelectionProblem,
    solver: "str | Solver | OwnSolver" = "exact",
    seed: int = 0,
    *,
    trace: bool = False,
    **options: Any,
) -> SelectionResult:
    """Select ``problem.pick`` devices.

    Args:
        problem: the candidates and the target.
        solver: a name in ``SOLVERS``, ``"auto"`` to choose by size, or a function of your own from a problem and a
            ``numpy.random.Generator`` to the numbers of the devices.
        seed: the same seed gives the same answer.
        trace: record (seconds, divergence) at each step of the solver.
        options: options of the solver; ``SOLVERS[name].options`` lists them.

    Examples:
        >>> import fedgs
        >>> problem = fedgs.SelectionProblem([[4, 0], [2, 2], [1, 3]], target=[0.25, 0.75], pick=1)
        >>> found = fedgs.solve(problem)
        >>> found.chosen.tolist(), found.proven
        ([2], True)
    """
    return solve_timed(problem, solver, seed, time.perf_counter, trace=trace, **options)


def solve_timed(
    problem: SelectionProblem,
    solver: "str | Solver | OwnSolver",
    seed: int,
    clock: Callable[[], float],
    *,
    trace: bool = False,
    **options: Any,
) -> SelectionResult:
    """Solve as :func:`solve` does; ``seconds`` are those of a clock."""
    wanted = _auto(problem) if isinstance(solver, str) and solver == "auto" else resolve_solver(solver)
    chosen_solver = look_up(wanted, options)
    name = wanted if isinstance(wanted, str) else wanted.name
    key = solver_key(seed, name)
    with WhereItPays(name, lambda: _try(chosen_solver, options)) if chosen_solver.kernels else nullcontext():
        tracer = _Tracer(problem, clock) if trace else None
        began = clock()
        if 0 < problem.pick < len(problem.counts):
            chosen, proven = chosen_solver.run(problem, key, None if tracer is None else tracer.record, **options)
            chosen.sort()
        else:  # no device or all devices: there is only one choice
            chosen, proven = np.arange(problem.pick), True
            if tracer is not None:
                tracer.record(chosen)
        seconds = clock() - began - (tracer.overhead if tracer is not None else 0.0)
        divergence, distance = problem.measure_unchecked(chosen)
    steps = None if tracer is None else tracer.steps
    return SelectionResult(chosen, divergence, distance, bool(proven), steps, name, seconds)


def _try(solver: Solver, options: dict[str, Any]) -> None:
    """Call all kernels of a solver, on a tiny problem."""
    tiny = SelectionProblem(np.eye(3), np.full(3, 1 / 3), 1)
    solver.run(tiny, np.uint64(0), tiny.measure_unchecked, **options)
    solver.run(tiny, np.uint64(0), None, **options)


def _auto(problem: SelectionProblem) -> str:
    return auto(len(problem.counts), bool(problem.bonus.any()))


def choose_subset(
    matrix: ArrayLike, target: ArrayLike, pick: int, solver: str = "auto", seed: int = 0, **options: Any
) -> SelectionResult:
    """Minimise ‖Mx − y‖₂, the ``distance`` of the result, over 0-1 vectors x with exactly ``pick`` ones.

    The paper notes that its optimiser serves any 0-1 programme with a fixed number of ones, "such as game matching".

    Args:
        matrix: M, (rows, columns), any finite real numbers.
        target: y, one number a row.
        pick: how many columns to take.
        solver: a name in ``SOLVERS``, or ``"auto"`` to choose by size.
        seed: the same seed gives the same answer.
        options: of the solver.
    """
    return solve(SelectionProblem.of_matrix(matrix, target, pick), solver, seed, **options)


def look_up(name: str | Solver, options: dict[str, Any]) -> Solver:
    """Return a solver of the table, after checking that it exists and takes these options."""
    if isinstance(name, Solver):
        return name
    if not isinstance(name, str) or name not in SOLVERS:
        raise SolverError(f"no solver is called {name!r}; {suggestion(name, [*SOLVERS, 'auto'])}")
    found = SOLVERS[name]
    if options:
        known = found.options
        for option, value in options.items():
            if option not in known:
                raise SolverError(f"{name} has no option {option!r}; {suggestion(option, known, 'it takes')}")
            _check_value(name, option, value, known[option], found.allowed.get(option))
    return found


def _check_value(solver: str, option: str, value: Any, default: Any, allowed: tuple[Any, ...] | None) -> None:
    if value is None and default is None:
        return
    if isinstance(default, str):
        if allowed is not None and value not in allowed:
            raise SolverError(f"{solver} cannot work with {option}={value!r}; it is one of {', '.join(allowed)}")
        return
    whole = isinstance(default, int)
    kinds = (int, np.integer) if whole else (int, float, np.integer, np.floating)
    least, most = allowed or (-NO_LIMIT, NO_LIMIT)
    if isinstance(value, bool) or not isinstance(value, kinds) or not least <= value <= most:
        what = "a whole number" if whole else "a number"
        bounds = f"of {least:g} or more" if most >= NO_LIMIT else f"from {least:g} to {most:g}"
        raise SolverError(f"{solver} cannot work with {option}={value!r}; give {what} {bounds}")


def solver_key(seed: int, name: str) -> np.uint64:
    """Return the 64 random bits of a solver."""
    if isinstance(seed, bool) or not isinstance(seed, int | np.integer):
        raise SolverError(f"seed must be a whole number, not {seed!r}")
    return np.uint64(rng.key(int(seed), "selection", name))


def warm_up(name: str, problem: SelectionProblem) -> None:
    """Load or compile the kernels of a solver, so that the time of the real problem is its own."""
    if name == "auto":
        name = _auto(problem)
    if name in SOLVERS and SOLVERS[name].kernels:
        with running(compiled=True), WhereItPays(name, lambda: _try(SOLVERS[name], {})):
            pass


class _Tracer:
    """Notes when a solver improved, without counting the time the noting takes."""

    def __init__(self, problem: SelectionProblem, clock: Callable[[], float]) -> None:
        self.problem, self.clock = problem, clock
        self.steps: list[tuple[float, float]] = []
        self.overhead = 0.0
        self.began = clock()

    def record(self, chosen: Indices) -> None:
        now = self.clock()
        self.steps.append((now - self.began - self.overhead, self.problem.measure_unchecked(chosen)[0]))
        self.overhead += self.clock() - now
