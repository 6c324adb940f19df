"""The picture of a plan: what its axes show, and a legend that nothing runs through."""

import pytest
from matplotlib.figure import Figure

from fedgs.network import KnownRounds, make_plan
from fedgs.report.plan_figures import draw_lengths, draw_ratios
from tests.network.parks import HAND, hand_network


@pytest.mark.parametrize(
    ("plan", "labels"),
    [
        (make_plan(HAND, hand_network(10.0)), ["best T of FedGS: 36", "best T of FedAvg: 32", "T as set: 50"]),
        (make_plan(HAND.but(iterations=10**9), hand_network(10.0)), ["best T of FedGS: 36", "best T of FedAvg: 32"]),
        (make_plan(HAND, hand_network(10.0), KnownRounds(9, 9)), ["best T of FedGS: 50", "best T of FedAvg: 50"]),
    ],
)
def test_each_marker_is_named_and_each_name_has_a_handle(plan, labels) -> None:  # type: ignore[no-untyped-def]
    figure = Figure()
    left, right = figure.subplots(1, 2)
    draw_lengths(left, plan, ("h", 3600.0))
    draw_ratios(right, plan, ("h", 3600.0))
    markers = [line for line in left.lines if line.get_marker() != "None"]
    assert [line.get_label() for line in markers] == labels
    figure.draw_without_rendering()
    for axes in (left, right):
        legend = axes.get_legend()
        assert legend is not None
        assert len(legend.legend_handles) == len(legend.get_texts()) > 2
        assert all(handle is not None and handle.get_visible() for handle in legend.legend_handles)
        assert legend.get_window_extent().y1 < axes.get_window_extent().y0  # below the axes
