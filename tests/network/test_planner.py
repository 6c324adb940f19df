"""The best T and L: against trying them all."""

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedgs.errors import NetworkError
from fedgs.network import (
    BoundConstants,
    Channel,
    Link,
    Park,
    ParkNetwork,
    best_schedule,
    effective_iterations,
    fedavg_round,
    fedgs_round,
    fedgs_wins,
    largest_pick,
    longest_round,
    smallest_pick,
)
from fedgs.network.planner import make_plan
from tests.network.parks import HAND, hand_network, networks, parks


def tried(
    park: Park, network: ParkNetwork, constants: BoundConstants, most: int, speedup: float
) -> tuple[float, int, int] | None:
    """The slow oracle: every T and L by the public formulas."""
    found = []
    for pick in range(1, park.devices_per_factory + 1):
        here = constants.but(constants.divergence * math.sqrt(park.pick / pick))
        for length in range(1, most + 1):
            changed = park.but(iterations=length, pick=pick)
            seconds, worth = fedgs_round(changed, network).total, effective_iterations(length, here)
            if seconds * speedup < fedavg_round(changed, network).total * (1 - 1e-12) and worth > 0:
                found.append((seconds / worth, length, pick))
    return min(found, default=None)


@pytest.mark.parametrize("divergence", [0.0, 0.3, 3.0, 30.0])
@pytest.mark.parametrize(("internal", "speedup"), [(3.0, 1.0), (10.0, 1.0), (60.0, 1.0), (60.0, 2.0)])
def test_the_best_is_the_best_of_all(divergence: float, internal: float, speedup: float) -> None:
    park = Park(model_bits=1, factories=10, pick=4, iterations=50, devices=120, step_seconds=0.3, select_seconds=0.1)
    constants = BoundConstants(0.02, 1.0, divergence)
    network = hand_network(internal)
    found = best_schedule(park, network, constants, most_iterations=70, speedup=speedup)
    expected = tried(park, network, constants, 70, speedup)
    assert expected is not None
    assert found is not None
    assert found.seconds_per_iteration == pytest.approx(expected[0])
    assert (found.iterations, found.pick) == expected[1:]
    chosen = park.but(iterations=found.iterations, pick=found.pick)
    assert found.seconds == pytest.approx(fedgs_round(chosen, network).total)
    assert found.fedavg_seconds == pytest.approx(fedavg_round(chosen, network).total)
    assert found.seconds * speedup < found.fedavg_seconds


@given(parks(), networks(), st.integers(1, 200))
def test_without_constants_the_longest_round_is_best(park: Park, network: ParkNetwork, most: int) -> None:
    ready = Park(park.model_bits, park.factories, park.pick, park.iterations, park.devices, 0.0, park.select_seconds)
    found = best_schedule(ready, network, most_iterations=most)
    longest = min(most, longest_round(ready, network))
    if found is None:
        assert longest <= 1  # one that wins by less than rounding
    else:
        assert abs(found.iterations - longest) <= 1
        assert found.pick == park.pick
        assert found.effective_iterations == found.iterations


def test_drift_shortens_the_best_round_and_asks_for_more_devices() -> None:
    found = [best_schedule(HAND, hand_network(50.0), BoundConstants(0.01, 1.0, delta)) for delta in (0.3, 3.0, 30.0)]
    lengths = [one.iterations for one in found if one is not None]
    picks = [one.pick for one in found if one is not None]
    assert lengths == sorted(lengths, reverse=True)
    assert len(set(lengths)) == 3
    assert picks == sorted(picks)
    assert picks[0] < picks[-1]


def test_measured_divergences_take_the_place_of_the_square_root() -> None:
    network, constants = hand_network(50.0), BoundConstants(0.01, 1.0, 1.0)
    usual = best_schedule(HAND, network, constants)
    aligned = best_schedule(HAND, network, constants, divergence=lambda pick: 0.0 if pick >= 7 else 100.0)
    assert usual is not None
    assert aligned is not None
    assert usual.pick != 7
    assert aligned.pick == 7
    assert aligned.effective_iterations == aligned.iterations


def test_nothing_is_best_where_nothing_wins() -> None:
    assert best_schedule(HAND, hand_network(1e-3)) is None
    assert best_schedule(HAND.but(pick=1), hand_network(1e3)) is None
    with pytest.raises(NetworkError, match="most_iterations=0"):
        best_schedule(HAND, hand_network(1.0), most_iterations=0)


@given(parks(), networks())
def test_the_smallest_pick_is_the_first_that_wins(park: Park, network: ParkNetwork) -> None:
    wins = [pick for pick in range(1, park.devices_per_factory + 1) if fedgs_wins(park.but(pick=pick), network)]
    assert smallest_pick(park, network) == (wins[0] if wins else None)
    assert largest_pick(park, network) == (wins[-1] if wins else None)


def test_a_slow_start_of_the_direct_link_is_reason_enough_for_few_devices() -> None:
    """The direct link waits 100 s; each further device costs 50·2/1 s inside and 20 s less outside."""
    alike = hand_network(1.0)
    network = replace(alike, direct=Link(Channel(1.0, 0.0, 100.0), Channel(1.0)))
    assert smallest_pick(HAND, network) is None  # 120 − 20 < 100
    assert smallest_pick(HAND.but(iterations=49), network) == 1  # 120 − 20 > 98


def test_a_void_bound_does_not_stop_the_plan() -> None:
    made = make_plan(HAND.but(iterations=2_000_000_000), hand_network(10.0), BoundConstants(0.01, 1.0, 1.0))
    assert (made.effective_iterations, made.bound_is_void) == (-math.inf, True)
    plain = made.as_dict()
    assert (plain["effective_iterations"], plain["bound_is_void"], plain["bound_is_known"]) == (None, True, True)
    assert plain["best"] is not None
    calm = make_plan(HAND.but(iterations=100_000), hand_network(10.0), BoundConstants(0.01, 1.0, 0.0))
    assert calm.effective_iterations == 100_000


def test_what_the_promises_rest_on_is_told() -> None:
    equal = hand_network(10.0)
    made = make_plan(HAND, equal, BoundConstants(0.5, 4.0, 1.0))
    assert (made.assumptions_hold, made.as_dict()["bound_is_known"]) == (True, False)
    slower = replace(HAND, select_seconds=0.1)
    late = replace(equal, direct=Link(Channel(1.0, 0.0, 100.0), Channel(1.0)))
    uneven = replace(equal, internal=Link(Channel(10.0), Channel(20.0)))
    for park, network in ((slower, equal), (HAND, late), (HAND, uneven)):
        assert not make_plan(park, network).assumptions_hold
    latencies = make_plan(HAND, late).as_dict()["links_latency_seconds"]
    assert latencies == {name: {"up": 100.0 * (name == "direct"), "down": 0.0}
                         for name in ("internal", "external", "direct")}  # fmt: skip


def test_a_plan_holds_everything() -> None:
    made = make_plan(HAND, hand_network(10.0), BoundConstants(0.01, 1.0, 1.0))
    assert made.wins
    assert made.speedup == pytest.approx(200 / 120)
    assert made.threshold == pytest.approx(5.5556, abs=1e-4)
    assert made.longest_round == 89  # 180 saved, 2 an iteration: at 90 both take the same
    assert made.smallest_pick == 3  # 50·2/10 = 10 is not below 10, 50·3/20 = 7.5 is
    assert made.best_at_pick is not None
    assert made.best_at_pick.pick == 10
    plain = made.as_dict()
    assert plain["best"]["seconds_per_iteration"] <= plain["best_at_pick"]["seconds_per_iteration"]
    alone = make_plan(HAND.but(pick=1), hand_network(10.0)).as_dict()
    assert alone["break_even_ratio"] is None
    assert alone["proposition_threshold"] is None
    assert alone["best"] is None
    assert alone["longest_round"] == 0
