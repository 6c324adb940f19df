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

:class:`ParkPlan` is all that ``fedgs plan`` says of a park: who is faster, by how much, up to what limit, what is best.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedgs.files import finite
from fedgs.network.convergence import BoundConstants, drift_weight, drifts, worth_of_round
from fedgs.network.links import ParkNetwork, positive, whole
from fedgs.network.round_time import (
    Park,
    RoundTime,
    break_even_ratio,
    fedavg_round,
    fedgs_round,
    fedgs_wins,
    largest_pick,
    longest_round,
    proposition_threshold,
    smallest_pick,
)


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


@dataclass(frozen=True)
class ParkPlan:
    """A park, its links, and what follows from them."""

    park: Park
    network: ParkNetwork
    constants: BoundConstants | None
    fedgs: RoundTime
    fedavg: RoundTime
    wins: bool
    """whether a round of FedGS is faster: the exact condition, the selection counted"""
    threshold: float | None
    """T·L/(M·(L − 1)) of Proposition 4; None for L = 1"""
    break_even: float
    """B_int/B_ext at which both take the same time; infinity where FedGS never wins"""
    longest_round: int
    """largest T that wins at this L; 0: none"""
    smallest_pick: int | None
    """least L that wins at this T; None: none"""
    largest_pick: int | None
    """greatest L that wins at this T, at most the devices of a factory; None: none"""
    effective_iterations: float | None
    """what a round is worth; 0 or less: the bound is void; None without constants"""
    best: Schedule | None
    """None where no T and L meet the condition"""
    best_at_pick: Schedule | None
    """the best T at the park's own L; None where no T meets the condition"""

    @property
    def speedup(self) -> float:
        """How many times as fast as FedAvg."""
        return self.fedavg.total / self.fedgs.total

    @property
    def assumptions_hold(self) -> bool:
        """Whether Proposition 4 applies: equal links, no latency (Assumption 2), no time for the selection."""
        inside, outside, direct = self.network.internal, self.network.external, self.network.direct
        rates = [link.up.rate / link.down.rate for link in (inside, outside, direct)]
        rates += [direct.rate / outside.rate]
        waits = inside.latency + outside.latency + direct.latency + self.park.select_seconds
        return waits == 0 and all(math.isclose(rate, 1.0) for rate in rates)

    @property
    def bound_is_void(self) -> bool | None:
        """Whether drift undoes all that a round learns; None without constants."""
        return None if self.effective_iterations is None else self.effective_iterations <= 0

    def as_dict(self) -> dict[str, Any]:
        """Return plain values, for JSON; infinity is null."""
        links = {name: getattr(self.network, name) for name in ("internal", "external", "direct")}
        rates = {name: {"up": link.up.rate, "down": link.down.rate} for name, link in links.items()}
        latencies = {name: {"up": link.up.latency, "down": link.down.latency} for name, link in links.items()}
        said = {
            "park": asdict(self.park),
            "links_bits_per_second": rates,
            "links_latency_seconds": latencies,
            "fedgs_seconds": asdict(self.fedgs) | {"total": self.fedgs.total},
            "fedavg_seconds": asdict(self.fedavg) | {"total": self.fedavg.total},
            "fedgs_wins": self.wins,
            "speedup": self.speedup,
            "ratio": self.network.ratio,
            "proposition_threshold": self.threshold,
            "proposition_applies": self.assumptions_hold,
            "break_even_ratio": self.break_even,
            "longest_round": self.longest_round,
            "smallest_pick": self.smallest_pick,
            "largest_pick": self.largest_pick,
            "constants": None if self.constants is None else asdict(self.constants),
            "effective_iterations": self.effective_iterations,
            "bound_is_void": self.bound_is_void,
            "bound_is_known": None if self.constants is None else self.constants.small_steps,
            "best": _schedule(self.best),
            "best_at_pick": _schedule(self.best_at_pick),
        }
        plain: dict[str, Any] = finite(said)
        return plain


def make_plan(
    park: Park,
    network: ParkNetwork,
    constants: BoundConstants | None = None,
    *,
    most_iterations: int = 500,
    speedup: float = 1.0,
) -> ParkPlan:
    """Return the plan of a park; the last three arguments are those of :func:`best_schedule`."""
    worth = None if constants is None else worth_of_round(park.iterations, constants)
    return ParkPlan(
        park=park,
        network=network,
        constants=constants,
        fedgs=fedgs_round(park, network),
        fedavg=fedavg_round(park, network),
        wins=fedgs_wins(park, network),
        threshold=None if park.pick == 1 else proposition_threshold(park.factories, park.pick, park.iterations),
        break_even=break_even_ratio(park, network),
        longest_round=longest_round(park, network),
        smallest_pick=smallest_pick(park, network),
        largest_pick=largest_pick(park, network),
        effective_iterations=worth,
        best=best_schedule(park, network, constants, most_iterations=most_iterations, speedup=speedup),
        best_at_pick=best_schedule(
            park, network, constants, most_iterations=most_iterations, speedup=speedup, picks=[park.pick]
        ),
    )


def _schedule(schedule: Schedule | None) -> dict[str, Any] | None:
    if schedule is None:
        return None
    return asdict(schedule) | {"seconds_per_iteration": schedule.seconds_per_iteration}
