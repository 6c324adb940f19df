"""Parks and networks for tests, drawn by hypothesis."""

import math

from hypothesis import strategies as st

from fedgs.network import Channel, Link, Park, ParkNetwork, equal_network

HAND = Park(model_bits=1, factories=10, pick=10, iterations=50)
"""The hand-worked example of T-TIME-1: S = 1, M = L = 10, T = 50."""


def hand_network(internal: float) -> ParkNetwork:
    """B_ext = 1 and 0 dB, so that log2(1 + γ) = 1."""
    return equal_network(internal, 1.0, 0.0)


def simplified_seconds(park: Park, internal: float, external: float, snr_db: float) -> tuple[float, float]:
    """T_FedGS and T_FedAvg of Assumption 2, eqs. t_fedgs_simplified and t_fedavg_simplified."""
    b = math.log2(1 + 10 ** (snr_db / 10))
    iteration = park.select_seconds + 2 * park.model_bits * park.pick / (b * internal) + park.step_seconds
    top = 2 * park.model_bits * park.factories / (b * external)
    return top + park.iterations * iteration, top * park.pick + park.iterations * park.step_seconds


bandwidths = st.floats(1e3, 1e10)
decibels = st.floats(-20, 60)
seconds = st.floats(0, 10)


@st.composite
def parks(draw: st.DrawFn, least_pick: int = 1) -> Park:
    factories, pick = draw(st.integers(1, 50)), draw(st.integers(least_pick, 50))
    return Park(
        model_bits=draw(st.floats(1e3, 1e10)),
        factories=factories,
        pick=pick,
        iterations=draw(st.integers(1, 300)),
        devices=factories * draw(st.integers(pick, 80)),
        step_seconds=draw(seconds),
        select_seconds=draw(seconds),
    )


latencies = st.one_of(st.just(0.0), st.floats(0, 100))


@st.composite
def channels(draw: st.DrawFn) -> Channel:
    return Channel(draw(bandwidths), draw(decibels), draw(latencies))


@st.composite
def links(draw: st.DrawFn) -> Link:
    return Link(draw(channels()), draw(channels()))


@st.composite
def networks(draw: st.DrawFn) -> ParkNetwork:
    """Any links: in half of the parks FedAvg shares the stations' link, in half it has one of its own."""
    internal, external = draw(links()), draw(links())
    return ParkNetwork(internal, external, draw(st.one_of(st.just(external), links())))
