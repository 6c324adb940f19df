"""What a solver may know of the candidates beside their next mini-batches: their turns, and what training has shown.

FedGS's own problem needs none of it. Policies of other papers do: Fed-CBS counts turns, Oort and Power-of-Choice go by
losses, DivFL and HiCS-FL by gradients. ``Solver.learns`` in the table of solvers says which. Without feedback a
solver takes all candidates as unknown.
"""

from dataclasses import dataclass, replace

import numpy as np

from fedgs.selection.problem import Floats, Indices, SelectionProblem


@dataclass(frozen=True, eq=False)
class Feedback:
    """Of N candidates; losses and gradients are those of the last round each took part in, NaN before its first."""

    turn: int
    """The number of this selection, 1 for the first of the run; losses and gradients change once a round, and policies
    that learn from them count rounds instead."""
    selected: Floats
    """(N,) how often each was selected."""
    last: Floats
    """(N,) the turn in which each was last selected; 0: never."""
    seconds: Floats
    """(N,) of a turn of each, in any unit."""
    loss: Floats
    """(N,) mean loss."""
    rms_loss: Floats
    """(N,) root of the mean squared loss."""
    gradient: Floats
    """(N, outputs) mean gradient of the loss with respect to the network's outputs."""
    utility: Floats
    """(earlier rounds,) n_i √(mean ℓ²) of the devices that took part, summed: Oort's measure of what a round gave."""
    turns: int
    """How many turns the run has; 0: nobody knows."""

    @classmethod
    def nothing(cls, devices: int) -> "Feedback":
        """Return what is known before the first selection."""
        unknown, zeros = np.full(devices, np.nan), np.zeros(devices)
        ones, none = np.ones(devices), np.zeros(0)
        return cls(1, zeros, zeros, ones, unknown, unknown, np.full((devices, 1), np.nan), none, 0)

    def of(self, rows: Indices) -> "Feedback":
        """Return the feedback of some of the candidates."""
        arrays = ("selected", "last", "seconds", "loss", "rms_loss", "gradient")
        return replace(self, **{name: getattr(self, name)[rows] for name in arrays})


def feedback_of(problem: SelectionProblem) -> Feedback:
    """Return what is known of the candidates of a problem."""
    found: Feedback | None = problem.feedback
    return Feedback.nothing(len(problem.counts)) if found is None else found
