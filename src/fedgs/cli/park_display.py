"""The table of a park: a row a station, a row a device, and the progress of the run above them; live, or once.

Without a terminal a line a round is printed instead of a live table.
"""

import json
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

import typer
from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from fedgs.deploy.proto import fedgs_wire_pb2 as pb
from fedgs.deploy.top_client import shown_score
from fedgs.errors import PeerError

if TYPE_CHECKING:
    from fedgs.deploy.park import LocalPark
    from fedgs.deploy.top_client import Followed

EVERY = 0.4
"""Seconds between two looks."""
MOST_ROWS = 30
"""Devices in the table; of larger parks each station's row counts them."""
MOST_EVENTS = 5
PIPED = 1000
"""Characters of a line where there is no terminal."""
_STYLES = {"ready": "green", "training": "bold cyan", "waiting": "yellow", "late": "yellow", "quarantined": "red",
           "offline": "dim", "warning": "yellow", "error": "red"}  # fmt: skip


def watch(park: "LocalPark", console: Console | None = None, told: int = 0) -> None:
    """Show the park until its top server has ended; without a terminal, the rounds after the first ``told`` ones."""
    console = console or Console(stderr=True)
    began = time.monotonic()
    if not console.is_terminal:
        _lines_only(park, told)
        return

    def shown() -> Group:
        seconds, status = time.monotonic() - began, park.status()
        where = f"logs of all processes: {park.folder / 'logs'}"
        asked = f"fedgs status --top {park.operators} --certificates {park.folder / 'pki/operator/operator'}"
        tail = [_line(notice, "yellow") for notice in park.notices[-3:]] + [_line(where, "dim")]
        tail += [_line(f"from elsewhere: {asked}", "dim")] if park.operators else []
        clock = f"{int(seconds) // 60}:{int(seconds) % 60:02d}   Ctrl-C ends it"
        return picture(status, [json.loads(line) for line in status.lines], clock, tail)

    with Live(shown(), console=console, refresh_per_second=8, transient=False) as live:
        while not park.done:
            park.check()
            park.follow()
            live.update(shown())
            time.sleep(EVERY)
        live.update(shown())
    park.check()


def show(followed: "Followed") -> None:
    """Print how a run goes, once, with every word of it; what is not a terminal has room for long lines."""
    console = Console(highlight=False)
    if not console.is_terminal:
        console.width = PIPED
    console.print(_picture_of(followed, whole=True))


def follow(followed: "Followed", console: Console | None = None) -> None:
    """Show a run until its last round is done; a top server that does not answer for a while is waited for."""
    console = console or Console(highlight=False)
    if not console.is_terminal:
        told, before = 0, ""
        for fault in looks(followed):
            for line in followed.lines[told:]:
                typer.echo(_round_line(line, followed.status.rounds))
            told = len(followed.lines)
            if fault and fault != before:
                typer.echo(fault, err=True)
            before = fault
        return
    bad: list[pb.Event] = []
    with Live(_picture_of(followed), console=console, refresh_per_second=8) as live:
        for fault in looks(followed):
            bad = _newest([*bad, *(() if fault else _bad(followed.status))])
            live.update(_picture_of(followed, bad, "Ctrl-C ends it", fault))


def _bad(status: pb.TopStatus) -> list[pb.Event]:
    return [event for event in status.events if event.level in ("warning", "error")]


def _newest(events: Sequence[pb.Event]) -> list[pb.Event]:
    """Return the last events; those of a station are told later than newer ones of the top server."""

    def moment(event: pb.Event) -> float:
        try:
            return datetime.fromisoformat(event.time).timestamp()
        except ValueError:
            return 0.0

    return sorted(events, key=moment)[-MOST_EVENTS:]


def _picture_of(
    followed: "Followed", bad: Sequence[pb.Event] | None = None, said: str = "", fault: str = "", whole: bool = False
) -> Group:
    """Return the table, and what went wrong lately below it; ``whole``: no line is cut."""
    shown = _newest(_bad(followed.status)) if bad is None else bad
    tail = [_line(f"{one.time} {one.process}: {one.what}  {one.details}", _STYLES[one.level]) for one in shown]
    silent = [f"{one.name}: {one.fault}" for one in followed.status.stations if one.fault]
    tail += [_line(reason, "red") for reason in [*silent, fault] if reason]
    if whole:
        tail = [Text(line.plain, line.style) for line in tail]
    return picture(followed.status, followed.lines, said, tail)


def looks(followed: "Followed", every: float = EVERY) -> Iterator[str]:
    """Look again and again until the run is done, the first time at what is known; yield why there is no answer."""
    fault = ""
    while True:
        yield fault
        if followed.done:
            return
        time.sleep(every)
        try:
            followed.look()
            fault = ""
        except PeerError as error:
            fault = str(error)


def as_data(message: Any) -> dict[str, Any]:
    """Return a message as plain data, with all of its fields."""
    found: dict[str, Any] = {}
    for field in message.DESCRIPTOR.fields:
        value = getattr(message, field.name)
        if field.has_presence and not message.HasField(field.name):
            found[field.name] = None
        elif field.message_type is None:
            found[field.name] = list(value) if isinstance(value, Iterable) and not isinstance(value, str) else value
        elif isinstance(value, Sequence):
            found[field.name] = [as_data(one) for one in value]
        else:
            found[field.name] = as_data(value)
    return found


def picture(status: pb.TopStatus, lines: Sequence[Mapping[str, Any]], said: str, tail: Sequence[Text]) -> Group:
    """Return what is shown of a run: ``said`` beside its progress, ``tail`` below the table."""
    table = Table(box=None, pad_edge=False, header_style="dim")
    table.add_column()  # names give way where there is little room
    table.add_column("state", no_wrap=True)
    for name in ("updates", "divergence", "loss", "per s"):
        table.add_column(name, justify="right", no_wrap=True, min_width=max(5, len(name)))
    devices = [device for report in status.stations for device in report.status.devices]
    online = {device.name for device in devices if device.state != "offline"}
    rows = [  # a device that has moved is shown at its new station only
        (report, [one for one in report.status.devices if one.state != "offline" or one.name not in online])
        for report in status.stations
    ]
    few = sum(len(own) for _, own in rows) <= MOST_ROWS
    for report, own in rows:
        if report.fault:
            table.add_row(_line(report.name, "bold"), Text("no answer", "yellow"))
            continue
        _station_row(table, report.status, own, few)
        if few:
            for device in own:
                _device_row(table, device)
    return Group(_headline(status, lines, said), Text(), table, Text(), *tail)


def _line(text: str, style: str) -> Text:
    return Text(text, style, no_wrap=True, overflow="ellipsis")


def _headline(status: pb.TopStatus, lines: Sequence[Mapping[str, Any]], said: str) -> Text:
    reached = next((shown_score(line) for line in reversed(lines) if shown_score(line)), "not tested yet")
    shown = Text.assemble("round ", (f"{status.round}/{status.rounds}", "bold"), "   ", (reached, "bold"))
    if lines and "divergence" in lines[-1]:
        shown.append(f"   divergence {lines[-1]['divergence']:.3f}")
    shown.append(f"   {said}" if said else "", "dim")
    return shown


def _station_row(table: Table, status: pb.StationStatus, devices: Sequence[pb.DeviceStatus], few: bool) -> None:
    states = Counter(device.state for device in devices)
    done = f"iteration {status.iteration}/{status.iterations}" if status.iterations else "waiting for the top server"
    table.add_row(
        _line(status.name, "bold"),
        f"{len(devices) - states['offline']} online, {done}",
        "",
        f"{status.divergence:.3f}" if status.loss else "",
        f"{status.loss:.3f}" if status.loss else "",
        f"{status.iterations_per_second:.1f}" if status.iterations_per_second else "",
    )
    counts = [f"{states[one]} {one}" for one in ("late", "quarantined", "offline") if states[one]]
    if counts and not few:
        table.add_row("", Text(", ".join(counts), "yellow"))


def _device_row(table: Table, device: pb.DeviceStatus) -> None:
    state = Text(device.state, _STYLES.get(device.state, ""))
    if device.failures:
        state.append(f", {device.failures} failed", "red")  # why, its station's log says
    table.add_row(_line(f"  {device.name}", ""), state, str(device.turns))


def _round_line(line: Mapping[str, Any], rounds: int) -> str:
    shown = [f"round {line['round']}/{rounds}"]
    shown += [shown_score(line)] if shown_score(line) else []
    shown += [f"divergence {line['divergence']:.3f}"] if "divergence" in line else []
    return "  ".join(shown)


def _lines_only(park: "LocalPark", told: int) -> None:
    noticed = 0
    while True:
        ended = park.done
        lines = park.lines()
        for line in lines[told:]:
            typer.echo(_round_line(line, park.settings.training.rounds))
        told = len(lines)
        park.check()
        park.follow()
        for notice in park.notices[noticed:]:
            typer.echo(notice, err=True)
        noticed = len(park.notices)
        if ended:
            return
        time.sleep(EVERY)
