"""What a solver may know of the candidates beside their next mini-batches: their turns, and what training has shown.

FedGS's own problem needs none of it. Policies of other papers do: Fed-CBS counts turns, Oort and Power-of-Choice go by
losses, DivFL and HiCS-FL by gradients. ``Solver.learns`` in the table of solvers says which. Without feedback a
solver takes all candidates as unknown.
"""

from dataclasses import dataclass, field, replace

import numpy as np

from fedgs.selection.problem import Floats, Indices, SelectionProblem


@dataclass(frozen=True, eq=False)
class Feedback:
    """Of N candidates; losses and gradients are those of the last round each took part in, NaN before its first."""

    turn: int
    """The number of this selection, 1 for the first of the run; losses and gradients change once a round, and policies
    that learn from them count rounds instead."""
    selected: Floats
    """(N,) how often each was selected; with FedGS in iterations, also where ``turn`` is a round."""
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
    utility: Floats = field(default_factory=lambda: np.zeros(0))
    """(earlier rounds,) n_i √(mean ℓ²) of the devices that took part, summed: Oort's measure of what a round gave."""
    turns: int = 0
    """How many turns the run has; 0: nobody knows."""

    def __post_init__(self) -> None:
        """Make the arrays read-only: other selections see them too."""
        for name, values in vars(self).items():
            if isinstance(values, np.ndarray):
                view = values.view()
                view.flags.writeable = False
                object.__setattr__(self, name, view)

    @classmethod
    def nothing(cls, devices: int) -> "Feedback":
        """Return what is known before the first selection."""
        unknown, zeros = np.full(devices, np.nan), np.zeros(devices)
        return cls(1, zeros, zeros, np.ones(devices), unknown, unknown, np.full((devices, 1), np.nan))

    def of(self, rows: Indices) -> "Feedback":
        """Return the feedback of some of the candidates."""
        arrays = ("selected", "last", "seconds", "loss", "rms_loss", "gradient")
        return replace(self, **{name: getattr(self, name)[rows] for name in arrays})


def feedback_of(problem: SelectionProblem) -> Feedback:
    """Return what is known of the candidates of a problem."""
    found: Feedback | None = problem.feedback
    return Feedback.nothing(len(problem.counts)) if found is None else found
