"""The selection problem and its solvers: numpy in, indices out.

    from fedgs.selection import SelectionProblem, solve, SOLVERS

    problem = SelectionProblem(counts, target, pick, base=None, bonus=None)
    result = solve(problem, solver="exact", seed=0)
    result.chosen, result.divergence, result.distance, result.proven

``solve_batch`` takes many factories at once, ``choose_subset`` any real matrix. One file an idea: ``problem`` and
``quadratic`` hold the formulas, ``gbp_cs`` the paper's algorithm, ``exact`` the proof.
"""

from fedgs.selection.batch import solve_batch
from fedgs.selection.problem import SelectionProblem, SelectionResult
from fedgs.selection.solve import SOLVERS, Solver, choose_subset, solve

__all__ = [
    "SOLVERS",
    "SelectionProblem",
    "SelectionResult",
    "Solver",
    "choose_subset",
    "solve",
    "solve_batch",
]
