"""The second table of ``fedgs compare``: simulated time, time to the target, and bytes on each link."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console

    from fedgs.settings import Settings

    Clock = list[dict[str, Any]]

NUMBERS, SHORTEST_NAME = 66, 9
"""Columns the table's numbers take, and the least that is left for the names of runs."""
LINKS = ("device_station", "station_top")


def print_clocks(
    console: "Console",
    names: Sequence[str],
    settings: "Sequence[Settings]",
    clocks: "Sequence[Clock | None]",
    reached: Sequence[int | None],
    to_target: str,
) -> None:
    """Print the table and what the times rest on; ``reached`` are the rounds of the target, called ``to_target``."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    from fedgs.cli.compare import tail
    from fedgs.report.units import readable_bytes, readable_duration
    from fedgs.simulation.run_clock import elapsed, traffic

    if all(clock is None for clock in clocks):
        return
    longest = max(console.width - NUMBERS, SHORTEST_NAME)
    table = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0), show_edge=False)
    table.add_column("simulated\nrun", no_wrap=True)
    for title in ("time\na round", "\nall", "", "device–\nstation", "", "station–\ntop", ""):
        table.add_column(title or f"\n{to_target}", justify="right", no_wrap=True)
    for name, clock, target_round in zip(names, clocks, reached, strict=True):
        if clock is None:
            table.add_row(tail(name, longest), *["–"] * 7)
            continue
        last = clock[-1]["round"]
        whole, until = elapsed(clock, last), elapsed(clock, target_round)
        assert whole is not None
        before = clock[0]["elapsed"]  # of the pre-training
        cells = [readable_duration((whole - before) / last) if last else "–", readable_duration(whole)]
        cells.append("×" if until is None else readable_duration(until))
        totals = [traffic(clock, last), traffic(clock, target_round)]
        for link in LINKS:
            cells += ["×" if total is None else readable_bytes(_both_ways(total, link)) for total in totals]
        table.add_row(tail(name, longest), *cells)
    console.print()
    console.print(table)
    for note in _notes(names, settings, clocks):
        console.print(note, highlight=False, markup=False, style="dim")


def _both_ways(traffic: dict[str, int], link: str) -> int:
    return traffic.get(f"{link}_up", 0) + traffic.get(f"{link}_down", 0)


def _notes(names: "Sequence[str]", settings: "Sequence[Settings]", clocks: "Sequence[Clock | None]") -> list[str]:
    """Return what the times rest on, and a warning where the runs' clocks are not the same."""
    from fedgs.report.units import readable_duration

    there = [(name, wanted, clock) for name, wanted, clock in zip(names, settings, clocks, strict=True) if clock]
    notes = [f"{name}: has no clock.jsonl" for name, clock in zip(names, clocks, strict=True) if clock is None]
    kinds = {wanted.clock for _, wanted, _ in there}
    if len(kinds) > 1:
        each = ", ".join(f"{name}: {wanted.clock.profile}" for name, wanted, _ in there)
        return [*notes, f"the settings of the clocks differ ({each}): compare their times with care"]
    steps = [float(clock[0]["step_seconds"]) for _, _, clock in there]
    least, most = readable_duration(min(steps)), readable_duration(max(steps))
    step = least if least == most else f"{least} to {most}"
    clock = there[0][1].clock
    measured = [word for word, value in (("step", clock.step_seconds), ("selection", clock.selection_seconds))
                if value == "measured"]  # fmt: skip
    rest = f"; measured: {' and '.join(measured)}" if measured else ""
    return [*notes, f"clock: {clock.profile}, a local step takes {step}{rest}"]
