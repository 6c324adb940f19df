"""Compile all kernels of selection, once. Later processes, and those side by side, load them from the cache.

Without it nothing is missing: whoever selects for long enough compiles what is needed (``fedgs.compiled``).
"""

import numpy as np

import fedgs
from fedgs.compiled import running
from fedgs.selection import SOLVERS
from fedgs.selection.solve import warm_up
from fedgs.selection.stations import METHODS
from fedgs.selection.team import TeamRule, select_teams


def main() -> None:
    """Call every kernel on a small problem, in all ways that runs and commands do."""
    counts, target = np.random.default_rng(0).multinomial(8, np.full(5, 0.2), size=20), np.full(5, 0.2)
    problem = fedgs.SelectionProblem(counts, target, 4)
    for solver in SOLVERS:
        warm_up(solver, problem)
    with running(compiled=True):
        fedgs.solve(problem, "brute")
        for solver in (*METHODS, "auto"):
            for coverage in (0.0, 0.3):
                rule = TeamRule(4, 1, solver, {}, target, 0, coverage=coverage)
                select_teams(rule, 0, counts, [np.arange(10), np.arange(10, 20)], np.arange(20.0))


if __name__ == "__main__":
    main()
