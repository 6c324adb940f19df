"""Time in an industrial park: how long rounds take, whether FedGS is faster, how far its model can be from the best.

    from fedgs.network import Park, break_even_ratio, fedgs_round, load_profile, make_plan

    network = load_profile("5g").network()
    park = Park(model_bits=32 * 6_603_710, step_seconds=0.02)
    fedgs_round(park, network).total, break_even_ratio(park, network), make_plan(park, network).times_as_fast

One idea a file: ``links`` (bits, Hz, dB), ``round_time`` (section VI-B in general, Proposition 4), ``convergence``
(section VI-A), ``planner`` (does it pay, best T), ``clock`` (the virtual clock of a simulation), ``settings`` with the
profiles. Knows nothing of torch.
"""

from fedgs.network.clock import RoundCost as RoundCost
from fedgs.network.clock import Traffic as Traffic
from fedgs.network.clock import VirtualClock as VirtualClock
from fedgs.network.clock import slowness as slowness
from fedgs.network.convergence import BoundConstants as BoundConstants
from fedgs.network.convergence import GradientDivergence as GradientDivergence
from fedgs.network.convergence import convergence_bound as convergence_bound
from fedgs.network.convergence import divergence_by_class as divergence_by_class
from fedgs.network.convergence import divergence_of_gradients as divergence_of_gradients
from fedgs.network.convergence import drift as drift
from fedgs.network.convergence import effective_iterations as effective_iterations
from fedgs.network.convergence import looser_optimality_gap as looser_optimality_gap
from fedgs.network.convergence import optimality_gap as optimality_gap
from fedgs.network.convergence import phi as phi
from fedgs.network.convergence import smoothness_estimate as smoothness_estimate
from fedgs.network.links import Channel as Channel
from fedgs.network.links import Link as Link
from fedgs.network.links import ParkNetwork as ParkNetwork
from fedgs.network.links import equal_network as equal_network
from fedgs.network.links import paper_network as paper_network
from fedgs.network.links import snr_from_db as snr_from_db
from fedgs.network.links import snr_to_db as snr_to_db
from fedgs.network.planner import KnownRounds as KnownRounds
from fedgs.network.planner import ParkPlan as ParkPlan
from fedgs.network.planner import Schedule as Schedule
from fedgs.network.planner import make_plan as make_plan
from fedgs.network.round_time import Park as Park
from fedgs.network.round_time import RoundTime as RoundTime
from fedgs.network.round_time import break_even_ratio as break_even_ratio
from fedgs.network.round_time import exact_condition as exact_condition
from fedgs.network.round_time import fedavg_round as fedavg_round
from fedgs.network.round_time import fedgs_round as fedgs_round
from fedgs.network.round_time import fedgs_wins as fedgs_wins
from fedgs.network.round_time import largest_pick as largest_pick
from fedgs.network.round_time import longest_round as longest_round
from fedgs.network.round_time import proposition_holds as proposition_holds
from fedgs.network.round_time import proposition_threshold as proposition_threshold
from fedgs.network.round_time import seconds_saved as seconds_saved
from fedgs.network.round_time import smallest_pick as smallest_pick
from fedgs.network.settings import PROFILES as PROFILES
from fedgs.network.settings import ClockSettings as ClockSettings
from fedgs.network.settings import LinksSettings as LinksSettings
from fedgs.network.settings import Profile as Profile
from fedgs.network.settings import load_profile as load_profile
