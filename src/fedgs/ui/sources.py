"""What the page shows, as plain data that grows: the folder of a run, of a park, of a top server, or a running one.

A source describes itself once (:meth:`Source.describe`) and then tells what is new (:meth:`Source.news`):

    rounds     lines since the last call: [{"round": 3, "score": 0.71, …, "turns": […], "team": […], "mix": […]}, …]
    events     since the last call: [{"time": "2026-03-09T12:03:07+01:00", "level": …, "what": …, "details": …}, …]
    devices    of parks, as they are now: [[state, turns, failures, last failure], …]
    stations   of parks, as they are now: [{"iteration": …, "silent": why it does not answer, …}, …]
    facts      of parks: who is there now, and whom lines of rounds count; p_real: of a top server, P_real now
    lost       why the top server does not answer; "" where it does
    finished   whether the last round is done
    reset      true: begin again, a run was resumed
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedgs.config import settings_from
from fedgs.deploy.team_file import DEPLOYMENT, TEAMS
from fedgs.errors import InputFileError
from fedgs.simulation.folder import CLOCK, CONFIG, METRICS, SUMMARY, TIMINGS, read_settings, read_task
from fedgs.ui.files import FollowedFile, RoundLines, TopFolder, read_deployment, read_event, read_federation

if TYPE_CHECKING:
    from fedgs.deploy.proto import fedgs_wire_pb2 as pb
    from fedgs.deploy.top_client import TopClient

MOST_LINES = 200
"""Log lines of one process that a browser is sent at first."""


class Source(ABC):
    """Something to look at; every browser has one of its own."""

    @abstractmethod
    def describe(self) -> dict[str, Any]:
        """Return what does not change: names, classes, the number of rounds."""

    @abstractmethod
    def news(self) -> dict[str, Any]:
        """Return what is new since the last call; an empty dict where nothing is."""


class RunSource(Source):
    """The folder of a simulated run, finished or under way."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.settings = folder, read_settings(folder)
        self._begin()

    def _begin(self) -> None:
        self._files = {name: FollowedFile(self.folder / name) for name in (METRICS, CLOCK, TIMINGS, TEAMS)}
        self._rounds: dict[int, dict[str, Any]] = {}
        self._seconds = 0.0
        self._finished: bool | None = None

    def describe(self) -> dict[str, Any]:
        """Return what does not change."""
        settings, task = self.settings, read_task(self.folder)
        name = settings.algorithm.name
        return {
            "kind": "run",
            "name": self.folder.resolve().name,
            "algorithm": name if settings.algorithm.is_baseline else f"{name}, {settings.selection.solver}",
            "baseline": settings.algorithm.is_baseline,
            "score": task["score"],
            "mode": task["mode"],
            "target": settings.eval.target,
            "of_rounds": settings.training.rounds,
            **read_federation(self.folder),
        }

    def news(self) -> dict[str, Any]:
        """Return the rounds since the last call."""
        if not (self.folder / CONFIG).exists():
            raise InputFileError(f"{self.folder}: is gone; what was read before is still shown")
        if any(file.shrunk for file in self._files.values()):
            self._begin()
            return {"reset": True, **self.describe(), **self.news()}
        score = read_task(self.folder)["score"]
        for row in self._files[METRICS].rows():
            keys = ("round", "loss", "train_loss", "divergence", "events", "balanced_accuracy")
            known = {key: row[key] for key in keys if row.get(key) is not None}
            self._of(row["round"]).update(known, score=row.get(score), factory_scores=row.get("factories"))
        for row in self._files[CLOCK].rows():
            self._of(row["round"]).update(simulated=row.get("elapsed"), bytes=row.get("bytes", {}))
        for row in self._files[TIMINGS].rows():
            self._seconds += row.get("seconds", 0.0)
            self._of(row["round"]).update(seconds=self._seconds)
        for row in self._files[TEAMS].rows():
            self._of(row["round"]).update({key: row.get(key) for key in ("turns", "team", "mix")})
            self._of(row["round"])["factory_divergence"] = row.get("divergence")
        whole = [self._rounds.pop(number) for number in sorted(self._rounds) if "seconds" in self._rounds[number]]
        finished = (self.folder / SUMMARY).exists()
        found: dict[str, Any] = {"rounds": whole} if whole else {}
        if finished is not self._finished:
            self._finished = found["finished"] = finished
        return found

    def _of(self, number: int) -> dict[str, Any]:
        """Return the round that lines of several files are put together in."""
        return self._rounds.setdefault(number, {"round": number})


class TopFolderSource(Source):
    """The state folder of a top server, while it works or later: what its stations told of each round."""

    def __init__(self, folder: Path) -> None:
        self.folder, self._facts = folder, read_deployment(folder)
        self.settings = settings_from(self._facts["settings"], str(folder / DEPLOYMENT))
        self._begin()

    def _begin(self) -> None:
        self._top, self._before = TopFolder(self.folder), dict[str, Any]()

    def describe(self) -> dict[str, Any]:
        """Return what does not change, but for who is there."""
        return {
            "kind": "park",
            "name": self.folder.resolve().name,
            "algorithm": f"fedgs, {self.settings.selection.solver}",
            "baseline": False,
            "score": self._facts["score"] or "accuracy",
            "mode": "max",
            "target": self.settings.eval.target,
            "of_rounds": self.settings.training.rounds,
            "classes": self._facts["classes"],
            "p_real": self._facts["target"],
            "factories": [],
            "devices": [],
        }

    def news(self) -> dict[str, Any]:
        """Return the rounds since the last call, and who has turned up in them."""
        if not (self.folder / DEPLOYMENT).exists():
            raise InputFileError(f"{self.folder}: is gone; what was read before is still shown")
        if self._top.shrunk:
            self._begin()
            return {"reset": True, **self.describe(), **self.news()}
        rounds = self._top.rounds()
        found: dict[str, Any] = {"rounds": rounds} if rounds else {}
        if not rounds:
            return found
        place = {name: number for number, name in enumerate(self._top.homes)}
        devices = [[name, place[station]] for name, station in self._top.roster.items()]
        now = {
            "facts": {"factories": list(place), "devices": devices, **in_order(self._top)},
            "p_real": read_deployment(self.folder)["target"],
            "finished": rounds[-1]["round"] >= self.settings.training.rounds,
        }
        return found | changed(self._before, now)


def in_order(top: TopFolder) -> dict[str, list[str]]:
    """Return whom lines of rounds count."""
    return {"roster": list(top.roster), "homes": list(top.homes)}


class ParkSource(Source):
    """The folder of a park on this machine: its rounds, its logs, and its stations, asked while somebody looks."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.settings = folder, read_settings(folder)
        self._top = TopFolder(folder / "top")
        self._logs: dict[str, FollowedFile] = {}
        facts = read_federation(folder)
        homes: dict[str, list[str]] = {f"station-{place + 1}": [] for place in range(len(facts["factories"]))}
        for name, place in facts["devices"]:
            homes[f"station-{place + 1}"].append(name)
        self._stations = StationStates(homes)
        self._before = dict[str, Any]()

    def describe(self) -> dict[str, Any]:
        """Return what does not change."""
        return {
            "kind": "park",
            "name": self.folder.resolve().name,
            "algorithm": f"fedgs, {self.settings.selection.solver}",
            "baseline": False,
            "score": self._top.score or "accuracy",
            "mode": "max",
            "target": self.settings.eval.target,
            "of_rounds": self.settings.training.rounds,
            **read_federation(self.folder),
            **self._stations.facts,
        }

    def news(self) -> dict[str, Any]:
        """Return new rounds and events, and how stations and devices are now."""
        from fedgs.deploy.park import reports

        if self._top.shrunk:
            self._top, self._before = TopFolder(self.folder / "top"), dict[str, Any]()
            return {"reset": True, **self.describe(), **self.news()}
        rounds = self._top.rounds()
        found: dict[str, Any] = {"rounds": rounds} if rounds else {}
        events = [event for path in sorted((self.folder / "logs").glob("*.log")) for event in self._events(path)]
        if events:
            found["events"] = sorted(events, key=lambda event: str(event["time"]))
        now = self._stations.now(reports(self.folder))
        now["facts"] = {**self._stations.facts, **in_order(self._top)}
        if rounds:
            now["finished"] = rounds[-1]["round"] >= self.settings.training.rounds
        return found | changed(self._before, now)

    def _events(self, path: Path) -> list[dict[str, Any]]:
        file = self._logs.setdefault(path.stem, FollowedFile(path))
        found = (read_event(line, path.stem) for line in file.lines()[-MOST_LINES:])
        return [event for event in found if event is not None]


class TopSource(Source):
    """A park anywhere, as its top server tells."""

    def __init__(self, client: "TopClient") -> None:
        """Ask for the first time: :class:`PeerError` where the top server does not answer."""
        from fedgs.deploy.top_client import Followed

        self._client, self._run = client, Followed(client)
        self._begin()

    def _begin(self) -> None:
        self._lines, self._told, self._before = RoundLines(), 0, dict[str, Any]()
        self._events = list(self._run.status.events)
        self._stations = StationStates()
        self._stations.now(self._run.status.stations)

    def describe(self) -> dict[str, Any]:
        """Return what does not change, but for who is there."""
        status, run = self._run.status, self._run
        return {
            "kind": "park",
            "name": status.run or self._client.address,
            "algorithm": f"fedgs, {status.solver}",
            "baseline": False,
            "score": status.score or "accuracy",
            "mode": "max",
            "target": status.goal if status.HasField("goal") else None,
            "of_rounds": status.rounds,
            "classes": run.classes,
            "p_real": list(status.target),
            **self._stations.facts,
        }

    def news(self) -> dict[str, Any]:
        """Return new rounds and events, and how stations and devices are now; or why the top server does not answer."""
        from fedgs.errors import PeerError

        try:
            before = self._run.status.run
            anew = self._run.look() or self._run.status.run != before  # known only once the run has begun
        except PeerError as error:
            done = {"finished": True} if self._run.done else {"lost": str(error)}
            return changed(self._before, done)
        if anew:
            self._begin()
            return {"reset": True, **self.describe(), **self._new()}
        self._events += self._run.status.events
        return self._new()

    def _new(self) -> dict[str, Any]:
        run = self._run
        rounds = self._lines.shown(run.lines[self._told :])
        self._told = len(run.lines)
        found: dict[str, Any] = {"rounds": rounds} if rounds else {}
        if self._events:
            ordered = sorted(self._events, key=lambda event: str(event.time))
            found["events"] = [{key: getattr(event, key) for key in EVENT} for event in ordered]
            self._events = []
        now = self._stations.now(run.status.stations)
        now |= {"facts": self._stations.facts, "p_real": list(run.status.target), "finished": run.done, "lost": ""}
        return found | changed(self._before, now)


class StationStates:
    """Stations and devices: who there is, and how they are.

    A device is shown where it is online, and else where it was. Of a station that does not answer the last numbers are
    kept, and its devices are gone.
    """

    def __init__(self, homes: Mapping[str, Sequence[str]] | None = None) -> None:
        """``homes``: stations and devices that are known beforehand; a device that nobody has seen is gone."""
        self._homes = {station: list(devices) for station, devices in (homes or {}).items()}
        self._devices = dict(self._homes)
        self._last: dict[str, dict[str, Any]] = {}
        self._turns: dict[tuple[str, str], list[Any]] = {}

    @property
    def facts(self) -> dict[str, Any]:
        """Who there is."""
        places = enumerate(self._devices.values())
        return {"factories": list(self._devices), "devices": [[name, one] for one, own in places for name in own]}

    def now(self, reports: "Sequence[pb.StationReport]") -> dict[str, Any]:
        """Return the state of every device, and the progress of every station."""
        states = {(one.name, report.name): one.state for report in reports for one in report.status.devices}
        online = {name for (name, _), state in states.items() if state != "offline"}
        before, self._devices = self._devices, {} if reports else self._devices
        for report in reports:
            status, station = report.status, report.name
            known = before.get(station, []) if report.fault else [one.name for one in status.devices]
            self._devices[station] = [
                name for name in known if name not in online or states.get((name, station), "offline") != "offline"
            ]
            if report.fault:
                self._last[station] = {**self._last.get(station, {}), "silent": report.fault}
                continue
            self._last[station] = {**{key: getattr(status, key) for key in STATION}, "mix": list(status.mix)}
            for one in status.devices:
                self._turns[one.name, station] = [one.turns, one.failures, one.last_failure]
        shown = {name for own in self._devices.values() for name in own}
        for station, own in self._homes.items():
            if station in self._devices and not shown.issuperset(own):
                self._devices[station] = sorted({*self._devices[station], *own} - (shown - {*self._devices[station]}))
        pairs = [(name, station) for station, own in self._devices.items() for name in own]
        told = [STATES.get(state, state) for state in (states.get(pair, "offline") for pair in pairs)]
        devices = [[state, *self._turns.get(pair, [0, 0, ""])] for state, pair in zip(told, pairs, strict=True)]
        return {"devices": devices, "stations": [self._last.get(station, {}) for station in self._devices]}


def changed(before: dict[str, Any], now: dict[str, Any]) -> dict[str, Any]:
    """Return what differs from what was told before, and note it."""
    found = {key: value for key, value in now.items() if before.get(key) != value}
    before.update(found)
    return found


STATION = (
    "round", "iteration", "iterations", "divergence", "loss", "iterations_per_second", "sent_bytes", "received_bytes",
    "top_sent_bytes", "top_received_bytes",
)  # fmt: skip
"""What is told of a station."""
EVENT = ("time", "level", "process", "what", "details")
STATES = {"ready": "idle", "waiting": "idle", "training": "selected", "offline": "gone"}
"""What a station calls a device's state, and what the page calls it, where that differs."""


def make_source(folder: Path) -> Source:
    """Return the source of a folder."""
    if not (folder / CONFIG).is_file() and (folder / DEPLOYMENT).is_file():
        return TopFolderSource(folder)
    if not (folder / CONFIG).is_file():
        raise InputFileError(f"{folder}: is neither the folder of a run nor of a park, {CONFIG} is missing")
    return ParkSource(folder) if (folder / "commands.txt").exists() or (folder / "top").is_dir() else RunSource(folder)
