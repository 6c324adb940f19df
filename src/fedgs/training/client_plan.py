"""What the clients of one round of a baseline train on: who takes part, and every client's mini-batches."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class ClientPlan:
    """Who trains on what in one round. P participants, S steps of the busiest, batches of at most B samples."""

    round: int
    """1 for the first one."""
    devices: NDArray[np.int64]
    """(P,) participants, those with most steps first."""
    samples: NDArray[np.int32]
    """(S, P, B) mini-batches, as indices into the federation's samples; −1 beyond a batch's size."""
    sizes: NDArray[np.int32]
    """(S, P) samples of each batch; 0 for a client that is done."""
    epoch_steps: NDArray[np.int64]
    """(P,) batches in one epoch of each."""
    num_samples: NDArray[np.int64]
    """(P,) training samples of each (n_k)."""
    keys: NDArray[np.int64]
    """(P,) random numbers that belong to this round and client."""
    divergence: float = 0.0
    """‖P − P_real‖₂ of all data of the participants together."""
    state: dict[str, Any] = field(default_factory=dict)
    """The plan's own state after this round, for checkpoints."""
    seconds: float = 0.0
    """How long planning took."""

    @property
    def steps(self) -> NDArray[np.int64]:
        """(P,) local steps of each participant."""
        steps: NDArray[np.int64] = (self.sizes > 0).sum(axis=0)
        return steps

    def active(self, step: int) -> int:
        """Return how many participants, the first ones, still train in this step."""
        return int((self.sizes[step] > 0).sum())

    def only(self, places: NDArray[np.int64]) -> "ClientPlan":
        """Return the part of some participants."""
        return ClientPlan(
            self.round, self.devices[places], self.samples[:, places], self.sizes[:, places],
            self.epoch_steps[places], self.num_samples[places], self.keys[places],
            self.divergence, self.state, self.seconds,
        )  # fmt: skip
