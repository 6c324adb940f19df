"""Where FedGS and FedAvg take the same time, for any links: the general form of Proposition 4.

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

from fedgs.errors import NetworkError
from fedgs.network.checks import positive, whole
from fedgs.network.links import Channel, ParkNetwork
from fedgs.network.round_time import (
    Park,
    direct_sync_seconds,
    external_sync_seconds,
    fedavg_round,
    fedgs_round,
    internal_sync_seconds,
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
    saved = _saved_at_the_top(park, network)
    if saved <= 0:
        return 0
    longest = math.ceil(saved / (park.select_seconds + internal_sync_seconds(park, network))) - 1
    if longest > 2**40:  # beyond it a float cannot tell one T from the next
        return longest
    # The quotient is rounded, so the condition itself decides.
    while fedgs_wins(park.but(iterations=longest + 1), network):
        longest += 1
    while longest and not fedgs_wins(park.but(iterations=longest), network):
        longest -= 1
    return longest


def smallest_pick(park: Park, network: ParkNetwork) -> int | None:
    """Return the least L, up to the devices of a factory, at which FedGS wins; None where it never does."""
    internal, external, direct = (
        2.0 * park.model_bits / link.rate for link in (network.internal, network.external, network.direct)
    )
    # What a round saves is gain·L − fixed. Where the direct link is late ``fixed`` can be negative, and then a small L
    # wins though more devices would lose.
    if fedgs_wins(park.but(pick=1), network):
        return 1
    gain = park.factories * direct - park.iterations * internal
    if gain <= 0:
        return None
    fixed = park.factories * external + network.external.latency - network.direct.latency
    fixed += park.iterations * (park.select_seconds + network.internal.latency)
    most = park.devices_per_factory
    least = fixed / gain
    if least > most:
        return None
    pick = max(1, math.floor(least))
    while pick <= most and not fedgs_wins(park.but(pick=pick), network):
        pick += 1
    while 1 < pick <= most and fedgs_wins(park.but(pick=pick - 1), network):
        pick -= 1
    return pick if pick <= most else None


def largest_pick(park: Park, network: ParkNetwork) -> int | None:
    """Return the greatest L, up to the devices of a factory, at which FedGS wins; None where it never does."""
    wins, most = smallest_pick(park, network), park.devices_per_factory
    if wins is None or fedgs_wins(park.but(pick=most), network):
        return None if wins is None else most
    loses = most  # what is saved is linear in L: it wins up to somewhere, and not beyond
    while loses - wins > 1:
        middle = (wins + loses) // 2
        if fedgs_wins(park.but(pick=middle), network):
            wins = middle
        else:
            loses = middle
    return wins


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
