"""Drift: the class distribution a device draws from changes over time, so that adaptivity can be tested.

Finite data make it a label shift on the device's own samples. Device k starts from its own class distribution
p_k and moves towards a new one, r_k, drawn once from a Dirichlet law over the classes it owns (a camera that reads
parcels for other towns from today on). At time t the device draws from

    q_k(t) = (1 − w(t)) p_k + w(t) r_k,

with the weight w(t) given by a named schedule:

=============  ==============================================================================
``sudden``     0 before ``start``, 1 from then on
``gradual``    0 before ``start``, rising in a straight line to 1 at ``start + length``
``recurring``  0 before ``start``, then 1 and 0 in turns of ``length`` each
=============  ==============================================================================

Time is counted in mini-batches that have come out of the device's own stream, not in iterations of the others:
a schedule is then a property of (seed, device) alone. In mode ``fresh`` the two are the same thing; in mode
``sticky`` a device that waits with its batch does not drift. With w = 0 a stream equals
the stream without drift, batch for batch.
"""

from dataclasses import dataclass
from math import isfinite
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from fedgs.errors import ConfigError
from fedgs.rng import stream

DriftKind = Literal["sudden", "gradual", "recurring"]
DRIFTS: tuple[str, ...] = get_args(DriftKind)


@dataclass(frozen=True)
class Drift:
    """A drift schedule; times are in mini-batches of the device."""

    kind: DriftKind
    start: float = 100.0
    """When the first change begins."""
    length: float = 100.0
    """``gradual``: how long the change takes; ``recurring``: how long each regime lasts; ``sudden``: not used."""
    alpha: float = 0.3
    """Concentration of the Dirichlet law of r_k: small is far from uniform, large is nearly uniform."""
    spread: float = 0.0
    """Each device starts later by its own seeded delay, uniform between 0 and this."""

    def __post_init__(self) -> None:
        if self.kind not in DRIFTS:
            raise ConfigError(f"no drift {self.kind!r}; choose one of {', '.join(DRIFTS)}")
        for key in ("start", "length", "alpha", "spread"):
            given = getattr(self, key)
            try:
                value = float(given)
            except (TypeError, ValueError):
                raise ConfigError(f"drift {key} is {given!r}; it must be a number") from None
            if not isfinite(value) or value < 0 or (value == 0 and key in ("length", "alpha")):
                least = "greater than zero" if key in ("length", "alpha") else "zero or more"
                raise ConfigError(f"drift {key} is {given}; it must be finite and {least}")
            object.__setattr__(self, key, value)  # 10 and 10.0 are the same schedule and must read the same

    def weight(self, time: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return w(t) for times counted from the device's own start of counting (its delay already taken off)."""
        since = np.asarray(time, dtype=np.float64) - self.start
        if self.kind == "sudden":
            return np.where(since >= 0, 1.0, 0.0)
        if self.kind == "gradual":
            return np.clip(since / self.length, 0.0, 1.0)
        return np.where((since >= 0) & (np.floor(since / self.length) % 2 == 0), 1.0, 0.0)

    def delay(self, seed: int, device: str) -> float:
        """Return how much later than the schedule this device drifts."""
        return float(self.spread * stream(seed, "drift", "delay", device).random())

    def target(self, seed: int, device: str, counts: NDArray[Any]) -> NDArray[np.float64]:
        """Return r_k, (classes,): zero for classes the device has no sample of."""
        owned = np.flatnonzero(counts)
        share = np.zeros(len(counts))
        share[owned] = stream(seed, "drift", "target", device).dirichlet(np.full(len(owned), self.alpha))
        return share
