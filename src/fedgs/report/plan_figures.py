"""The picture of a plan: the time to the target accuracy over T, and over the speed of the links in the factories."""

import math
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from fedgs.errors import OutputError
from fedgs.network.planner import ParkPlan, best_schedules, fedavg_schedule, fedgs_schedule
from fedgs.report.log_axis import number_log_axis
from fedgs.report.run_figures import new_figure, save_figure
from fedgs.report.units import time_unit

if TYPE_CHECKING:
    from matplotlib.axes import Axes

FEDGS, FEDAVG, FASTER = "#1f6f8b", "#d1495b", "#3d9970"
TALLEST = 8.0
"""Times the best time of FedAvg: beyond it curves are cut off."""
KINDS = (".png", ".pdf", ".svg")


def check_picture(path: Path) -> None:
    """Refuse a name that cannot become a picture, before anything is computed."""
    if path.suffix not in KINDS:
        raise OutputError(f"{path}: a picture must end in {', '.join(KINDS)}")


def draw_plan(path: Path, plan: ParkPlan, title: str = "") -> Path:
    """Draw a plan into a file."""
    check_picture(path)
    park = plan.park
    shown = f"M={park.factories}, L={park.pick}, model of {park.model_bits / 8e6:.3g} MB"
    figure, (left, right) = new_figure(2, f"{title}: {shown}" if title else shown, (10.4, 4.8))
    unit = time_unit(min(plan.fedgs.seconds, plan.fedavg.seconds))
    draw_lengths(left, plan, unit)
    draw_ratios(right, plan, unit)
    return save_figure(figure, path)


def draw_lengths(axes: "Axes", plan: ParkPlan, unit: tuple[str, float]) -> None:
    """Draw the time to the target over T, and the best T of both."""
    name, scale = unit
    furthest = max(10, math.ceil(1.6 * max(plan.fedgs.iterations, plan.fedavg.iterations)))
    if plan.as_set is not None:
        furthest = max(furthest, min(math.ceil(1.1 * plan.as_set.iterations), 4 * furthest))
    if not plan.known.drift:  # nothing is known of longer rounds
        furthest = plan.park.iterations
    furthest = min(furthest, max(plan.most, plan.park.iterations))  # what was not tried is not drawn
    lengths = np.unique(np.linspace(1, furthest, 300).round().astype(int))
    most = TALLEST * max(plan.fedgs.seconds, plan.fedavg.seconds)
    for schedule, best, colour, label in (
        (fedgs_schedule, plan.fedgs, FEDGS, "FedGS"), (fedavg_schedule, plan.fedavg, FEDAVG, "FedAvg"),
    ):  # fmt: skip
        found = [schedule(plan.park, plan.network, plan.known, iterations=int(length)) for length in lengths]
        shown = [one.seconds / scale if one and one.seconds <= most else math.nan for one in found]
        axes.plot(lengths, shown, color=colour, linewidth=2, label=label)
        axes.plot([best.iterations], [best.seconds / scale], "*", color=colour, markersize=13, zorder=5, clip_on=False,
                  label=f"{'best T of' if plan.searched else 'T as set,'} {label}: {best.iterations}")  # fmt: skip
    here = plan.as_set
    if here is not None and here.iterations <= furthest and here.iterations != plan.fedgs.iterations:
        axes.plot([here.iterations], [here.seconds / scale], "o", color=FEDGS, markerfacecolor="white", markersize=7,
                  zorder=5, clip_on=False, label=f"T as set: {here.iterations}")  # fmt: skip
    axes.set_xlim(0, furthest)
    axes.set(xlabel="T, iterations in a round", ylabel=f"time to the target accuracy ({name})")
    _finish(axes)


def draw_ratios(axes: "Axes", plan: ParkPlan, unit: tuple[str, float]) -> None:
    """Draw the time to the target over B_int/B_ext, each with its best T; the internal bandwidths are varied."""
    name, scale = unit
    here, edge = plan.network.ratio, plan.break_even
    which = "its best T" if plan.searched else "T as set"
    marks = [here, *([edge] if 0 < edge < math.inf else [])]
    ratios = np.geomspace(min(marks) / 5, max(marks) * 5, 120)
    times = [
        best_schedules(plan.park, plan.network.with_ratio(float(ratio)), plan.known, plan.most)[0].seconds / scale
        for ratio in ratios
    ]
    axes.plot(ratios, times, color=FEDGS, linewidth=2, label=f"FedGS, {which}")
    axes.plot(ratios, np.full(len(ratios), plan.fedavg.seconds / scale), color=FEDAVG, linewidth=2,
              label=f"FedAvg, {which}")  # fmt: skip
    if edge < ratios[-1]:
        axes.axvspan(max(edge, ratios[0]), ratios[-1], color=FASTER, alpha=0.15, linewidth=0, label="FedGS is faster")
    axes.plot([here], [plan.fedgs.seconds / scale], "o", color=FEDGS, markerfacecolor="white", markersize=7, zorder=5,
              label=f"this park: {here:.3g}")  # fmt: skip
    axes.set_xscale("log")
    axes.set_xlim(ratios[0], ratios[-1])
    axes.set(xlabel="rate in the factories / rate to the top server", ylabel=f"time to the target accuracy ({name})")
    number_log_axis(axes.xaxis)
    _finish(axes)


def _finish(axes: "Axes") -> None:
    """Set a logarithmic axis of times, and the legend below, where no line can run through it."""
    axes.set_yscale("log")
    number_log_axis(axes.yaxis)
    axes.legend(frameon=False, fontsize=8, loc="upper center", bbox_to_anchor=(0.5, -0.16), ncols=3)
