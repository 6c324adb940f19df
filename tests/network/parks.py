"""Parks and networks for tests, drawn by hypothesis."""

from hypothesis import strategies as st

from fedgs.network import Network, Park, equal_network, paper_network

HAND = Park(model_bits=1, factories=10, pick=10, iterations=50)
"""The hand-worked example of T-TIME-1: S = 1, M = L = 10, T = 50."""


def hand_network(internal: float) -> Network:
    """B_ext = 1 and 0 dB, so that log2(1 + γ) = 1."""
    return equal_network(internal, 1.0, 0.0)


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


@st.composite
def networks(draw: st.DrawFn) -> Network:
    return paper_network(
        internal_up=draw(bandwidths),
        internal_down=draw(bandwidths),
        external_up=draw(bandwidths),
        external_down=draw(bandwidths),
        top_db=draw(decibels),
        station_db=draw(decibels),
        device_db=draw(decibels),
    )
