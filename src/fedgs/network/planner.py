"""Does FedGS pay in a park? The time to a target accuracy, of FedGS and of FedAvg, each with the T that suits it best.

    time = rounds × seconds of a round

The seconds follow from the links (:mod:`fedgs.network.round_time`). The rounds are known for one T and L, from two runs
or from the paper. For others they follow from the convergence bound, R ∝ 1/E. Here E(T) = T − a·T·(T − 1) are the
iterations that a round of T is worth once drift is taken off; T·(T − 1) is the leading term of h(T), and a is
proportional to the gradient divergence δ. A super node is a mean over L devices, so its δ is taken to be that of a
single device divided by √L; FedAvg has M·L single devices. That leaves one unknown, a of a single device, and the two
known numbers of rounds fix it:

    q = rounds of FedAvg / rounds of FedGS = E(T; a/√L) / E(T; a)   ⇒   a = √L·(q − 1) / ((q·√L − 1)·(T − 1)) .

L stays as set, and FedAvg trains as many devices. Plans of different L must not be compared: the rounds do not depend
on the number of samples here, since the noise of small batches is not counted. So fewer devices always look faster, of
FedAvg even more than of FedGS, while in the paper more devices reach a higher accuracy (section VII).
At one L this matters less: both algorithms train on the batches of as many devices.
"""

import math
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedgs.files import finite
from fedgs.network.links import ParkNetwork, positive, whole
from fedgs.network.round_time import Park, RoundTime, fedavg_round, fedgs_round

MARGIN = 1.1
"""FedGS pays if it is this many times as fast: the model is no better than that."""
EXTREME = 1e9
"""Bandwidth ratios beyond it are not looked at."""


@dataclass(frozen=True)
class KnownRounds:
    """Rounds to the target accuracy with some T and L; those of the paper, to 82 % on FEMNIST (Table II)."""

    fedgs: float = 147
    fedavg: float = 478
    iterations: int = 50
    pick: int = 10

    def __post_init__(self) -> None:
        for name in ("fedgs", "fedavg"):
            positive(name, getattr(self, name))
        for name in ("iterations", "pick"):
            whole(name, getattr(self, name))

    @property
    def drift(self) -> float:
        """a of a single device; 0 where the rounds do not tell: FedAvg needs no more, or nothing can drift."""
        more, root = self.fedavg / self.fedgs, math.sqrt(self.pick)
        if more <= 1 or self.pick == 1 or self.iterations == 1:
            return 0.0
        return root * (more - 1) / ((more * root - 1) * (self.iterations - 1))


@dataclass(frozen=True)
class Schedule:
    """An algorithm with some T and L, and the time it takes to the target."""

    iterations: int
    """T"""
    pick: int
    """L"""
    rounds: float
    """to the target"""
    round: RoundTime

    @property
    def seconds(self) -> float:
        """To the target."""
        return self.rounds * self.round.total

    def as_dict(self) -> dict[str, Any]:
        """Return plain values, for JSON."""
        return asdict(self) | {"round": asdict(self.round) | {"total": self.round.total}, "seconds": self.seconds}


def fedgs_schedule(
    park: Park, network: ParkNetwork, known: KnownRounds, *, iterations: int | None = None, most: int = 500
) -> Schedule | None:
    """Return FedGS with the given T, else with the best one up to ``most``; None where drift undoes all that is learnt.

    L is the park's.
    """
    first = worth(known.iterations, known.drift / math.sqrt(known.pick)) * known.fedgs
    return _schedule(fedgs_round, park, network, first, known.drift / math.sqrt(park.pick), iterations, most)


def fedavg_schedule(
    park: Park, network: ParkNetwork, known: KnownRounds, *, iterations: int | None = None, most: int = 500
) -> Schedule | None:
    """Return the same of FedAvg, whose M·L devices train alone."""
    first = worth(known.iterations, known.drift) * known.fedavg
    return _schedule(fedavg_round, park, network, first, known.drift, iterations, most)


def worth(iterations: Any, drift: float) -> Any:
    """Return E(T), the iterations that a round of T is worth; of one T or an array of them."""
    return iterations * (1.0 - drift * (iterations - 1.0))


def _schedule(
    time: Callable[[Park, ParkNetwork], RoundTime],
    park: Park,
    network: ParkNetwork,
    needed: float,
    drift: float,
    iterations: int | None,
    most: int,
) -> Schedule | None:
    """``needed``: effective iterations to the target."""
    if iterations is None:
        whole("most", most)
        lengths: NDArray[np.float64] = np.arange(1.0, most + 1)
        one = time(park.but(iterations=1), network)
        each = one.internal + one.selection + one.computation
        effective = worth(lengths, drift)
        with np.errstate(divide="ignore", invalid="ignore"):
            costs = np.where(effective > 0, (one.top + each * lengths) / effective, math.inf)
        iterations = int(np.argmin(costs)) + 1
    effective_here = worth(iterations, drift)
    if effective_here <= 0:
        return None
    return Schedule(
        iterations, park.pick, needed / effective_here, time(park.but(iterations=iterations), network)
    )  # fmt: skip


@dataclass(frozen=True)
class ParkPlan:
    """A park, its links, and what follows from them."""

    park: Park
    network: ParkNetwork
    known: KnownRounds
    fedgs: Schedule
    """with the best T, where it could be searched"""
    fedavg: Schedule
    """likewise, with as many devices"""
    as_set: Schedule | None
    """FedGS with the park's own T; None: drift undoes all that is learnt"""
    break_even: float
    """B_int/B_ext at which both take as long; 0: FedGS is always faster; infinity: never"""
    most: int

    @property
    def searched(self) -> bool:
        """Whether each algorithm has its best T; where nothing is known of drift both have the T that is set."""
        return self.known.drift > 0

    @property
    def times_as_fast(self) -> float:
        """How many times as fast as FedAvg FedGS reaches the target."""
        return self.fedavg.seconds / self.fedgs.seconds

    @property
    def pays(self) -> bool:
        """Whether FedGS is worth having."""
        return self.times_as_fast >= MARGIN

    def as_dict(self) -> dict[str, Any]:
        """Return plain values, for JSON; infinity is null."""
        links = {name: getattr(self.network, name) for name in ("internal", "external", "direct")}
        channels = {f"{name}_{way}": getattr(link, way) for name, link in links.items() for way in ("up", "down")}
        said = {
            "pays": self.pays,
            "times_as_fast": self.times_as_fast,
            "fedgs": self.fedgs.as_dict(),
            "fedavg": self.fedavg.as_dict(),
            "as_set": None if self.as_set is None else self.as_set.as_dict(),
            "ratio": self.network.ratio,
            "break_even_ratio": self.break_even,
            "known_rounds": asdict(self.known),
            "park": asdict(self.park),
            "bits_per_second": {name: channel.rate for name, channel in channels.items()},
            "latency_seconds": {name: channel.latency for name, channel in channels.items()},
        }
        plain: dict[str, Any] = finite(said)
        return plain


def make_plan(
    park: Park, network: ParkNetwork, known: KnownRounds | None = None, *, most_iterations: int = 500
) -> ParkPlan:
    """Return the plan of a park: FedGS and FedAvg with their best T up to ``most_iterations``; the paper's rounds."""
    known = known or KnownRounds()
    fedgs, fedavg = best_schedules(park, network, known, most_iterations)
    as_set = fedgs_schedule(park, network, known, iterations=park.iterations)
    edge = _break_even(park, network, known, fedavg.seconds, most_iterations)
    return ParkPlan(park, network, known, fedgs, fedavg, as_set, edge, most_iterations)


def best_schedules(park: Park, network: ParkNetwork, known: KnownRounds, most: int = 500) -> tuple[Schedule, Schedule]:
    """Return FedGS and FedAvg with as many devices, each with its best T; the park's T if drift is not known."""
    length = None if known.drift else park.iterations
    fedgs = fedgs_schedule(park, network, known, iterations=length, most=most)
    fedavg = fedavg_schedule(park, network, known, iterations=length, most=most)
    assert fedgs is not None  # with T = 1 nothing drifts
    assert fedavg is not None
    return fedgs, fedavg


def _break_even(park: Park, network: ParkNetwork, known: KnownRounds, fedavg: float, most: int) -> float:
    """Return the B_int/B_ext from which FedGS is faster than FedAvg; only the internal bandwidths are varied."""

    def faster(ratio: float) -> bool:
        return best_schedules(park, network.with_ratio(ratio), known, most)[0].seconds < fedavg

    low, high = -math.log(EXTREME), math.log(EXTREME)
    if faster(math.exp(low)):
        return 0.0
    if not faster(math.exp(high)):
        return math.inf
    while high - low > 1e-6:
        middle = (low + high) / 2
        low, high = (low, middle) if faster(math.exp(middle)) else (middle, high)
    return math.exp(high)
