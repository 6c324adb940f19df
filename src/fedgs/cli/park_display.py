"""The live table of a park: a row a station, a row a device, and the progress of the run above them.

Without a terminal a line a round is printed instead.
"""

import time
from typing import TYPE_CHECKING, Any

import typer
from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from fedgs.deploy.top import shown_score

if TYPE_CHECKING:
    from fedgs.deploy.park import LocalPark

EVERY = 0.4
"""Seconds between two looks."""
MOST_ROWS = 30
"""Devices in the table; of larger parks each station's row counts them."""
_STYLES = {"ready": "green", "training": "bold cyan", "waiting": "yellow", "quarantined": "red", "offline": "dim"}


def watch(park: "LocalPark", console: Console | None = None) -> None:
    """Show the park until its top server has ended."""
    console = console or Console(stderr=True)
    began = time.monotonic()
    if not console.is_terminal:
        _lines_only(park)
        return
    with Live(picture(park, 0.0), console=console, refresh_per_second=8, transient=False) as live:
        while not park.done:
            park.check()
            live.update(picture(park, time.monotonic() - began))
            time.sleep(EVERY)
        live.update(picture(park, time.monotonic() - began))
    park.check()


def picture(park: "LocalPark", seconds: float) -> Group:
    """Return what is shown now."""
    lines = park.lines()
    table = Table(box=None, pad_edge=False, header_style="dim")
    for name, justify in (("", "left"), ("state", "left"), ("updates", "right"), ("divergence", "right"),
                          ("loss", "right"), ("per second", "right")):  # fmt: skip
        table.add_column(name, justify=justify, no_wrap=True)  # type: ignore[arg-type]
    few = len(park.federation) <= MOST_ROWS
    for name in park.stations:
        status = park.status(name)
        if status is None:
            table.add_row(Text(name, "bold"), Text("starting", "yellow"))
            continue
        _station_row(table, status)
        if few:
            for device in status.devices:
                _device_row(table, device)
    logs = Text(f"logs of all processes: {park.folder / 'logs'}", "dim", no_wrap=True, overflow="ellipsis")
    return Group(_headline(park, lines, seconds), Text(), table, Text(), logs)


def _headline(park: "LocalPark", lines: list[dict[str, Any]], seconds: float) -> Text:
    rounds = park.settings.training.rounds
    done = lines[-1]["round"] if lines else 0
    reached = next((shown_score(line) for line in reversed(lines) if shown_score(line)), "not tested yet")
    shown = Text.assemble("round ", (f"{done}/{rounds}", "bold"), "   ", (reached, "bold"))
    if lines and "divergence" in lines[-1]:
        shown.append(f"   divergence {lines[-1]['divergence']:.3f}")
    shown.append(f"   {int(seconds) // 60}:{int(seconds) % 60:02d}   Ctrl-C ends it", "dim")
    return shown


def _station_row(table: Table, status: Any) -> None:
    online = sum(device.state != "offline" for device in status.devices)
    state = f"iteration {status.iteration}/{status.iterations}" if status.iterations else "waiting for the top server"
    table.add_row(
        Text(f"{status.name}  {online} online", "bold"),
        state,
        "",
        f"{status.divergence:.3f}" if status.loss else "",
        f"{status.loss:.3f}" if status.loss else "",
        f"{status.iterations_per_second:.1f}" if status.iterations_per_second else "",
    )


def _device_row(table: Table, device: Any) -> None:
    state = Text(device.state, _STYLES.get(device.state, ""))
    if device.failures:
        state.append(f", {device.failures} failed", "red")  # why, its station's log says
    table.add_row(f"  {device.name}", state, str(device.turns))


def _lines_only(park: "LocalPark") -> None:
    told = 0
    while True:
        ended = park.done
        lines = park.lines()
        for line in lines[told:]:
            shown = [f"round {line['round']}/{park.settings.training.rounds}"]
            shown += [shown_score(line)] if shown_score(line) else []
            shown += [f"divergence {line['divergence']:.3f}"] if "divergence" in line else []
            typer.echo("  ".join(shown))
        told = len(lines)
        park.check()
        if ended:
            return
        time.sleep(EVERY)
