"""How long a round takes and whether FedGS is faster: section VI-B, t_ext_comm to t_fedavg, in full generality.

    T_ext    = S·M / rate(external up) + S·M / rate(external down)
    T_int    = S·L / rate(internal up) + S·L / rate(internal down)
    T_FedGS  = T_ext + T·(T_select + T_int + T_comp)
    T̃_ext    = S·M·L / rate(direct up) + S·M·L / rate(direct down)
    T_FedAvg = T̃_ext + T·T_comp

with rate = B·log₂(1 + γ) of each channel, plus its latency where it has one (see ``links``).

FedGS wins a round when what it saves on the way to the top server is more than what it spends in the factories,

    T̃_ext − T_ext > T·(T_select + T_int) .

T_int is L·S/rate plus the latency, and falls with the factory's bandwidth; T̃_ext and T_ext are linear in L and M. So
the bandwidth ratio, the longest round and the smallest pick at which both take the same time have closed forms. Under
Assumption 2, with T_select = 0, the break-even ratio is T·L/(M·(L − 1)).

Assumption 2 is one bandwidth inside, one outside, one SNR. With b = log₂(1 + γ):

    T_FedGS  = 2SM/(b·B_ext) + T·(T_select + 2SL/(b·B_int) + T_comp)      (eq. t_fedgs_simplified)
    T_FedAvg = 2SML/(b·B_ext) + T·T_comp                                  (eq. t_fedavg_simplified)

T_FedGS < T_FedAvg is the exact condition

    (B_ext/B_int)·S·L + T_select·b·B_ext/2 < S·M·(L − 1)/T

and, where the selection takes no time, Proposition 4: T·L/(M·(L − 1)) < B_int/B_ext.
"""

import math
from bisect import bisect_left
from dataclasses import dataclass, replace

from fedgs.errors import NetworkError
from fedgs.network.links import Channel, ParkNetwork, not_negative, positive, whole


@dataclass(frozen=True)
class Park:
    """An industrial park: its factories and devices, and the model they train. The defaults are the paper's."""

    model_bits: float
    """size of the model in bits (S)"""
    factories: int = 10
    """with one base station each (M)"""
    pick: int = 10
    """devices selected per factory and iteration (L); FedAvg takes M·L devices a round"""
    iterations: int = 50
    """internal synchronisations in a round, and local steps of FedAvg (T)"""
    devices: int = 350
    """of the whole park (K)"""
    step_seconds: float = 0.0
    """of one local step on a device (T_comp)"""
    select_seconds: float = 0.0
    """of one selection at a base station (T_select)"""

    def __post_init__(self) -> None:
        positive("model_bits", self.model_bits)
        for name in ("factories", "pick", "iterations", "devices"):
            whole(name, getattr(self, name))
        for name in ("step_seconds", "select_seconds"):
            not_negative(name, getattr(self, name), "s")
        if self.pick > self.devices_per_factory:
            raise NetworkError(
                f"pick={self.pick} is impossible; a factory has {self.devices_per_factory} devices "
                f"({self.devices} in {self.factories} factories)"
            )

    @property
    def devices_per_factory(self) -> int:
        """Devices of the smallest factory when all have as many, or one more (K^m)."""
        return self.devices // self.factories

    def but(self, **changes: int) -> "Park":
        """Return the park with another T or L."""
        return replace(self, **changes)


@dataclass(frozen=True)
class RoundTime:
    """Where the seconds of a round go."""

    top: float
    """synchronisation with the top server: T_ext, or T̃_ext of FedAvg"""
    internal: float
    """T internal synchronisations, T·T_int"""
    selection: float
    """T·T_select"""
    computation: float
    """T·T_comp"""

    @property
    def total(self) -> float:
        """Seconds of the round."""
        return self.top + self.internal + self.selection + self.computation


def internal_sync_seconds(park: Park, network: ParkNetwork) -> float:
    """Return T_int: L devices send their models to the station and receive its mean (eq. t_int_comm)."""
    return network.internal.round_trip(park.model_bits * park.pick)


def external_sync_seconds(park: Park, network: ParkNetwork) -> float:
    """Return T_ext: M stations send their models to the top server and receive the global one (eq. t_ext_comm)."""
    return network.external.round_trip(park.model_bits * park.factories)


def direct_sync_seconds(park: Park, network: ParkNetwork) -> float:
    """Return T̃_ext: M·L devices do so themselves (eq. t_ext_comm_fedavg)."""
    return network.direct.round_trip(park.model_bits * park.factories * park.pick)


def fedgs_round(park: Park, network: ParkNetwork) -> RoundTime:
    """Return the time of a round of FedGS (eq. t_fedgs)."""
    return RoundTime(
        top=external_sync_seconds(park, network),
        internal=park.iterations * internal_sync_seconds(park, network),
        selection=park.iterations * park.select_seconds,
        computation=park.iterations * park.step_seconds,
    )


def fedavg_round(park: Park, network: ParkNetwork) -> RoundTime:
    """Return the time of a round of FedAvg with as many devices and local steps (eq. t_fedavg)."""
    return RoundTime(
        top=direct_sync_seconds(park, network),
        internal=0.0,
        selection=0.0,
        computation=park.iterations * park.step_seconds,
    )


def seconds_saved(park: Park, network: ParkNetwork) -> float:
    """Return T_FedAvg − T_FedGS of a round; computation is the same in both."""
    return _saved_at_the_top(park, network) - park.iterations * (
        park.select_seconds + internal_sync_seconds(park, network)
    )


def fedgs_wins(park: Park, network: ParkNetwork, speedup: float = 1.0) -> bool:
    """Return whether a round of FedGS is more than ``speedup`` times as fast as one of FedAvg."""
    if speedup == 1.0:
        return seconds_saved(park, network) > 0
    return fedgs_round(park, network).total * speedup < fedavg_round(park, network).total


def break_even_ratio(park: Park, network: ParkNetwork) -> float:
    """Return the B_int/B_ext above which FedGS wins; infinity where no bandwidth suffices.

    B_int/B_ext is ``network.ratio``: rates up and down again. Only the internal bandwidths are varied, both alike.
    """
    waiting = park.iterations * (park.select_seconds + network.internal.latency)
    left = _saved_at_the_top(park, network) - waiting
    if left <= 0:
        return math.inf
    sending = park.iterations * (internal_sync_seconds(park, network) - network.internal.latency)
    return network.ratio * sending / left


def longest_round(park: Park, network: ParkNetwork) -> int:
    """Return the largest T at which FedGS still wins; 0 where it never does."""
    return bisect_left(range(1, 2**62), True, key=lambda length: not fedgs_wins(park.but(iterations=length), network))


def winning_picks(park: Park, network: ParkNetwork) -> range:
    """Return the L, up to the devices of a factory, at which FedGS wins.

    What a round saves is linear in L, so these are the last ones; where the direct link is late, the first ones.
    """
    picks = range(1, park.devices_per_factory + 1)
    if fedgs_wins(park.but(pick=1), network):
        return picks[: bisect_left(picks, True, key=lambda pick: not fedgs_wins(park.but(pick=pick), network))]
    return picks[bisect_left(picks, True, key=lambda pick: fedgs_wins(park.but(pick=pick), network)) :]


def smallest_pick(park: Park, network: ParkNetwork) -> int | None:
    """Return the least L, up to the devices of a factory, at which FedGS wins; None where it never does."""
    picks = winning_picks(park, network)
    return picks[0] if picks else None


def largest_pick(park: Park, network: ParkNetwork) -> int | None:
    """Return the greatest L, up to the devices of a factory, at which FedGS wins; None where it never does."""
    picks = winning_picks(park, network)
    return picks[-1] if picks else None


def _saved_at_the_top(park: Park, network: ParkNetwork) -> float:
    return direct_sync_seconds(park, network) - external_sync_seconds(park, network)


def exact_condition(park: Park, internal: float, external: float, snr_db: float) -> bool:
    """Return whether FedGS beats FedAvg, the time of the selection counted."""
    for name, value in (("external", external), ("internal", internal)):
        positive(name, value, "Hz")
    _more_than_one(park.pick)
    spent = external / internal * park.model_bits * park.pick
    spent += park.select_seconds * Channel(external, snr_db).rate / 2
    return spent < park.model_bits * park.factories * (park.pick - 1) / park.iterations


def proposition_threshold(factories: int, pick: int, iterations: int) -> float:
    """Return T·L/(M·(L − 1)), which B_int/B_ext must exceed (Proposition 4)."""
    whole("factories", factories)
    whole("iterations", iterations)
    _more_than_one(pick)
    return iterations * pick / (factories * (pick - 1))


def proposition_holds(park: Park, ratio: float) -> bool:
    """Return whether Proposition 4 promises that FedGS beats FedAvg at this B_int/B_ext."""
    return proposition_threshold(park.factories, park.pick, park.iterations) < positive("ratio", ratio)


def _more_than_one(pick: int) -> None:
    if whole("pick", pick) == 1:
        raise NetworkError(
            "pick=1 is impossible in the condition, which divides by L − 1; with one device a factory FedGS sends as "
            "much to the top server as FedAvg does, and more besides: pick 2 or more"
        )
