"""Compile the kernels that tests share, once. Later processes, and those side by side, load them from the cache.

Each solver solves one small problem. A run of one step compiles the selection of whole rounds with the default solver.
What only a few tests need is left to them: they run on all cores, this tool on one.
"""

import numpy as np
from torch import nn

import fedgs
from fedgs.selection import SOLVERS


def main() -> None:
    """Call every solver that has kernels, then simulate one step."""
    draws = np.random.default_rng(0)
    problem = fedgs.SelectionProblem(draws.integers(0, 5, (20, 10)), np.full(10, 0.1), 4)
    for solver in SOLVERS:
        if solver not in ("bayesian", "genetic"):
            fedgs.solve(problem, solver)

    inputs = draws.normal(size=(400, 4)).astype(np.float32)
    machines = np.arange(400) % 10
    federation = fedgs.Federation.from_arrays(inputs, draws.integers(0, 3, 400), devices=machines, factories=2)
    task = fedgs.classification(nn.Linear(4, 3), classes=3)
    fedgs.run(task, federation, rounds=1, iterations=1, batch_size=8, pick=3)


if __name__ == "__main__":
    main()
