"""The picture of a plan: what its axes show, and a legend that nothing runs through."""

from itertools import combinations

import numpy as np
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from fedgs.network import KnownRounds, make_plan
from fedgs.report.plan_figures import draw_lengths, draw_ratios
from fedgs.report.run_figures import new_figure
from tests.network.parks import HAND, hand_network


@pytest.mark.parametrize(
    ("plan", "labels"),
    [
        (make_plan(HAND, hand_network(10.0)), ["best T of FedGS: 36", "best T of FedAvg: 32", "T as set: 50"]),
        (make_plan(HAND.but(iterations=10**9), hand_network(10.0)), ["best T of FedGS: 36", "best T of FedAvg: 32"]),
        (make_plan(HAND, hand_network(10.0), KnownRounds(9, 9)), ["T as set, FedGS: 50", "T as set, FedAvg: 50"]),
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


def test_a_star_at_the_end_of_the_axis_is_whole() -> None:
    """Where FedAvg needs no more rounds nothing is known of a longer T: the curve ends at the star."""
    figure = Figure()
    axes = figure.subplots()
    draw_lengths(axes, make_plan(HAND, hand_network(10.0), KnownRounds(800, 100)), ("h", 3600.0))
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    red = np.abs(np.asarray(canvas.buffer_rgba())[:, :, :3].astype(int) - (209, 73, 91)).max(2) < 40
    edge = round(axes.get_window_extent().x1)
    right, left = (int(red[:, columns].sum()) for columns in (slice(edge, edge + 12), slice(edge - 12, edge)))
    assert axes.get_xlim() == (0, 50)
    assert left > 20
    assert abs(right - left) < 10  # both halves


def test_no_t_that_was_not_tried_looks_better_than_the_best() -> None:
    plan = make_plan(HAND.but(iterations=1), hand_network(10.0), most_iterations=5)
    axes = Figure().subplots()
    draw_lengths(axes, plan, ("h", 3600.0))
    for curve, best in zip(axes.lines[::2], (plan.fedgs, plan.fedavg), strict=False):
        assert np.nanmin(curve.get_ydata()) == pytest.approx(best.seconds / 3600)


@pytest.mark.parametrize(("internal", "pick"), [(10.0, 10), (1e-4, 10), (1e-9, 10), (1e6, 10), (1.0, 2)])
def test_the_numbers_of_no_axis_overlap(internal: float, pick: int) -> None:
    figure, axes = new_figure(2, size=(10.4, 4.8))
    plan = make_plan(HAND.but(pick=pick), hand_network(internal))
    draw_lengths(axes[0], plan, ("h", 3600.0))
    draw_ratios(axes[1], plan, ("h", 3600.0))
    FigureCanvasAgg(figure).draw()
    for one in axes:
        for axis in (one.xaxis, one.yaxis):
            low, high = axis.get_view_interval()
            boxes = [
                tick.label1.get_window_extent() for tick in axis.get_major_ticks() if low <= tick.get_loc() <= high
            ]
            assert len(boxes) >= 2
            assert not any(a.overlaps(b) for a, b in combinations(boxes, 2))
