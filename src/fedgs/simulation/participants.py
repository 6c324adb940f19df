"""The plan of flat rounds: who takes part, and every device's mini-batches (specification §1.1 and A.1).

In round t the participants are drawn uniformly without replacement from the stream (seed, "participants", t), whatever
the approach: at one seed all approaches see the same devices in the same round, and their curves are paired. A device
shuffles its training samples anew in each local epoch, from (seed, "epochs", t, device), cuts them in order, and keeps
the last short batch.

Participants are sorted by their number of steps, most first: those still busy after s steps are then the first ones of
the list, and training together wastes nothing on those who are done.
"""

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedgs import rng
from fedgs.data import Federation
from fedgs.settings import Settings


@dataclass(frozen=True)
class FlatPlan:
    """Who trains on what in one round. P participants, S steps of the busiest, batches of at most B samples."""

    round: int
    """1 for the first one."""
    devices: NDArray[np.int64]
    """(P,) participants, those with most steps first."""
    samples: NDArray[np.int32]
    """(S, P, B) mini-batches, as indices into the federation's images; −1 beyond a batch's size."""
    sizes: NDArray[np.int32]
    """(S, P) samples of each batch; 0 for a device that is done."""
    epoch_steps: NDArray[np.int64]
    """(P,) batches in one epoch of each."""
    num_samples: NDArray[np.int64]
    """(P,) training samples of each (n_k)."""
    keys: NDArray[np.int64]
    """(P,) numbers for whatever a device draws in this round."""
    divergence: float
    """‖P − P_real‖₂ of the participants' training samples together."""
    state: dict[str, Any] = field(default_factory=dict)
    """The plan's own state after this round, for checkpoints."""
    seconds: float = 0.0
    """How long planning took."""

    @property
    def steps(self) -> NDArray[np.int64]:
        """(P,) SGD steps of each participant."""
        counted: NDArray[np.int64] = (self.sizes > 0).sum(axis=0)
        return counted

    def active(self, step: int) -> int:
        """Return how many participants, the first ones, still train in this step."""
        return int((self.sizes[step] > 0).sum())

    def only(self, places: NDArray[np.int64]) -> "FlatPlan":
        """Return the part of some participants."""
        return FlatPlan(
            self.round, self.devices[places], self.samples[:, places], self.sizes[:, places],
            self.epoch_steps[places], self.num_samples[places], self.keys[places],
            self.divergence, self.state, self.seconds,
        )  # fmt: skip


class ParticipantPlan:
    """Makes the plans of flat rounds, one after the other."""

    def __init__(self, federation: Federation, settings: Settings, purpose: str = "") -> None:
        """``purpose`` names other random streams than a run's own: those of pre-training."""
        self.federation, self.settings = federation, settings
        self._name = (purpose,) if purpose else ()
        self.round = 0
        devices = len(federation)
        self.participants = participants(settings, devices)
        self._target = federation.p_real()
        self._counts = federation.train_counts
        self.selected = np.zeros(devices, np.int64)
        self.last = np.zeros(devices, np.int64)
        self.longest_wait = np.zeros(devices, np.int64)
        self.used = np.zeros(devices, np.int64)

    def next_round(self) -> FlatPlan:
        """Draw the participants of the next round and their batches."""
        began = time.perf_counter()
        seed, batch = self.settings.seed, self.settings.training.batch_size
        epochs, number = self.settings.algorithm.local_epochs, self.round + 1
        drawn = rng.stream(seed, *self._name, "participants", number).permutation(len(self.federation))
        sizes = self.federation.train.sizes
        devices = np.sort(drawn[: self.participants])
        devices = devices[np.argsort(-sizes[devices], kind="stable")]
        epoch_steps = -(-sizes[devices] // batch)
        samples = np.full((epochs * int(epoch_steps[0]), len(devices), batch), -1, np.int32)
        for place, device in enumerate(devices.tolist()):
            own, steps = self.federation.train_indices(device), int(epoch_steps[place])
            draws = rng.stream(seed, *self._name, "epochs", number, device)
            padded = np.full((epochs, steps * batch), -1, np.int32)
            for epoch in range(epochs):
                padded[epoch, : len(own)] = draws.permutation(own)
            samples[: epochs * steps, place] = padded.reshape(epochs * steps, batch)
        self.round = number
        self._count(devices, epochs * sizes[devices])
        pooled = self._counts[devices].sum(axis=0)
        return FlatPlan(
            number, devices, samples, (samples >= 0).sum(axis=2, dtype=np.int32), epoch_steps, sizes[devices],
            np.array([rng.key(seed, *self._name, "dropout", number, int(device)) >> 34 for device in devices]),
            float(np.linalg.norm(pooled / pooled.sum() - self._target)),
            self.state_dict(), time.perf_counter() - began,
        )  # fmt: skip

    def _count(self, devices: NDArray[np.int64], samples: NDArray[np.int64]) -> None:
        self.selected[devices] += 1
        self.used[devices] += samples
        self.longest_wait[devices] = np.maximum(self.longest_wait[devices], self.round - self.last[devices])
        self.last[devices] = self.round

    def state_dict(self) -> dict[str, Any]:
        """Return all that is needed to go on later; turns are counted in rounds."""
        return {
            "round": self.round,
            "selected": self.selected.tolist(),
            "last": self.last.tolist(),
            "longest_wait": self.longest_wait.tolist(),
            "streams": {"iteration": self.round, "samples_used": self.used.tolist()},
        }

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Go on from a saved state."""
        self.round = int(state["round"])
        self.selected, self.last, self.longest_wait = (
            np.asarray(state[key], dtype=np.int64) for key in ("selected", "last", "longest_wait")
        )
        self.used = np.asarray(state["streams"]["samples_used"], dtype=np.int64)


def participants(settings: Settings, devices: int) -> int:
    """Return how many devices take part in a flat round: M·L, unless the settings name a number."""
    wanted = settings.algorithm.devices_per_round
    return min(wanted or settings.federation.factories * settings.selection.pick, devices)
