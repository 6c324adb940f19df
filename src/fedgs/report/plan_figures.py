"""The picture of a plan: time per round over B_int/B_ext and over T, shaded where FedGS wins.

With constants of the bound a third panel shows what the best T minimises, seconds per effective iteration; it ends
where the bound is void and the curve with it. "this park" is the T and L, and the links, that were asked about.
"""

import math
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from fedgs.errors import OutputError
from fedgs.network.planner import ParkPlan, objective, with_pick
from fedgs.network.round_time import fedavg_round, fedgs_round
from fedgs.report.run_figures import new_figure, save_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes

FEDGS, FEDAVG, WINS, HERE = "#1f6f8b", "#d1495b", "#3d9970", "#222222"
MOST_DRAWN = 2_000_000
"""The longest T of the third panel, which looks at each one."""
KINDS = (".png", ".pdf", ".svg")


def check_picture(path: Path) -> None:
    """Refuse a name that cannot become a picture, before anything is computed."""
    if path.suffix not in KINDS:
        raise OutputError(f"{path}: a picture must end in {', '.join(KINDS)}")
    if not path.parent.is_dir():
        raise OutputError(f"{path}: there is no folder {path.parent}")


def draw_plan(path: Path, plan: ParkPlan, title: str = "") -> Path:
    """Draw a plan into a file."""
    check_picture(path)
    panels = 2 if plan.constants is None else 3
    park = plan.park
    shown = f"M={park.factories}, L={park.pick}, T={park.iterations}, model of {park.model_bits / 8e6:.3g} MB"
    figure, axes = new_figure(panels, f"{title}: {shown}" if title else shown, (5.2 * panels, 4.2))
    for one, draw in zip(axes, (_draw_ratios, _draw_lengths, _draw_objective), strict=False):
        draw(one, plan)
    return save_figure(figure, path)


def _draw_ratios(axes: "Axes", plan: ParkPlan) -> None:
    """Draw time per round over B_int/B_ext; the internal bandwidths are varied."""
    here = plan.network.ratio
    marks = [1.0, 100.0, here, *([plan.break_even] if math.isfinite(plan.break_even) else [])]
    ratios = np.geomspace(min(marks) / 1.5, max(marks) * 1.5, 200)
    fedgs = [fedgs_round(plan.park, plan.network.with_ratio(float(ratio))).total for ratio in ratios]
    axes.plot(ratios, fedgs, color=FEDGS, linewidth=2, label="FedGS")
    axes.axhline(plan.fedavg.total, color=FEDAVG, linewidth=2, label="FedAvg")
    if math.isfinite(plan.break_even):
        axes.axvspan(plan.break_even, float(ratios[-1]), color=WINS, alpha=0.12, linewidth=0, label="FedGS wins")
        axes.axvline(plan.break_even, color=WINS, linewidth=1, linestyle="--", label=f"equal at {plan.break_even:.3g}")
    axes.plot([here], [plan.fedgs.total], "o", color=HERE, markersize=6, zorder=5, label=f"this park: ratio {here:.3g}")
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlim(float(ratios[0]), float(ratios[-1]))
    _plain_numbers(axes, "x")
    _plain_numbers(axes, "y")
    axes.set(xlabel="B_int / B_ext (logarithmic)", ylabel="seconds per round (logarithmic)")
    axes.legend(frameon=False, fontsize=8, loc="upper right")


def _draw_lengths(axes: "Axes", plan: ParkPlan) -> None:
    """Draw time per round over T."""
    best = 0 if plan.best is None else plan.best.iterations
    most = max(10, math.ceil(1.3 * max(plan.park.iterations, min(plan.longest_round, 500), best)))
    lengths = np.unique(np.linspace(1, most, 200).round().astype(int))
    for time, colour, label in ((fedgs_round, FEDGS, "FedGS"), (fedavg_round, FEDAVG, "FedAvg")):
        seconds = [time(plan.park.but(iterations=int(length)), plan.network).total for length in lengths]
        axes.plot(lengths, seconds, color=colour, linewidth=2, label=label)
    if plan.longest_round:
        reach = min(plan.longest_round, most)
        axes.axvspan(
            0.5, reach + 0.5, color=WINS, alpha=0.12, linewidth=0, label=f"FedGS wins, T ≤ {plan.longest_round:,}"
        )
    axes.plot([plan.park.iterations], [plan.fedgs.total], "o", color=HERE, markersize=6, zorder=5,
              label=f"this park: T={plan.park.iterations}")  # fmt: skip
    axes.set_xlim(0.5, most + 0.5)
    axes.set_ylim(bottom=0)
    _whole_numbers(axes)
    _plain_numbers(axes, "y")
    axes.set(xlabel=f"T, iterations in a round (L={plan.park.pick})", ylabel="seconds per round")
    axes.legend(frameon=False, fontsize=8, loc="upper left")


def _draw_objective(axes: "Axes", plan: ParkPlan) -> None:
    """Draw seconds per effective iteration over T, for the park's own L."""
    best = 0 if plan.best is None else plan.best.iterations
    most = min(MOST_DRAWN, max(10, 2 * max(plan.park.iterations, best)))
    costs = objective(plan.park, plan.network, plan.constants, most)
    last = _draw_costs(axes, costs, "-", f"FedGS, L={plan.park.pick}")
    if plan.best is not None:
        if plan.best.pick != plan.park.pick:
            constants = with_pick(plan.constants, plan.park, plan.best.pick)
            other = objective(plan.park.but(pick=plan.best.pick), plan.network, constants, most)
            last = max(last, _draw_costs(axes, other, "--", f"FedGS, L={plan.best.pick}"))
        cost = plan.best.seconds_per_iteration
        axes.plot([best], [cost], "*", color=FEDAVG, markersize=12, zorder=5,
                  label=f"best: T={best}, L={plan.best.pick}, {cost:.3g} s")  # fmt: skip
    length = plan.park.iterations
    if length <= most and np.isfinite(costs[length - 1]):
        here = costs[length - 1]
        axes.plot([length], [here], "o", color=HERE, markersize=6, zorder=5,
                  label=f"this park: T={length}, L={plan.park.pick}, {here:.3g} s")  # fmt: skip
        last = max(last, length)
    else:
        where = "bound void" if plan.bound_is_void else "beyond the picture"
        axes.plot([], [], " ", label=f"this park: T={length:,}, {where}")
    right = 0.5 + max(5, last)  # beyond it the bound is void, or far above the best: nothing to see
    if plan.longest_round:
        label = f"FedGS wins at L={plan.park.pick}"
        reach = min(plan.longest_round + 0.5, right)
        axes.axvspan(0.5, reach, color=WINS, alpha=0.12, linewidth=0, label=label)
    void = int(np.isfinite(costs).sum()) + 0.5  # E(T) is concave: what is void once stays so
    if void < right:
        axes.axvspan(void, right, facecolor="none", edgecolor="#bbbbbb", hatch="////", linewidth=0,
                     label=f"bound void at L={plan.park.pick}")  # fmt: skip
    axes.set_xlim(0.5, right)
    axes.set_ylim(0, 1.1 * axes.get_ylim()[1])
    _whole_numbers(axes)
    _plain_numbers(axes, "y")
    axes.set(xlabel="T, iterations in a round", ylabel="seconds per effective iteration")
    axes.legend(frameon=True, framealpha=0.9, edgecolor="none", fontsize=8, loc="upper right")


def _draw_costs(axes: "Axes", costs: NDArray[np.float64], style: str, label: str) -> int:
    """Draw a curve where it is not far above its lowest point; return its last T. A single point gets a marker."""
    if not np.isfinite(costs.min()):
        return 0
    shown = np.flatnonzero(costs <= 6 * costs.min())
    marker = "s" if len(shown) == 1 else ""
    axes.plot(shown + 1, costs[shown], style, color=FEDGS, linewidth=2, marker=marker, label=label)
    return int(shown[-1]) + 1


def _whole_numbers(axes: "Axes") -> None:
    """Put ticks at whole T only."""
    from matplotlib.ticker import MaxNLocator

    axes.xaxis.set_major_locator(MaxNLocator(integer=True))


def _plain_numbers(axes: "Axes", which: str) -> None:
    """Write 1,000 in place of 10³."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    axis = axes.xaxis if which == "x" else axes.yaxis
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.10g}"))
    if axis.get_scale() == "log":
        axis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
        axis.set_minor_formatter(NullFormatter())
