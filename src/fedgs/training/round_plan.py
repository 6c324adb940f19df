"""What one round trains on, known before the model is: the teams of FedGS, or the clients of a baseline."""

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class RoundPlan:
    """Who trains on which samples in each of a round's T iterations, in all M factories.

    Places nobody fills are −1, with size 0.
    """

    round: int
    """1 for the first one."""
    devices: NDArray[np.int32]
    """(iterations, factories, places) the selected devices."""
    samples: NDArray[np.int32]
    """(iterations, factories, places, batch size) their mini-batches, as indices into the federation's images."""
    sizes: NDArray[np.int32]
    """(iterations, factories, places) how many samples of each mini-batch count (n^{m,k}), the first ones."""
    divergence: NDArray[np.float64]
    """(iterations, factories) ‖P_t^m − P_real‖₂ of the selected devices; NaN where there was nobody."""
    events: dict[str, int] = field(default_factory=dict)
    """How often something happened that is not in the paper: devices offline, moved, dropped out, ..."""
    state: dict[str, Any] = field(default_factory=dict)
    """The plan's own state after this round, for checkpoints."""
    seconds: float = 0.0
    """How long the selections of all factories took, one after the other and without compiling."""
    window_divergence: NDArray[np.float64] = field(default_factory=lambda: np.empty(0))
    """(factories,) the divergence of all samples of a factory's round pooled; NaN where there was nobody."""
    missing_classes: NDArray[np.float64] = field(default_factory=lambda: np.empty((0, 0)))
    """(iterations, factories) how many classes of P_real a super node had no sample of; NaN where there was nobody."""
    shifts: NDArray[np.float32] | None = None
    """(iterations, factories, classes): added to the logits in training (fedgs.training.calibration), or None."""
    seen: NDArray[np.int64] = field(default_factory=lambda: np.empty((0, 0), np.int64))
    """(factories, classes) samples that the teams of the round trained on."""

    @property
    def totals(self) -> NDArray[np.int64]:
        """(iterations, factories) samples of each super node (n^m)."""
        totals: NDArray[np.int64] = self.sizes.sum(axis=2, dtype=np.int64)
        return totals

    @property
    def trained(self) -> NDArray[np.bool_]:
        """(factories,) whether a factory made at least one step in this round."""
        return np.asarray(self.totals.any(axis=0))

    def union(self, iteration: int, factory: int) -> NDArray[np.int64]:
        """Return the samples of a super node: the counting parts of its devices' batches, one after the other."""
        samples, sizes = self.samples[iteration, factory], self.sizes[iteration, factory]
        counting = np.arange(samples.shape[-1]) < sizes[:, None]
        union: NDArray[np.int64] = samples[counting].astype(np.int64)
        return union

    def last_samples(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the devices that trained in this round, and (devices, batch size) what each trained on last."""
        places = np.flatnonzero(self.sizes.ravel() > 0)[::-1]
        devices, first = np.unique(self.devices.ravel()[places], return_index=True)
        last = places[first]
        samples = self.samples.reshape(-1, self.samples.shape[-1])[last].astype(np.int64)
        samples[np.arange(samples.shape[1]) >= self.sizes.ravel()[last][:, None]] = -1
        return devices.astype(np.int64), samples

    def only(self, factories: NDArray[np.int64]) -> "RoundPlan":
        """Return the part of some factories."""
        return replace(
            self, devices=self.devices[:, factories], samples=self.samples[:, factories],
            sizes=self.sizes[:, factories], divergence=self.divergence[:, factories],
            shifts=None if self.shifts is None else self.shifts[:, factories],
        )  # fmt: skip


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

    def last_samples(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the participants, and (participants, …) all samples of each: those of its first epoch."""
        own = np.where(np.arange(len(self.samples))[:, None] < self.epoch_steps, 1, 0)[..., None]
        samples = np.where(own, self.samples, -1)[: int(self.epoch_steps.max())].astype(np.int64)
        return self.devices, samples.swapaxes(0, 1).reshape(len(self.devices), -1)

    def only(self, places: NDArray[np.int64]) -> "ClientPlan":
        """Return the part of some participants."""
        return replace(
            self, devices=self.devices[places], samples=self.samples[:, places], sizes=self.sizes[:, places],
            epoch_steps=self.epoch_steps[places], num_samples=self.num_samples[places], keys=self.keys[places],
        )  # fmt: skip
