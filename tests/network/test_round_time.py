"""Section VI-B: hand-worked times, general against simplified forms, the condition."""

import math
from dataclasses import replace

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from fedgs.errors import FedgsError, NetworkError
from fedgs.network import (
    Channel,
    Link,
    Park,
    ParkNetwork,
    break_even_ratio,
    equal_network,
    exact_condition,
    fedavg_round,
    fedgs_round,
    fedgs_wins,
    longest_round,
    paper_network,
    proposition_holds,
    proposition_threshold,
    seconds_saved,
    snr_from_db,
    snr_to_db,
)
from tests.network.parks import HAND, bandwidths, decibels, hand_network, networks, parks, simplified_seconds


@pytest.mark.parametrize(
    ("internal", "fedgs", "wins"), [(10.0, 120.0, True), (5.0, 220.0, False), (50 / 9, 200.0, None)]
)
def test_hand_worked_times(internal: float, fedgs: float, wins: bool | None) -> None:
    """T-TIME-1."""
    network = hand_network(internal)
    assert fedgs_round(HAND, network).total == pytest.approx(fedgs)
    assert fedavg_round(HAND, network).total == pytest.approx(200.0)
    if wins is not None:
        assert fedgs_wins(HAND, network) is wins
        assert exact_condition(HAND, internal, 1.0, 0.0) is wins
        assert proposition_holds(HAND, internal) is wins
    assert break_even_ratio(HAND, network) == pytest.approx(5.5556, abs=1e-4)


def test_every_part_of_the_general_form_by_hand() -> None:
    # log2(1 + γ) is 1, 2 and 3 for the top server (0 dB), the stations (γ=3) and the devices (γ=7).
    network = paper_network(
        internal_up=2,
        internal_down=4,
        external_up=1,
        external_down=0.5,
        top_db=0,
        station_db=snr_to_db(3),
        device_db=snr_to_db(7),
    )
    park = Park(model_bits=12, factories=2, pick=3, iterations=5, devices=6, step_seconds=0.5, select_seconds=0.25)
    fedgs, fedavg = fedgs_round(park, network), fedavg_round(park, network)
    assert fedgs.top == pytest.approx(24 / (1 * 1) + 24 / (0.5 * 2))
    assert fedgs.internal == pytest.approx(5 * (36 / (2 * 2) + 36 / (4 * 3)))
    assert fedgs.selection == pytest.approx(1.25)
    assert fedgs.computation == fedavg.computation == pytest.approx(2.5)
    assert fedavg.top == pytest.approx(72 / (1 * 1) + 72 / (0.5 * 3))
    assert fedgs.total == pytest.approx(48 + 60 + 1.25 + 2.5)
    assert fedavg.total == pytest.approx(120 + 2.5)


@given(parks(least_pick=2), bandwidths, bandwidths, decibels)
def test_general_equals_simplified_under_assumption_2(
    park: Park, internal: float, external: float, snr_db: float
) -> None:
    network = equal_network(internal, external, snr_db)
    totals = fedgs_round(park, network).total, fedavg_round(park, network).total
    assert totals == pytest.approx(simplified_seconds(park, internal, external, snr_db))
    assert network.ratio == pytest.approx(internal / external)
    ready = replace(park, select_seconds=0.0)
    assert break_even_ratio(ready, network) == pytest.approx(
        proposition_threshold(park.factories, park.pick, park.iterations)
    )


@given(parks(least_pick=2), st.floats(1e-3, 1e3), bandwidths, decibels, st.booleans())
def test_the_conditions_say_who_is_faster(
    park: Park, ratio: float, external: float, snr_db: float, ready: bool
) -> None:
    if ready:  # T_select = 0: Proposition 4 is exact
        park = replace(park, select_seconds=0.0)
        assume(not math.isclose(ratio, proposition_threshold(park.factories, park.pick, park.iterations), rel_tol=1e-9))
    park = replace(park, step_seconds=0.0)  # the same in both; here only a source of rounding
    network = equal_network(ratio * external, external, snr_db)
    times = fedgs_round(park, network).total, fedavg_round(park, network).total
    assume(not math.isclose(*times, rel_tol=1e-9))
    faster = times[0] < times[1]
    assert exact_condition(park, ratio * external, external, snr_db) is faster
    assert fedgs_wins(park, network) is faster
    if ready:
        assert proposition_holds(park, ratio) is faster
    elif not proposition_holds(park, ratio):
        assert not faster  # time spent on the selection cannot help


@given(parks(), networks(), st.floats(1.001, 100))
def test_more_bandwidth_never_takes_longer(park: Park, network: ParkNetwork, factor: float) -> None:
    before, flat = fedgs_round(park, network).total, fedavg_round(park, network).total
    inside = replace(network, internal=network.internal.scaled(factor))
    outside = replace(network, external=network.external.scaled(factor), direct=network.direct.scaled(factor))
    assert fedgs_round(park, inside).total <= before
    assert fedavg_round(park, inside).total == flat
    assert fedgs_round(park, outside).total <= before
    assert fedavg_round(park, outside).total <= flat
    assert fedgs_round(park, inside).internal < fedgs_round(park, network).internal


@given(parks(), networks())
def test_limits_agree_with_trying(park: Park, network: ParkNetwork) -> None:
    longest = longest_round(park, network)
    if longest:
        assert fedgs_wins(park.but(iterations=longest), network)
    assert not fedgs_wins(park.but(iterations=longest + 1), network)


@given(parks(), networks(), st.floats(0, 0.1))
def test_at_break_even_both_take_the_same_time(park: Park, network: ParkNetwork, latency: float) -> None:
    inside = network.internal
    slow = Link(replace(inside.up, latency=latency), replace(inside.down, latency=latency))
    network = replace(network, internal=slow)
    ratio = break_even_ratio(park, network)
    if math.isinf(ratio):
        assert not fedgs_wins(park, network.with_ratio(1e12))
        return
    assume(1e-9 < ratio < 1e9)
    scale = fedavg_round(park, network).top
    assert seconds_saved(park, network.with_ratio(ratio)) == pytest.approx(0, abs=1e-6 * scale)
    assert fedgs_wins(park, network.with_ratio(1.01 * ratio))
    assert not fedgs_wins(park, network.with_ratio(0.99 * ratio))


def test_latency_is_waited_for_once_each_way() -> None:
    channel = Channel.of_rate(100, latency=0.5)
    link = Link(channel, channel)
    park = replace(HAND, iterations=3)
    network = ParkNetwork(link, link, link)
    assert fedgs_round(park, network).total == pytest.approx(2 * 10 / 100 + 1 + 3 * (2 * 10 / 100 + 1))
    assert fedgs_round(park, network.without_latency()).total == pytest.approx(0.2 + 3 * 0.2)
    assert channel.seconds(0) == 0


def test_a_speedup_can_be_asked_for() -> None:
    network = hand_network(10.0)  # 200 / 120 times as fast
    assert fedgs_wins(HAND, network, speedup=1.6)
    assert not fedgs_wins(HAND, network, speedup=1.7)


def test_decibels() -> None:
    assert snr_from_db(20) == pytest.approx(100)
    assert snr_from_db(0) == 1
    assert snr_to_db(2) == pytest.approx(3.0103, abs=1e-4)
    assert Channel(1e6, 20).rate == pytest.approx(1e6 * math.log2(101))
    assert Channel.of_rate(5e7).rate == pytest.approx(5e7)


@pytest.mark.parametrize(
    ("action", "message"),
    [
        (lambda: proposition_threshold(10, 1, 50), "pick=1 is impossible in the condition"),
        (lambda: exact_condition(HAND.but(pick=1), 1, 1, 0), "pick=1 is impossible in the condition"),
        (lambda: Channel(0.0), "bandwidth=0 Hz is impossible"),
        (lambda: Channel(-1.0), "bandwidth=-1 Hz"),
        (lambda: Channel(math.nan), "finite number"),
        (lambda: Channel(True), "finite number"),
        (lambda: Channel(1.0, math.nan), "no ratio of signal to noise"),
        (lambda: Channel(1.0, "3"), "snr='3' is impossible; it must be a number of dB"),  # type: ignore[arg-type]
        (lambda: Channel(1.0, None), "snr=None is impossible"),  # type: ignore[arg-type]
        (lambda: snr_from_db("x"), "snr='x' is impossible"),  # type: ignore[arg-type]
        (lambda: Channel(1.0, 1e5), "no ratio of signal to noise"),
        (lambda: Channel(1.0, -math.inf), "no ratio of signal to noise"),
        (lambda: Channel(1.0, 0.0, -1.0), "latency=-1 s"),
        (lambda: snr_to_db(0.0), "snr=0 is impossible; it must be above 0"),
        (lambda: snr_to_db(-2.0), "snr=-2 is impossible"),
        (lambda: Park(0.0), "model_bits=0 is impossible"),
        (lambda: Park(1.0, iterations=0), "iterations=0 is impossible; it must be 1 or more"),
        (lambda: Park(1.0, pick=2.5), "pick=2.5 is impossible; it must be a whole number"),  # type: ignore[arg-type]
        (lambda: Park(1.0, pick=36), "a factory has 35 devices"),
        (lambda: Park(1.0, step_seconds=-1), "step_seconds=-1 s"),
        (lambda: exact_condition(HAND, 0.0, 1.0, 0.0), "internal=0 Hz"),
        (lambda: proposition_holds(HAND, 0.0), "ratio=0"),
        (lambda: hand_network(1.0).with_ratio(-1.0), "ratio=-1"),
    ],
)
def test_impossible_values_are_refused(action: object, message: str) -> None:
    with pytest.raises(NetworkError, match=message.replace("(", r"\(")) as caught:
        action()  # type: ignore[operator]
    assert isinstance(caught.value, FedgsError)
    assert "\n" not in str(caught.value)


def test_an_absurdly_fast_link_has_a_limit_too() -> None:
    assert longest_round(HAND, hand_network(1e14)) == pytest.approx(9e14, rel=1e-9)
