"""Your own solver: which devices a station takes. Compared with the paper's and with the proven optimum.

A solver is a function of a problem and a random generator; it returns the numbers of the chosen devices.

    python examples/own_solver.py
"""

import numpy as np
from torch import nn

import fedgs


def add_one_by_one(problem: fedgs.SelectionProblem, generator: np.random.Generator, tries: int = 3) -> list[int]:
    """Take the device that helps most, then the next, from ``tries`` random first devices; keep the best team."""
    best, least = [], np.inf
    for first in generator.choice(len(problem.counts), size=tries, replace=False):
        team = [int(first)]
        while len(team) < problem.pick:
            sums = problem.base + problem.counts[team].sum(0) + problem.counts
            distance = np.linalg.norm(sums / sums.sum(1, keepdims=True) - problem.target, axis=1)
            distance[team] = np.inf
            team.append(int(distance.argmin()))
        found = problem.divergence(np.array(team))
        if found < least:
            best, least = team, found
    return best


draws = np.random.default_rng(0)
counts = np.array([draws.multinomial(32, mix) for mix in draws.dirichlet(np.full(10, 0.3), size=30)])
problem = fedgs.SelectionProblem(counts, target=np.full(10, 0.1), pick=6)
for solver in ("random", "gbp-cs", "exact"):
    print(f"{solver:15} divergence {fedgs.solve(problem, solver).divergence:.4f}")
print(f"{'add_one_by_one':15} divergence {fedgs.solve(problem, add_one_by_one, tries=5).divergence:.4f}")

# The same function in a run: every station calls it at every iteration.
machines = np.arange(1_200) % 24
faults = (machines + draws.integers(0, 2, 1_200)) % 6
readings = (draws.normal(size=(1_200, 8)) + 1.5 * np.eye(6, 8)[faults]).astype(np.float32)
federation = fedgs.Federation.from_arrays(readings, faults, devices=machines, factories=2)
task = fedgs.classification(lambda: nn.Linear(8, 6), 6)
options = {"rounds": 5, "iterations": 10, "batch_size": 16, "pick": 4}
own = fedgs.run(task, federation, solver=add_one_by_one, **options)
paper = fedgs.run(task, federation, solver="gbp-cs", **options)
print(fedgs.compare(own, paper, names=["add_one_by_one", "gbp-cs"]))
