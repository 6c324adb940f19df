"""``bayesian``: Bayesian optimisation with the library of that name (Nogueira, 2014), as in the paper (section VII-A).

Every device gets a continuous weight in [0, 1] and the ``pick`` heaviest are the choice, so that every choice can be
reached; a Gaussian process over the weights proposes what to try next. 5 initial points, 25 iterations.
Its acquisition function (upper confidence bound) is maximised over 10,000 random weightings; the library's gradient
polish of the best of them is left out, since a choice does not change with a small change of the weights and the
polish is nine tenths of the time. Needs the extra ``fedgs[bayesian]``.
"""

import warnings
from typing import Any

import numpy as np

from fedgs.errors import MissingDependencyError
from fedgs.selection.gbp_cs import largest_entries
from fedgs.selection.problem import Indices, Key, Record, SelectionProblem
from fedgs.selection.rows import as_rows, score_rows


def solve_bayesian(
    problem: SelectionProblem, key: Key, record: Record | None, *, initial: int = 5, iterations: int = 25
) -> tuple[Indices, bool]:
    """Try ``initial`` random weightings, then ``iterations`` that a Gaussian process proposes."""
    try:
        from bayes_opt import BayesianOptimization
        from bayes_opt.acquisition import UpperConfidenceBound
    except ImportError:
        raise MissingDependencyError(
            "the bayesian solver needs the bayesian-optimization library: pip install 'fedgs[bayesian]'"
        ) from None
    rows = as_rows(problem)
    names = [f"device{i}" for i in range(len(problem.counts))]
    best: list[tuple[float, Indices]] = []

    def fitness(**weights: float) -> float:
        chosen = largest_entries(np.array([weights[name] for name in names]), problem.pick)
        found = float(score_rows(rows, chosen))
        if not best or found < best[0][0]:
            best[:] = [(found, chosen)]
            if record is not None:
                record(chosen)
        return -found

    class WithoutPolish(UpperConfidenceBound):  # type: ignore[misc, unused-ignore]
        def suggest(self, *args: Any, **kwargs: Any) -> Any:
            return super().suggest(*args, **(kwargs | {"n_smart": 0}))

    optimiser = BayesianOptimization(
        fitness,
        dict.fromkeys(names, (0.0, 1.0)),
        acquisition_function=WithoutPolish(),
        random_state=int(key) % 2**32,
        verbose=0,
        allow_duplicate_points=True,
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the Gaussian process remarks on its own fit at every step
        optimiser.maximize(init_points=initial, n_iter=iterations)
    if record is not None:
        record(best[0][1])
    return best[0][1], False
