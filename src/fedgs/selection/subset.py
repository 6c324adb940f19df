"""``choose_subset``: the same machinery for other questions.

The paper notes that its optimiser serves any 0-1 programme with a fixed number of ones, "such as game matching". This
is that face: pick exactly ``pick`` columns of any real matrix whose sum comes closest to a target vector.
"""

from dataclasses import dataclass
from typing import Any

from numpy.typing import ArrayLike

from fedgs.selection.problem import Indices, SelectionProblem
from fedgs.selection.solve import solve


@dataclass(frozen=True, slots=True)
class SubsetResult:
    """The columns picked and how close their sum comes."""

    chosen: Indices
    distance: float
    proven: bool
    solver: str
    seconds: float
    trace: list[tuple[float, float]] | None = None
    """(seconds, distance) at each step when asked for with ``trace=True``."""


def choose_subset(
    matrix: ArrayLike, target: ArrayLike, pick: int, solver: str = "auto", seed: int = 0, **options: Any
) -> SubsetResult:
    """Minimise ‖Mx − y‖₂ over 0-1 vectors x with exactly ``pick`` ones.

    Args:
        matrix: M, (rows, columns), any finite real numbers.
        target: y, one number a row.
        pick: how many columns to take.
        solver: a name in ``SOLVERS``, or ``"auto"`` to choose by size.
        seed: the same seed gives the same answer.
        options: of the solver.
    """
    result = solve(SelectionProblem.of_matrix(matrix, target, pick), solver, seed, **options)
    return SubsetResult(result.chosen, result.distance, result.proven, result.solver, result.seconds, result.trace)
