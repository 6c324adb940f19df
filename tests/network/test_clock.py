"""The virtual clock: the time model where all is even, and by hand where it is not."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedgs.errors import NetworkError
from fedgs.network import (
    Channel,
    Link,
    Park,
    ParkNetwork,
    RoundCost,
    Traffic,
    VirtualClock,
    fedavg_round,
    fedgs_round,
    slowness,
)
from tests.network.parks import networks, parks

LINK = Link(Channel.of_rate(80), Channel.of_rate(160))  # 10 and 20 bytes a second
NETWORK = ParkNetwork(internal=LINK, external=LINK, direct=LINK)


@given(parks(), networks())
def test_even_rounds_take_what_the_formulas_say(park: Park, network: ParkNetwork) -> None:
    clock = VirtualClock(network, park.step_seconds)
    iterations = min(park.iterations, 5)
    park = replace(park, iterations=iterations)
    selected = np.broadcast_to(
        np.arange(park.factories * park.pick).reshape(park.factories, park.pick),
        (iterations, park.factories, park.pick),
    )
    size = park.model_bits / 8
    cost = clock.fedgs_round(selected, size, np.full((iterations, park.factories), park.select_seconds))
    assert cost.seconds == pytest.approx(fedgs_round(park, network).total)
    assert cost.traffic.device_station_up == pytest.approx(size * park.pick * park.factories * iterations)
    assert cost.traffic.station_top_down == pytest.approx(size * park.factories)
    flat = clock.flat_round(np.arange(park.factories * park.pick), iterations, bytes_down=size, bytes_up=size)
    assert flat.seconds == pytest.approx(fedavg_round(park, network).total)
    assert flat.traffic.station_top_up == pytest.approx(size * park.factories * park.pick)


def test_a_round_by_hand() -> None:
    """Two iterations, two factories; device 3 is four times as slow; one factory is empty in one iteration."""
    clock = VirtualClock(NETWORK, 1.0, np.array([1.0, 2.0, 1.0, 4.0]))
    selected = [[[0, 1], [2, 3]], [[0, -1], [-1, -1]]]
    cost = clock.fedgs_round(selected, model_bytes=20, selection_seconds=8.0)
    # A model takes 2 s up and 1 s down; a selection 8/4 = 2 s.
    # Factory 0: (2 + 6 + 2) + (1 + 3 + 2) = 16; factory 1: (4 + 6 + 2) + 2 = 14. Top: two models, 4 + 2.
    assert cost.seconds == pytest.approx(16 + 6)
    assert (cost.computation, cost.selection, cost.internal, cost.top) == pytest.approx((3, 4, 9, 6))
    assert cost.traffic == Traffic(100, 100, 40, 40)
    # Device 3 is lost: it is waited for, and sends nothing. Device 0 then too: nobody of factory 0 is left.
    back = np.array([[[True, True], [True, False]], [[True, True], [True, True]]])
    cost = clock.fedgs_round(selected, model_bytes=20, selection_seconds=8.0, returned=back)
    assert cost.seconds == pytest.approx(16 + 6)
    assert cost.traffic == Traffic(80, 100, 40, 40)
    back[:, 0] = False
    cost = clock.fedgs_round(selected, model_bytes=20, selection_seconds=8.0, returned=back)
    # Factory 0: (2 + 2 + 2) + (1 + 1 + 2) = 10; factory 1: (4 + 4 + 2) + 2 = 12. Top: one model up, two down, 2 + 2.
    assert cost.seconds == pytest.approx(12 + 4)
    assert cost.traffic == Traffic(20, 100, 20, 40)
    with pytest.raises(NetworkError, match="returned must be true or false for each place"):
        clock.fedgs_round(selected, model_bytes=20, returned=[True])


def test_a_factory_that_sat_out_sends_nothing_up_but_gets_the_model() -> None:
    clock = VirtualClock(NETWORK, 1.0)
    cost = clock.fedgs_round([[[0], [-1]]], model_bytes=20)
    assert cost.traffic == Traffic(20, 20, 20, 40)
    assert cost.top == pytest.approx(2 + 2)
    assert clock.fedgs_round([[[0], [-1]]], model_bytes=20, stations=2).traffic.station_top_up == 40
    nobody = clock.fedgs_round([[[-1], [-1]]], model_bytes=20)
    assert nobody.computation == nobody.internal == 0


def test_a_flat_round_waits_for_the_slowest_and_sends_its_own_bytes() -> None:
    clock = VirtualClock(NETWORK, 0.5, np.array([1.0, 3.0, 1.0]))
    cost = clock.flat_round([0, 1, 2], [10, 4, 2], bytes_down=20, bytes_up=30)
    # 10·0.5 = 5 s, 4·0.5·3 = 6 s, 1 s; down 60/20 = 3 s, up 90/10 = 9 s.
    assert cost.computation == pytest.approx(6)
    assert cost.top == pytest.approx(12)
    assert cost.seconds == pytest.approx(18)
    assert cost.traffic == Traffic(90, 60, 90, 60)
    assert clock.flat_round([], 5, bytes_down=1, bytes_up=1).seconds == 0


def test_costs_add_up() -> None:
    one = RoundCost(1, 2, 3, 4, 5, Traffic(1, 2, 3, 4))
    assert RoundCost() + one == one
    assert one + one == RoundCost(2, 4, 6, 8, 10, Traffic(2, 4, 6, 8))


def test_a_given_selection_time_takes_the_place_of_the_measured_one() -> None:
    clock = VirtualClock(NETWORK, 0.0, selection_seconds=0.5)
    assert clock.fedgs_round([[[0], [1]]] * 4, 20, selection_seconds=99.0).selection == pytest.approx(2.0)


def test_slowness_is_named_by_seed_and_device() -> None:
    few, many = slowness(10, 0.5, seed=3), slowness(1000, 0.5, seed=3)
    assert few.tolist() == many[:10].tolist()
    assert slowness(10, 0.5, seed=4).tolist() != few.tolist()
    assert slowness(5, 0.0, seed=3).tolist() == [1.0] * 5
    assert np.log(many).std() == pytest.approx(0.5, rel=0.1)
    assert np.median(many) == pytest.approx(1.0, rel=0.1)


@given(st.integers(0, 99), st.floats(0, 2))
def test_stragglers_only_add_time(seed: int, spread: float) -> None:
    draws = np.random.default_rng(seed)
    selected = np.stack([draws.choice(20, size=(3, 4), replace=False) for _ in range(5)])
    factors = np.maximum(1.0, slowness(20, spread, seed))
    slow = VirtualClock(NETWORK, 0.1, factors).fedgs_round(selected, 20)
    even = VirtualClock(NETWORK, 0.1).fedgs_round(selected, 20)
    assert slow.seconds >= even.seconds
    assert slow.traffic == even.traffic
    # Against the sentence itself: the slowest device of each iteration, the slowest factory of the round.
    waiting = max(sum(max(factors[device] for device in row[factory]) for row in selected) for factory in range(3))
    assert slow.computation == pytest.approx(0.1 * waiting)


@pytest.mark.parametrize(
    ("action", "message"),
    [
        (lambda clock: clock.fedgs_round([[0, 1]], 20), "3 dimensions"),
        (lambda clock: clock.fedgs_round([[[0.5]]], 20), "whole numbers"),
        (lambda clock: clock.fedgs_round([[[0]]], 0), "model_bytes=0"),
        (lambda clock: clock.fedgs_round([[[7]]], 20), "device 7 took part"),
        (lambda clock: clock.fedgs_round([[[0]]], 20, [1.0, 2.0]), "do not fit 1 iterations"),
        (lambda clock: clock.fedgs_round([[[0]]], 20, -1.0), "selection_seconds"),
        (lambda clock: clock.flat_round([-1], 1, bytes_down=1, bytes_up=1), "0 or more"),
        (lambda clock: clock.flat_round([0], [1, 2], bytes_down=1, bytes_up=1), "do not fit 1 devices"),
        (lambda clock: clock.flat_round([0], -1, bytes_down=1, bytes_up=1), "steps must be 0 or more"),
        (lambda clock: clock.flat_round([0], 1, bytes_down=-1, bytes_up=1), "bytes_down=-1"),
        (lambda clock: VirtualClock(NETWORK, -1.0), "step_seconds=-1"),
        (lambda clock: VirtualClock(NETWORK, 1.0, np.array([0.0])), "above 0 for each device"),
        (lambda clock: slowness(3, -1.0, 0), "spread=-1"),
    ],
)
def test_what_does_not_fit_is_refused(action: object, message: str) -> None:
    with pytest.raises(NetworkError, match=message):
        action(VirtualClock(NETWORK, 1.0, np.ones(3)))  # type: ignore[operator]
