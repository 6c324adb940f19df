"""The best T and L for a park: the least time to a given loss, among those with which FedGS beats FedAvg.

The convergence bound is 1/(R·ηφ·E), where E(T) = T − ρδh(T)/(ηφε²) are the iterations a round is worth once drift is
taken off. To bring the bound down to a given loss takes R ∝ 1/E rounds of T_FedGS seconds each, so the time is
proportional to

    T_FedGS(T, L) / E(T, L) ,        seconds per effective iteration,

which is what :func:`best_schedule` minimises, over whole T and L with E > 0 and speedup·T_FedGS < T_FedAvg. Long rounds
share one trip to the top server among many iterations; drift makes them worth less.

L enters through the time, the condition and δ. The paper gives no δ(L); since the super node's batch is a mean over L
devices, δ is taken to fall with √L from the value at the park's own L, as the mean of independent draws does.
Measured values can take its place (``divergence``). Without constants there is no drift to weigh against: then T alone
is varied, E = T, and the best round is the longest that is allowed.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedgs.network.checks import positive, whole
from fedgs.network.convergence import BoundConstants, drift_weight, drifts
from fedgs.network.links import ParkNetwork
from fedgs.network.round_time import Park, RoundTime, fedavg_round, fedgs_round


@dataclass(frozen=True)
class Schedule:
    """A choice of T and L, and what it costs."""

    iterations: int
    """T"""
    pick: int
    """L"""
    seconds: float
    """T_FedGS of a round"""
    fedavg_seconds: float
    """T_FedAvg of a round with the same T and L"""
    effective_iterations: float
    """E, what the round is worth; T where no constants are given"""

    @property
    def seconds_per_iteration(self) -> float:
        """Seconds per effective iteration: the objective."""
        return self.seconds / self.effective_iterations


def best_schedule(
    park: Park,
    network: ParkNetwork,
    constants: BoundConstants | None = None,
    *,
    most_iterations: int = 500,
    speedup: float = 1.0,
    divergence: Callable[[int], float] | None = None,
    picks: Sequence[int] | None = None,
) -> Schedule | None:
    """Return the T and L of least seconds per effective iteration; None where no T and L meet the condition.

    Args:
        park: its T is not looked at, its L is where ``constants.divergence`` was measured.
        network: the links.
        constants: of the bound; without them only T is varied.
        most_iterations: the longest round to consider.
        speedup: how many times as fast as FedAvg a round must be.
        divergence: δ for each L in place of the square root.
        picks: the L to consider; all that a factory has devices for, when not given.
    """
    whole("most_iterations", most_iterations)
    positive("speedup", speedup)
    if picks is None:
        picks = [park.pick] if constants is None else range(1, park.devices_per_factory + 1)
    best: Schedule | None = None
    for pick in picks:
        found = _best_round(
            park.but(pick=pick), network, with_pick(constants, park, pick, divergence), most_iterations, speedup
        )
        if found is not None and (best is None or found.seconds_per_iteration < best.seconds_per_iteration):
            best = found
    return best


def objective(
    park: Park, network: ParkNetwork, constants: BoundConstants | None, most_iterations: int
) -> NDArray[np.float64]:
    """Return seconds per effective iteration for T = 1, 2, …; infinite where the bound is void."""
    fixed, each = _fixed_and_each(fedgs_round, park, network)
    lengths = np.arange(1, most_iterations + 1)
    worth = _worth(constants, most_iterations)
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(worth > 0, (fixed + each * lengths) / worth, math.inf)


def _best_round(
    park: Park, network: ParkNetwork, constants: BoundConstants | None, most: int, speedup: float
) -> Schedule | None:
    fixed, each = _fixed_and_each(fedgs_round, park, network)
    flat_fixed, flat_each = _fixed_and_each(fedavg_round, park, network)
    lengths = np.arange(1, most + 1)
    seconds, flat = fixed + each * lengths, flat_fixed + flat_each * lengths
    costs = np.where(seconds * speedup < flat, objective(park, network, constants, most), math.inf)
    place = int(np.argmin(costs))
    if not math.isfinite(costs[place]):
        return None
    worth = float(_worth(constants, most)[place])
    return Schedule(place + 1, park.pick, float(seconds[place]), float(flat[place]), worth)


def _fixed_and_each(
    time: Callable[[Park, ParkNetwork], RoundTime], park: Park, network: ParkNetwork
) -> tuple[float, float]:
    """Return what a round costs once, and what each of its iterations adds."""
    one = time(park.but(iterations=1), network)
    return one.top, one.internal + one.selection + one.computation


def _worth(constants: BoundConstants | None, most: int) -> NDArray[np.float64]:
    """Return the effective iterations of T = 1, 2, …"""
    lengths = np.arange(1, most + 1, dtype=np.float64)
    if constants is None or constants.divergence == 0:
        return lengths
    with np.errstate(over="ignore"):  # an overflow is void too
        return lengths - drift_weight(constants) * drifts(most, constants.learning_rate, constants.smoothness)[1:]


def with_pick(
    constants: BoundConstants | None, park: Park, pick: int, divergence: Callable[[int], float] | None = None
) -> BoundConstants | None:
    """Return the constants with the δ of another L than the park's."""
    if constants is None:
        return None
    if divergence is not None:
        return constants.but(divergence(pick))
    return constants.but(constants.divergence * math.sqrt(park.pick / pick))
