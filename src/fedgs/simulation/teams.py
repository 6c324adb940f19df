"""Who took part in each round, for the live page and for whoever wants to look closer.

    federation.json   {"factories": [name, …], "devices": [[name, factory], …], "classes": [name, …], "target": P_real}
    teams.jsonl       {"round": 3, "turns": [0, 4, …], "team": [[1, 5], …], "mix": [[12, 0, …], …], "divergence": […]}

``turns`` counts how often each device was selected in the round, ``team`` names the devices of each factory's last
team, ``mix`` counts the samples of each class that a factory's teams trained on. A baseline has one team, all
participants of the round, and no factories: its lists have one entry.
"""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fedgs.algorithms.run_state import RunState
from fedgs.data import Federation
from fedgs.data.federation import FEDERATION
from fedgs.files import finite, write_text
from fedgs.simulation.callbacks import Callback
from fedgs.training.round_plan import RoundPlan

if TYPE_CHECKING:
    from fedgs.simulation.run import Run

TEAMS = "teams.jsonl"


class TeamLog(Callback):
    """Writes the two files into the folder of a run; a resumed run cuts the lines back to its checkpoint."""

    def __init__(self, folder: Path) -> None:
        self._path, self._run = folder / TEAMS, None
        self._folder = folder

    _run: "Run | None"

    def on_begin(self, run: "Run") -> None:
        """Write who there is."""
        if not run.group.first:
            return
        self._run = run
        write_text(self._folder / FEDERATION, json.dumps(run.simulator.federation.facts()) + "\n")
        lines = self._path.read_text(encoding="utf-8").splitlines() if self._path.exists() else []
        write_text(self._path, "".join(f"{line}\n" for line in lines[: run.state.round]))

    def on_round(self, state: RunState, metrics: dict[str, Any]) -> None:
        """Add the line of a round."""
        if self._run is not None:
            with self._path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(finite(team_line(self._run, self._run.simulator.last_plan))) + "\n")


def changes_of(folder: Path, federation: Federation) -> str:
    """Return which devices and classes a run's folder names that are not there now, or others; "" where none."""
    try:
        before = json.loads((folder / FEDERATION).read_text(encoding="utf-8"))
        pairs = {
            "devices": ([name for name, _ in before["devices"]], federation.device_names),
            "classes": (before["classes"], federation.classes),
        }
    except (OSError, ValueError, KeyError, TypeError):
        return ""
    found = []
    for what, (old, new) in pairs.items():
        for how, names in (("missing", set(old).difference(new)), ("new", set(new).difference(old))):
            if names:
                found.append(f"{what} {how}: {', '.join(sorted(names)[:3])}{', …' if len(names) > 3 else ''}")
    return "; ".join(found)


def team_line(run: "Run", plan: Any) -> dict[str, Any]:
    """Return the line of a round."""
    federation = run.simulator.federation
    turns = np.bincount(plan.devices[plan.devices >= 0].ravel(), minlength=len(federation))
    line: dict[str, Any] = {"round": plan.round, "turns": turns.tolist()}
    if isinstance(plan, RoundPlan):
        last = [column[max(np.flatnonzero((column >= 0).any(1)), default=0)] for column in plan.devices.swapaxes(0, 1)]
        means = [float(np.nanmean(column)) if (column == column).any() else None for column in plan.divergence.T]
        return line | {
            "team": [row[row >= 0].tolist() for row in last],
            "mix": plan.seen.tolist(),
            "divergence": means,
        }
    mix = federation.train_counts[plan.devices].sum(axis=0)
    return line | {"team": [plan.devices.tolist()], "mix": [mix.tolist()], "divergence": [plan.divergence]}
