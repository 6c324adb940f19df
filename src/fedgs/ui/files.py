"""The files that a page follows: lines that were added, rounds and teams of a top server, events in logs.

Files are followed by their size, so a call costs what was added, not what is there.
"""

import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from fedgs.data.federation import FEDERATION
from fedgs.deploy.factory_numbers import FILE as STATIONS
from fedgs.deploy.team_file import DEPLOYMENT, TEAMS
from fedgs.errors import InputFileError
from fedgs.files import finite
from fedgs.simulation.folder import METRICS


class FollowedFile:
    """The whole lines that were added to a file since the last look."""

    def __init__(self, path: Path) -> None:
        self.path, self._place = path, 0

    @property
    def shrunk(self) -> bool:
        """Whether the file is shorter than what was read: a run that was resumed has cut it back."""
        try:
            return self.path.stat().st_size < self._place
        except OSError:
            return self._place > 0

    def lines(self) -> list[str]:
        """Return the new lines; one that is still being written waits for the next call."""
        try:
            with self.path.open("rb") as file:
                file.seek(self._place)
                text = file.read()
        except OSError:
            return []
        whole = text[: text.rfind(b"\n") + 1]
        self._place += len(whole)
        return whole.decode("utf-8", "replace").splitlines()

    def rows(self) -> Iterator[dict[str, Any]]:
        """Yield the new lines as JSON objects; a broken one is left out."""
        for line in self.lines():
            try:
                row = json.loads(line)
            except ValueError:
                continue
            if isinstance(row, dict):
                yield row


class RoundLines:
    """Lines of rounds, as the page takes them."""

    def __init__(self) -> None:
        self._seconds, self._score = 0.0, ""

    def shown(self, rows: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
        """Return the next rounds."""
        found = []
        for row in rows:
            self._score = self._score or score_of([row])
            self._seconds += row.get("seconds", 0.0)
            keys = ("round", "loss", "train_loss", "divergence", "balanced_accuracy", "events")
            known = {key: row[key] for key in keys if row.get(key) is not None}
            found.append(finite({**known, "score": row.get(self._score), "seconds": self._seconds}))
        return found


def score_of(rows: Iterable[dict[str, Any]]) -> str:
    """Return the name of the score: it comes first in a line of a round that was tested; "" before that."""
    first = next(iter(rows), {})
    return next((key for key in first if key != "round"), "") if "loss" in first else ""


class TopFolder:
    """The rounds in the state folder of a top server, with who took part.

    Devices and stations come and go. ``roster`` and ``homes`` name them in the order in which they turned up; lines of
    rounds count by these lists.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._metrics, self._teams = FollowedFile(folder / METRICS), FollowedFile(folder / TEAMS)
        self._lines, self._parts = RoundLines(), dict[int, dict[str, Any]]()
        self.roster: dict[str, str] = {}
        """The station at which each device was last."""
        self.homes: list[str] = []

    @property
    def shrunk(self) -> bool:
        """Whether a restart has cut rounds off."""
        return self._metrics.shrunk or self._teams.shrunk

    @property
    def score(self) -> str:
        """The name of the score; "" where no round was tested yet."""
        return score_of(FollowedFile(self._metrics.path).rows())

    def rounds(self) -> list[dict[str, Any]]:
        """Return the rounds since the last call."""
        found = self._lines.shown(self._metrics.rows())
        if found:  # the team of a round is written before its metrics
            numbers = self._numbers()
            for row in self._teams.rows():
                if isinstance(row.get("stations"), dict):
                    self._parts[row["round"]] = self._line(row["stations"], numbers)
        return [line | self._parts.pop(line["round"], {}) for line in found]

    def _numbers(self) -> dict[str, str]:
        """Return the name of each station, by its number."""
        try:
            known = json.loads((self._folder / STATIONS).read_text(encoding="utf-8"))["stations"]
            return {str(number): str(name) for name, number in known.items()}
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            return {}

    def _line(self, stations: dict[str, dict[str, Any]], names: Mapping[str, str]) -> dict[str, Any]:
        """Return what a round's line says of its teams."""
        parts = {names.get(number, f"station {number}"): part for number, part in stations.items()}
        self.homes += [name for name in parts if name not in self.homes]
        for station, part in parts.items():
            self.roster |= dict.fromkeys(part["turns"], station)
        turns: Counter[str] = Counter()
        sent: Counter[str] = Counter()
        for part in parts.values():
            turns.update(part["turns"])
            sent.update(part["bytes"])
        row = {name: number for number, name in enumerate(self.roster)}
        own = [parts.get(name, {}) for name in self.homes]
        return {
            "turns": [turns[name] for name in self.roster],
            "team": [[row[name] for name in part.get("team", []) if name in row] for part in own],
            "mix": [part.get("mix", []) for part in own],
            "factory_divergence": [part.get("divergence") for part in own],
            "bytes": dict(sent),
        }


def read_deployment(folder: Path) -> dict[str, Any]:
    """Return what a top server says of its run."""
    try:
        facts = json.loads((folder / DEPLOYMENT).read_text(encoding="utf-8"))
        return {key: facts[key] for key in ("settings", "score", "classes", "target")}
    except (OSError, ValueError, KeyError, TypeError):
        raise InputFileError(f"{folder / DEPLOYMENT}: is missing or broken; start the top server once more") from None


def read_federation(folder: Path) -> dict[str, Any]:
    """Return who there is; of a run that did not write it, nobody."""
    try:
        facts = json.loads((folder / FEDERATION).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {"factories": [], "devices": [], "classes": [], "p_real": []}
    return {**{key: facts[key] for key in ("factories", "devices", "classes")}, "p_real": facts["target"]}


_EVENT = re.compile(r"(\d{4}-\d\d-\d\dT\S+) (\w+) +(.*?)(?:  (\w+=.*))?$")


def read_event(line: str, process: str) -> dict[str, Any] | None:
    """Return a line of a process's log, plain or JSON; None of what is neither."""
    if line.startswith("{"):
        try:
            facts = json.loads(line)
            rest = {key: facts[key] for key in facts if key not in ("time", "level", "process", "event", "traceback")}
            details = " ".join(f"{key}={value}" for key, value in rest.items())
            event = {"time": str(facts["time"]), "level": facts["level"], "what": facts["event"], "details": details}
        except (ValueError, KeyError):
            return None
        return event | {"process": process}
    found = _EVENT.match(line)
    if found is None:
        return None
    moment, level, what, details = found.groups()
    return {"time": moment, "level": level.lower(), "what": what, "details": details or "", "process": process}
