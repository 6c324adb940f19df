"""All that ``fedgs plan`` says of a park, as one value: who is faster, by how much, up to what limit, what is best."""

import math
from dataclasses import asdict, dataclass
from typing import Any

from fedgs.files import finite
from fedgs.network.break_even import (
    break_even_ratio,
    fedgs_wins,
    largest_pick,
    longest_round,
    proposition_threshold,
    smallest_pick,
)
from fedgs.network.convergence import BoundConstants, worth_of_round
from fedgs.network.links import ParkNetwork
from fedgs.network.planner import Schedule, best_schedule
from fedgs.network.round_time import Park, RoundTime, fedavg_round, fedgs_round


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
