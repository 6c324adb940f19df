"""The picture of a plan: what its axes show."""

import pytest
from matplotlib.figure import Figure

from fedgs.network import BoundConstants
from fedgs.network.planner import make_plan
from fedgs.report.plan_figures import _draw_lengths, _draw_objective
from tests.network.parks import HAND, hand_network


@pytest.mark.parametrize(("divergence", "last"), [(1.0, 100), (400.0, 5)])
def test_the_third_panel_ends_with_the_bound(divergence: float, last: int) -> None:
    plan = make_plan(HAND, hand_network(10.0), BoundConstants(0.01, 1.0, divergence))
    axes = Figure().subplots()
    _draw_objective(axes, plan)
    assert axes.get_xlim() == (0.5, last + 0.5)
    assert all(tick == int(tick) for tick in axes.get_xticks())
    labels = axes.get_legend_handles_labels()[1]
    if last == 5:  # T = 1 alone is left
        assert "this park: T=50, bound void" in labels
        assert "bound void at L=10" in labels
        assert axes.lines[0].get_marker() == "s"
    else:
        assert any(label.startswith("this park: T=50, L=10, ") for label in labels)


def test_there_is_no_half_an_iteration() -> None:
    axes = Figure().subplots()
    _draw_lengths(axes, make_plan(HAND.but(iterations=2), hand_network(1.5)))
    assert axes.get_xlim()[0] == 0.5
    assert all(tick == int(tick) for tick in axes.get_xticks())
