"""What ``fedgs plan`` prints: the answer first, then where it comes from."""

import math
from typing import TYPE_CHECKING

from fedgs.network.planner import MARGIN
from fedgs.report.units import readable_bytes, readable_duration, readable_time

if TYPE_CHECKING:
    from rich.table import Table

    from fedgs.network.planner import ParkPlan
    from fedgs.simulation.advice import Advice


def answer(made: "ParkPlan") -> str:
    """Return the answer to the operator's question, in one line."""
    fedgs, fedavg = made.fedgs, made.fedavg
    times = made.times_as_fast
    best = f"the best T={fedgs.iterations}, and" if made.searched else f"T={fedgs.iterations} and"
    chosen = f"with {best} L={fedgs.pick} as set"
    took = f"{readable_duration(fedgs.seconds)} instead of {readable_duration(fedavg.seconds)}"
    if made.pays:
        return f"Yes: FedGS reaches the target accuracy {_times(times)} times as fast as FedAvg, in {took}, {chosen}."
    longer = "about" if times > 1 / MARGIN else f"{_times(1 / times)} times"
    return f"No: FedGS takes {longer} as long as FedAvg to the target accuracy, {took}, {chosen}."


def _times(factor: float) -> str:
    return f"{factor:,.0f}" if factor >= 999.5 else f"{factor:.3g}"


def print_plan(made: "ParkPlan", title: str, model: str, sources: dict[str, str]) -> None:
    """Print a plan; ``sources`` says where the rounds and the times of a step and a selection come from."""
    from rich.console import Console

    park, network = made.park, made.network
    console = Console(highlight=False, markup=False)
    console.print(answer(made), style="bold", soft_wrap=True)
    console.print(f"rounds: {sources['rounds']}", soft_wrap=True)
    console.print(f"\n{title}", soft_wrap=True)
    console.print(
        f"{park.factories} factories, {park.pick} of {park.devices_per_factory} devices at a time; "
        f"model: {model}, {readable_bytes(park.model_bits / 8)}",
        soft_wrap=True,
    )
    links = [("devices–station", network.internal), ("stations–top", network.external)]
    if network.direct != network.external:
        links.append(("devices–top, of FedAvg", network.direct))
    for name, link in links:
        wait = f", {readable_time(link.latency)} there and back" if link.latency else ""
        console.print(f"{name}: {_rate(link.up.rate)} up, {_rate(link.down.rate)} down{wait}")
    console.print(_to_the_target(made, sources))
    console.print()
    console.print(_edge(made), soft_wrap=True)
    as_set = made.as_set
    if as_set is None:
        console.print(f"T={park.iterations:,}, as set, is too long: the devices drift apart, and nothing is learnt.")
    elif as_set.seconds >= 1.01 * made.fedgs.seconds:
        more = as_set.seconds / made.fedgs.seconds - 1
        console.print(f"T={park.iterations:,}, as set, takes {readable_duration(as_set.seconds)}, {more:,.0%} longer.")
    console.print(
        f"L={park.pick}, as set, for both. Which L is best cannot be computed: the noise of small batches is not "
        "counted. To try several: fedgs sweep --grid selection.pick=…",
        soft_wrap=True,
    )


def print_advice(advice: "Advice | None") -> None:
    """Print which selection pays for a run, and why."""
    from rich.console import Console

    console = Console(highlight=False, markup=False)
    if advice is None:
        none = "no advice: the run is not finished, its samples have no classes, or it is of an older version"
        console.print(f"\nselection: {none}", soft_wrap=True)
        return
    console.print(f"\nselection: {advice.selection} ({', '.join(advice.settings)})", style="bold", soft_wrap=True)
    for reason in advice.reasons:
        console.print(f"  {reason}", soft_wrap=True)


def _to_the_target(made: "ParkPlan", sources: dict[str, str]) -> "Table":
    park = made.park
    table = _table("", "FedGS", "FedAvg", words=1)
    both = (made.fedgs, made.fedavg)
    table.add_row("best T" if made.searched else "T, as set", *(str(one.iterations) for one in both))
    table.add_row("rounds to the target", *(f"{one.rounds:,.0f}" for one in both))
    table.add_row("a round takes", *(readable_duration(one.round.total) for one in both))
    for label, field, time in (
        ("with the top server", "top", None), ("in the factories", "internal", None),
        ("selection", "selection", ("select", park.select_seconds)),
        ("computation", "computation", ("step", park.step_seconds)),
    ):  # fmt: skip
        note = ""
        if time is not None:
            source, each = sources[time[0]], time[1]
            note = f" ({source})" if source == "not counted" else f" ({readable_time(each)} each, {source})"
        parts: list[float] = [getattr(one.round, field) for one in both]
        table.add_row(f"  {label}{note}", *(readable_duration(part) if part else "–" for part in parts))
    table.add_row("time to the target", *(readable_duration(one.seconds) for one in both))
    return table


def _edge(made: "ParkPlan") -> str:
    """Return how fast the links in the factories must be."""
    here = f"here they are {_times(made.network.ratio)} times"
    if made.break_even == 0:
        return f"FedGS is faster with any links in the factories; {here} as fast as the line to the top server."
    if math.isinf(made.break_even):
        return "No links in the factories are fast enough to change that."
    return (
        f"FedGS is faster if the links in the factories are more than {_times(made.break_even)} times as fast as the "
        f"line to the top server; {here}."
    )


def _table(*titles: str, words: int = 0) -> "Table":
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    table = Table(box=SIMPLE_HEAD, padding=(0, 2, 0, 0), show_edge=False)
    for number, title in enumerate(titles):
        table.add_column(title, justify="left" if number < words else "right", no_wrap=True)
    return table


def _rate(bits_per_second: float) -> str:
    units = (("Gbit/s", 1e9), ("Mbit/s", 1e6), ("kbit/s", 1e3))
    # 999.9 bit/s would be written as 1e+03 bit/s: it is 1 kbit/s.
    unit, scale = next((pair for pair in units if bits_per_second >= 0.9995 * pair[1]), ("bit/s", 1.0))
    value = bits_per_second / scale
    return f"{value:,.0f} {unit}" if value >= 999.5 else f"{value:.3g} {unit}"
