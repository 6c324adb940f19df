"""What the live page shows of a run that has ended, beside its metrics (:mod:`fedgs.ui.files`).

    state/deployment.json   {"settings": {…}, "score": name, "classes": [name, …], "target": P_real}
    state/teams.jsonl       {"round": 3, "stations": {"0": {"turns": {device: 4, …}, "team": [device, …],
                             "mix": [12, 0, …], "divergence": 0.1, "bytes": {"device_station_up": 31200, …}}, …}}

A line a round, a station by its number (``stations.json`` has the names). ``turns`` counts the updates of a device that
went into the weights; a device that was only online has 0. ``team`` and ``mix`` are those of the last iteration. Nobody
resumes from these files: they are written once the round is done, and not forced onto the disk.
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedgs.errors import OutputError
from fedgs.files import finite, write_text
from fedgs.settings import Settings

if TYPE_CHECKING:  # it needs protobuf, which the page of a simulated run does without
    from fedgs.deploy.round_messages import RoundResult

DEPLOYMENT, TEAMS = "deployment.json", "teams.jsonl"


class TeamFile:
    """Both files of a state folder."""

    def __init__(self, folder: Path) -> None:
        self._facts, self._teams = folder / DEPLOYMENT, folder / TEAMS

    def describe(self, settings: Settings, score: str, classes: Sequence[str], target: Sequence[float]) -> None:
        """Write what is true of all rounds; P_real may change with them, where it is estimated."""
        facts = {"settings": settings.model_dump(), "score": score, "classes": list(classes), "target": list(target)}
        write_text(self._facts, json.dumps(facts) + "\n")

    def begin(self, done: int) -> None:
        """Cut off the rounds after those that are done: they are trained again."""
        try:
            lines = self._teams.read_text(encoding="utf-8").splitlines()
        except (OSError, ValueError):
            lines = []
        write_text(self._teams, "".join(f"{line}\n" for line in lines if 0 < _round_of(line) <= done))

    def add(self, number: int, parts: Mapping[str, Any]) -> None:
        """Add the line of a round."""
        try:
            with self._teams.open("a", encoding="utf-8") as file:
                file.write(json.dumps(finite({"round": number, "stations": parts})) + "\n")
        except OSError as error:
            raise OutputError(f"{self._teams}: cannot be written ({error.strerror})") from None


def _round_of(line: str) -> int:
    try:
        return int(json.loads(line)["round"])
    except (ValueError, KeyError, TypeError):
        return 0


def parts_of(results: "Mapping[int, RoundResult]") -> dict[str, Any]:
    """Return what each station had to do with a round, by its number."""
    found = {}
    for factory, result in sorted(results.items()):
        turns = result.turns or [1] * len(result.took_part)  # a station of an earlier version does not tell
        found[str(factory)] = {
            "turns": dict.fromkeys(result.online, 0) | dict(zip(result.took_part, turns, strict=False)),
            "team": list(result.team),
            "mix": list(result.mix),
            "divergence": result.divergence,
            "bytes": {
                "device_station_up": result.received_bytes,
                "device_station_down": result.sent_bytes,
                "station_top_up": result.answer_bytes,
                "station_top_down": result.order_bytes,
            },
        }
    return found
