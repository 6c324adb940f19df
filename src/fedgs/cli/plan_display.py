"""What ``fedgs plan`` prints: where the seconds go, who wins, the limits, the best T and L."""

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fedgs.network.planner import ParkPlan


def print_plan(
    made: "ParkPlan", title: str, model: str, sources: dict[str, str], most_iterations: int, speedup: float
) -> None:
    """Print a plan; ``sources`` says where the times of a step and of a selection come from."""
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    from fedgs.report.units import readable_time

    park, network = made.park, made.network
    console = Console(highlight=False)
    console.print(f"{escape(title)}")
    console.print(
        f"{park.factories} factories, {park.pick} of {park.devices_per_factory} devices, {park.iterations} iterations "
        f"a round\nmodel: {escape(model)}, {park.model_bits / 8e6:.4g} MB"
    )
    links = [("devices–station", network.internal), ("stations–top", network.external)]
    if network.direct != network.external:
        links.append(("devices–top, of FedAvg", network.direct))
    for name, link in links:
        console.print(
            f"{name}: {_rate(link.up.rate)} up, {_rate(link.down.rate)} down"
            + (f", {readable_time(link.latency)} there and back" if link.latency else "")
        )
    table = Table(box=SIMPLE_HEAD, padding=(0, 2, 0, 0), show_edge=False)
    for column in ("seconds a round", "FedGS", "FedAvg", ""):
        table.add_column(column, justify="left" if column in ("seconds a round", "") else "right")
    notes = {"selection": ("select", park.select_seconds), "computation": ("step", park.step_seconds)}
    for label, field in (
        ("with the top server", "top"), ("in the factories", "internal"), ("selection", "selection"),
        ("computation", "computation"), ("whole round", "total"),
    ):  # fmt: skip
        note = ""
        if field in notes:
            key, each = notes[field]
            note = sources[key] if sources[key] == "not counted" else f"{readable_time(each)} each, {sources[key]}"
        table.add_row(label, _seconds(getattr(made.fedgs, field)), _seconds(getattr(made.fedavg, field)), note)
    console.print(table)
    for line in [*_verdict(made), *_best(made, _limit(most_iterations, speedup)), *_caution(made)]:
        console.print(escape(line))


def _verdict(made: "ParkPlan") -> list[str]:
    park, ratio = made.park, made.network.ratio
    apart = abs(made.fedavg.total - made.fedgs.total)
    speed = made.speedup if made.wins else 1 / made.speedup
    lines = [
        f"\nFedGS is {speed:.3g} times as {'fast' if made.wins else 'slow'} as FedAvg: it "
        f"{'saves' if made.wins else 'loses'} {_seconds(apart)} s a round."
    ]
    if math.isfinite(made.break_even):
        lines.append(f"B_int/B_ext is {ratio:.4g} here; FedGS wins above {made.break_even:.4g}.")
    else:
        lines.append(f"B_int/B_ext is {ratio:.4g} here; no ratio is enough at this T and L.")
    if made.threshold is not None:
        holds = "holds" if made.threshold < ratio else "does not hold"
        assumes = "" if made.assumptions_hold else " (assumes equal links, no selection time)"
        lines.append(f"Proposition 4: TL/(M(L−1)) = {made.threshold:.4g} < {ratio:.4g} {holds}{assumes}.")
    longest = (
        f"T ≤ {made.longest_round:,} wins at L={park.pick}" if made.longest_round else f"no T wins at L={park.pick}"
    )
    picks = "no L"
    if made.smallest_pick is not None:
        picks = f"L ≥ {made.smallest_pick}"
        if made.largest_pick is not None and made.largest_pick < park.devices_per_factory:
            picks = f"L from {made.smallest_pick} to {made.largest_pick}"
    lines.append(f"Of all T and L: {longest}, {picks} at T={park.iterations}.")
    return lines


def _best(made: "ParkPlan", limit: str) -> list[str]:
    best = made.best
    if best is None:
        which = f"No T at L={made.park.pick}" if made.constants is None else "No T and L"
        return [f"{which} {limit}: none is best."]
    cost = f"{_seconds(best.seconds)} s a round ({best.fedavg_seconds / best.seconds:.3g} × FedAvg's speed)"
    if made.constants is None:
        return [
            f"Best T at L={best.pick}: {best.iterations}, the longest that {limit}.",
            f"It takes {cost}, {_seconds(best.seconds_per_iteration)} s an iteration.",
            "Long rounds cost nothing here. With plan.divergence drift counts and L is chosen.",
        ]
    lines = [
        f"Best: T={best.iterations}, L={best.pick}; {cost},",
        _worth(best.seconds, best.effective_iterations),
    ]
    here = "worth nothing: drift undoes what is learnt, the bound is void."
    if made.effective_iterations is not None and made.effective_iterations > 0:
        here = _worth(made.fedgs.total, made.effective_iterations)
    at_pick = made.best_at_pick
    if at_pick is not None and at_pick != best:
        worth = _worth(at_pick.seconds, at_pick.effective_iterations)
        lines.append(f"At L={at_pick.pick} the best is T={at_pick.iterations}, {worth}")
    return [*lines, f"Here: T={made.park.iterations}, L={made.park.pick}; {here}"]


def _caution(made: "ParkPlan") -> list[str]:
    """Return a line where the bound is used beyond what is known of it."""
    constants = made.constants
    if constants is None or constants.small_steps:
        return []
    eta, beta = constants.learning_rate, constants.smoothness
    return [f"η={eta:.3g} is above 1/β={1 / beta:.3g}: the bound is not known there, take its T and L as a guide."]


def _worth(seconds: float, iterations: float) -> str:
    return f"worth {iterations:.3g} iterations without drift: {_seconds(seconds / iterations)} s each."


def _limit(most: int, speedup: float) -> str:
    wins = "beats FedAvg" if speedup == 1 else f"is {speedup:g} times as fast as FedAvg"
    return f"{wins} with T ≤ {most:,}"


def _seconds(value: float) -> str:
    return f"{value:,.0f}" if value >= 1000 else f"{value:.3g}"


def _rate(bits_per_second: float) -> str:
    units = (("Gbit/s", 1e9), ("Mbit/s", 1e6), ("kbit/s", 1e3))
    # 999.9 bit/s would be written as 1e+03 bit/s: it is 1 kbit/s.
    unit, scale = next((pair for pair in units if bits_per_second >= 0.9995 * pair[1]), ("bit/s", 1.0))
    value = bits_per_second / scale
    return f"{value:,.0f} {unit}" if value >= 999.5 else f"{value:.3g} {unit}"
