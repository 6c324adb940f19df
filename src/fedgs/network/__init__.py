"""Time in an industrial park: how long rounds take, whether FedGS is faster, how far its model can be from the best.

    from fedgs.network import Park, best_schedule, break_even_ratio, fedgs_round, load_profile

    network = load_profile("5g").network()
    park = Park(model_bits=32 * 6_603_710, step_seconds=0.02)
    fedgs_round(park, network).total, break_even_ratio(park, network), best_schedule(park, network)

One idea a file: ``links`` (bits, Hz, dB), ``round_time`` (section VI-B in general), ``break_even`` (who is faster;
Proposition 4), ``convergence`` and ``divergence`` (section VI-A), ``planner`` (best T and L), ``clock``
(the virtual clock of a simulation), ``settings`` and ``profiles``. Knows nothing of torch.
"""

from fedgs.network.break_even import (
    break_even_ratio,
    exact_condition,
    fedgs_wins,
    largest_pick,
    longest_round,
    proposition_holds,
    proposition_threshold,
    seconds_saved,
    smallest_pick,
)
from fedgs.network.clock import RoundCost, Traffic, VirtualClock, slowness
from fedgs.network.convergence import (
    BoundConstants,
    convergence_bound,
    drift,
    effective_iterations,
    looser_optimality_gap,
    optimality_gap,
    phi,
)
from fedgs.network.divergence import (
    GradientDivergence,
    divergence_by_class,
    divergence_of_gradients,
    smoothness_estimate,
)
from fedgs.network.links import (
    Channel,
    Link,
    ParkNetwork,
    equal_network,
    paper_network,
    snr_from_db,
    snr_to_db,
)
from fedgs.network.planner import Schedule, best_schedule
from fedgs.network.profiles import PROFILES, Profile, load_profile
from fedgs.network.round_time import Park, RoundTime, fedavg_round, fedgs_round
from fedgs.network.settings import ClockSettings, LinksSettings

__all__ = [
    "PROFILES",
    "BoundConstants",
    "Channel",
    "ClockSettings",
    "GradientDivergence",
    "Link",
    "LinksSettings",
    "Park",
    "ParkNetwork",
    "Profile",
    "RoundCost",
    "RoundTime",
    "Schedule",
    "Traffic",
    "VirtualClock",
    "best_schedule",
    "break_even_ratio",
    "convergence_bound",
    "divergence_by_class",
    "divergence_of_gradients",
    "drift",
    "effective_iterations",
    "equal_network",
    "exact_condition",
    "fedavg_round",
    "fedgs_round",
    "fedgs_wins",
    "largest_pick",
    "load_profile",
    "longest_round",
    "looser_optimality_gap",
    "optimality_gap",
    "paper_network",
    "phi",
    "proposition_holds",
    "proposition_threshold",
    "seconds_saved",
    "slowness",
    "smallest_pick",
    "smoothness_estimate",
    "snr_from_db",
    "snr_to_db",
]
