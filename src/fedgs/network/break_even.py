"""Where FedGS and FedAvg take the same time, for any links: the general form of Proposition 4.

FedGS wins a round when what it saves on the way to the top server is more than what it spends in the factories,

    T̃_ext − T_ext > T·(T_select + T_int) .

T_int is L·S/rate plus the latency, and falls with the factory's bandwidth; T̃_ext and T_ext are linear in L and M. So
the bandwidth ratio, the longest round and the smallest pick at which both take the same time have closed forms. Under
Assumption 2, with T_select = 0, the break-even ratio is T·L/(M·(L − 1)).
"""

import math

from fedgs.network.links import ParkNetwork
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
    if longest > 2**40:  # nobody counts so far, and beyond it a float could not tell one T from the next
        return longest
    # The quotient is rounded; the condition itself has the last word.
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
