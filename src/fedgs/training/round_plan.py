"""What one round trains on: the whole schedule of T iterations in all M factories, known before the model is."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class RoundPlan:
    """Who trains on which samples in each iteration of a round. Places nobody fills are −1, with size 0."""

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

    def only(self, factories: NDArray[np.int64]) -> "RoundPlan":
        """Return the part of some factories."""
        return RoundPlan(
            self.round,
            self.devices[:, factories],
            self.samples[:, factories],
            self.sizes[:, factories],
            self.divergence[:, factories],
            self.events,
            self.state,
            self.seconds,
            shifts=None if self.shifts is None else self.shifts[:, factories],
        )
