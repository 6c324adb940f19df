"""The parts of a reproduction: one training run each, its result one JSON file; what is there is not run again.

    parts/table2-fedavg-seed-0.json     settings, federation, versions, hardware, seconds, the curve, the summary

A file counts only if it was made with the same settings and federation; else the part is run anew. Files are written
whole or not at all, so a reproduction can be stopped at any moment and goes on with the next part.
"""

import json
import platform
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from os import cpu_count
from pathlib import Path
from typing import Any

import torch

from fedgs import __version__
from fedgs.config import Settings
from fedgs.data import Federation
from fedgs.files import make_folder, write_text
from fedgs.simulation.memory import memory_errors_in_words
from fedgs.simulation.simulator import Simulator
from fedgs.simulation.state import RunState
from fedgs.simulation.summary import summarise

FORMAT = 1
FOLDER = "parts"


@dataclass(frozen=True)
class Part:
    """One run of a reproduction."""

    name: str
    """Of its file, without the ending."""
    title: str
    """For people."""
    settings: Settings
    federation: str
    """The key of its federation, for :class:`Federations` of the reproduction."""


@dataclass
class Progress:
    """What happens, as it happens; a display overrides what it shows."""

    def begin(self, parts: Sequence[Part], done: int) -> None:
        """So many parts, so many of them there already."""

    def part(self, part: Part) -> None:
        """A part begins."""

    def tick(self, share: float) -> None:
        """So much more of the part is done."""

    def end(self, part: Part) -> None:
        """A part is done."""


Results = dict[str, dict[str, Any]]
"""By part name."""
Federations = Callable[[str, int], Federation]
"""From the key of a federation and a seed to the federation."""


def run_parts(
    parts: Sequence[Part],
    out: Path,
    federations: Federations,
    device: torch.device,
    progress: Progress | None = None,
    stop_after: float | None = None,
) -> Results:
    """Run the parts that are not there yet, in their order, and return all results.

    ``stop_after``: no part begins later than so many seconds from now; those not begun are missing in the results.
    """
    progress = progress or Progress()
    folder = out / FOLDER
    make_folder(folder)
    results: Results = {}
    missing = []
    for part in parts:
        found = read_part(folder, part)
        if found is None:
            missing.append(part)
        else:
            results[part.name] = found
    progress.begin(parts, len(results))
    began = time.perf_counter()
    for part in missing:
        if stop_after is not None and time.perf_counter() - began > stop_after:
            break
        progress.part(part)
        results[part.name] = _run(part, federations(part.federation, part.settings.seed), device, progress)
        write_text(folder / f"{part.name}.json", json.dumps(results[part.name], indent=1) + "\n")
        progress.end(part)
    return {part.name: results[part.name] for part in parts if part.name in results}


def read_part(folder: Path, part: Part) -> dict[str, Any] | None:
    """Return a part's result if there is one for these very settings."""
    try:
        result = json.loads((folder / f"{part.name}.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    same = isinstance(result, dict) and result.get("format") == FORMAT
    same = same and result.get("settings") == _plain(part.settings) and result.get("federation") == part.federation
    return result if same else None


def read_all(out: Path) -> Iterator[dict[str, Any]]:
    """Yield every result of a folder, whatever it was made with."""
    for path in sorted((out / FOLDER).glob("*.json")):
        yield json.loads(path.read_text(encoding="utf-8"))


def _run(part: Part, federation: Federation, device: torch.device, progress: Progress) -> dict[str, Any]:
    settings = part.settings
    work = max(settings.training.rounds * settings.training.iterations, 1)
    began = time.perf_counter()
    with (
        memory_errors_in_words(),
        Simulator(settings, federation, device, tick=lambda iterations: progress.tick(iterations / work)) as simulator,
    ):
        state = simulator.begin()
        for following in simulator.rounds(state):
            state = following
    summary = summarise(settings, federation, state)
    del summary["machine"]
    return {
        "format": FORMAT,
        "part": part.name,
        "title": part.title,
        "federation": part.federation,
        "fingerprint": federation.fingerprint(),
        "settings": _plain(settings),
        "fedgs": __version__,
        "hardware": hardware(device),
        "seconds": round(time.perf_counter() - began, 1),
        "curve": _curve(state),
        "summary": summary,
    }


def _curve(state: RunState) -> dict[str, list[Any]]:
    """Return what was measured in the rounds that were tested."""
    tested = [line for line in state.metrics if "accuracy" in line]
    keys = ("round", "accuracy", "loss", "train_loss", "divergence", "divergence_of_round", "missing_classes")
    return {key: [_short(line.get(key)) for line in tested] for key in keys}


def _short(value: Any) -> Any:
    return float(f"{value:.6g}") if isinstance(value, float) else value


def _plain(settings: Settings) -> dict[str, Any]:
    plain: dict[str, Any] = json.loads(settings.model_dump_json())
    return plain


def hardware(device: torch.device) -> dict[str, Any]:
    """Return what the numbers were computed on."""
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else platform.processor() or platform.machine()
    return {"device": name, "cores": cpu_count(), "torch": torch.__version__, "python": platform.python_version()}
