"""The folder of a run, and the running itself: what was asked for, what happened in each round, what came out.

    runs/NAME/config.json         all settings, presets and overrides resolved; fedgs run takes it as a config
    runs/NAME/metrics.jsonl       a line a round; the same seed gives the same bytes (processors)
    runs/NAME/timings.jsonl       a line a round: seconds and memory, which differ from run to run
    runs/NAME/clock.jsonl         a line a round: seconds and bytes the round would take in a real park
    runs/NAME/checkpoints/        the last two, for fedgs resume
    runs/NAME/summary.json        what the run comes to; devices.csv the same for every device
    runs/NAME/model.safetensors   the global model
    runs/NAME/pretraining/        the run before this one, of an approach that begins with a trained network

A run that is killed at any moment can be resumed: metrics and clock are cut back to the checkpoint's round and go
on from there without a hole or a double line.
"""

import json
import os
import shutil
from collections.abc import Sequence
from contextlib import suppress
from hashlib import blake2b
from pathlib import Path
from typing import Any, TextIO

import torch

from fedgs.algorithms.run_state import RunState
from fedgs.config import settings_from
from fedgs.data import Federation
from fedgs.errors import InputFileError, OutputError, TrainingError
from fedgs.files import make_folder, write_text
from fedgs.settings import Settings
from fedgs.simulation import pretraining
from fedgs.simulation.callbacks import Watcher
from fedgs.simulation.checkpoint import load_newest, save_checkpoint, save_model
from fedgs.simulation.memory import memory_errors_in_words, resident_megabytes
from fedgs.simulation.process_group import World
from fedgs.simulation.simulator import Simulator
from fedgs.simulation.summary import summarise, write_devices

CONFIG, METRICS, TIMINGS, SUMMARY = "config.json", "metrics.jsonl", "timings.jsonl", "summary.json"
CLOCK = "clock.jsonl"
CHECKPOINTS, MODEL, DEVICES = "checkpoints", "model.safetensors", "devices.csv"


def create_run(folder: Path, settings: Settings) -> None:
    """Make the folder of a new run; one that exists is left as it is and refused."""
    if folder.exists():
        raise OutputError(
            f"{folder}: exists already; choose another folder with --out, or go on with: fedgs resume {folder}"
        )
    make_folder(folder.parent)
    temporary = folder.with_name(f".{folder.name}.{os.getpid()}")
    make_folder(temporary)
    write_text(temporary / CONFIG, json.dumps(settings.model_dump(), indent=1) + "\n")
    try:
        os.rename(temporary, folder)  # a run folder always has its settings in it
    except OSError as error:
        raise OutputError(f"{folder}: cannot be made ({error.strerror}); choose another folder with --out") from None


def discard_if_unused(folder: Path) -> None:
    """Remove the folder of a run that never began, so that it is not in the way of the next try."""
    if is_unused(folder):
        shutil.rmtree(folder, ignore_errors=True)


def is_unused(folder: Path) -> bool:
    """Whether a run has its settings and nothing else."""
    return {path.name for path in folder.glob("*")} == {CONFIG}


def read_settings(folder: Path) -> Settings:
    """Return the settings of a run."""
    path = folder / CONFIG
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        raise InputFileError(f"{folder}: is not the folder of a run, {CONFIG} is missing or broken") from None
    return settings_from(values, str(path))


def read_metrics(folder: Path) -> list[dict[str, Any]]:
    """Return the lines of a run's metrics file; an unfinished last line is left out."""
    path = folder / METRICS
    try:
        text = path.read_text(encoding="utf-8")
        return [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]
    except (OSError, ValueError):
        raise InputFileError(f"{path}: is missing or broken; give the folder of a run") from None


def read_clock(folder: Path) -> list[dict[str, Any]] | None:
    """Return the lines of a run's clock; None of a run that was made before there was one."""
    path = folder / CLOCK
    if not path.exists():
        return None
    try:
        text = path.read_text(encoding="utf-8")
        lines = [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]
        if not lines or not all(_is_clock_line(line) for line in lines) or "step_seconds" not in lines[0]:
            raise ValueError
    except (OSError, ValueError):
        raise InputFileError(f"{path}: is broken; repeat the run, or take the file away") from None
    return lines


def _is_clock_line(line: Any) -> bool:
    if not isinstance(line, dict) or not isinstance(line.get("round"), int):
        return False
    amounts = line.get("bytes", {})
    if not isinstance(amounts, dict):
        return False
    numbers = [line.get("elapsed"), *amounts.values(), *(line[key] for key in ("step_seconds",) if key in line)]
    return all(isinstance(number, int | float) for number in numbers)


def read_summary(folder: Path) -> dict[str, Any] | None:
    """Return the summary of a run; None where it has not come to its end."""
    if not is_finished(folder):
        return None
    try:
        found: dict[str, Any] = json.loads((folder / SUMMARY).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        raise InputFileError(f"{folder / SUMMARY}: is broken; take it away and resume the run") from None
    return found


def is_finished(folder: Path) -> bool:
    """Whether a run has come to its end."""
    return (folder / SUMMARY).exists()


def run_identity(settings: Settings, federation: Federation, purpose: str = "") -> str:
    """Return what a checkpoint of this run is known by: all settings, the federation, and what it is for."""
    text = json.dumps(settings.model_dump(), sort_keys=True) + federation.fingerprint() + purpose
    for file in (settings.dynamics.trace, settings.clock.profile):
        if file and Path(file).is_file():  # its content, not only its name, is part of the run
            text += blake2b(Path(file).read_bytes(), digest_size=16).hexdigest()
    return blake2b(text.encode(), digest_size=16).hexdigest()


def execute(
    folder: Path,
    settings: Settings,
    federation: Federation,
    device: str | torch.device = "cpu",
    world: World | None = None,
    watchers: Sequence[Watcher] = (),
) -> dict[str, Any]:
    """Carry out a run from its newest checkpoint, or from the beginning, and return its summary."""
    world = world or World()
    if world.size > 1:
        world.wait()  # for the first rank to have made the folder
    with memory_errors_in_words():
        return _execute(folder, settings, federation, torch.device(device), world, watchers)[0]


def _execute(
    folder: Path,
    settings: Settings,
    federation: Federation,
    device: torch.device,
    world: World,
    watchers: Sequence[Watcher],
    purpose: str = "",
) -> tuple[dict[str, Any], RunState]:
    def note(line: str) -> None:
        for watcher in watchers:
            watcher.note(line)

    def tick(iterations: float) -> None:
        for watcher in watchers:
            watcher.tick(iterations)

    identity = run_identity(settings, federation, purpose)
    with Simulator(settings, federation, device, world, tick=tick, purpose=purpose) as simulator:
        state = load_newest(folder / CHECKPOINTS, simulator.layout, identity, note)
        fresh = state is None
        if state is None:
            state = simulator.begin(_pretrained(folder, settings, federation, device, world, watchers))
        world.wait()  # nobody writes a checkpoint before all have read
        files = _Files(folder, state) if world.first else None
        for watcher in watchers:
            watcher.begin(state)
        try:
            if fresh:
                _save(folder, simulator, state, identity)
                if files is not None:
                    files.timing(state, simulator)
            for following in simulator.rounds(state):
                state = following
                if files is not None:
                    files.line(state)
                    files.timing(state, simulator)
                if state.round % settings.checkpoint.every == 0 or state.round == settings.training.rounds:
                    _save(folder, simulator, state, identity)
                for watcher in watchers:
                    watcher.round(state, simulator.timing)
        except TrainingError:
            _save(folder, simulator, state, identity)  # the last good round
            raise
        except KeyboardInterrupt:
            if world.size == 1:
                _save(folder, simulator, state, identity)
            raise
        finally:
            if files is not None:
                files.close()
            for watcher in watchers:
                watcher.end()
        if simulator.last_evaluation is None:  # resumed with nothing left to do
            simulator.last_evaluation = simulator.evaluate(state)
        before = read_summary(folder / pretraining.FOLDER)
        summary = summarise(settings, federation, state, _read_timings(folder), before)
        if world.first:
            save_model(folder / MODEL, state.tested, simulator.layout)
            write_devices(folder / DEVICES, federation, state, simulator.last_evaluation)
            write_text(folder / SUMMARY, json.dumps(summary, indent=1) + "\n")
        return summary, state


def _pretrained(
    folder: Path,
    settings: Settings,
    federation: Federation,
    device: torch.device,
    world: World,
    watchers: Sequence[Watcher],
) -> RunState | None:
    """Carry out the run before this one, where there is to be one, or go on with it; return the state it comes to."""
    before = pretraining.pretraining_of(settings)
    if before is None:
        return None
    inner = folder / pretraining.FOLDER
    if world.first and not inner.exists():
        create_run(inner, before)
    world.wait()
    onlookers = [onlooker for watcher in watchers if (onlooker := watcher.pretraining(before)) is not None]
    for watcher in onlookers:
        watcher.note(f"{before.training.rounds} rounds of FedAvg come before the first round, see {inner}")
    try:
        _, state = _execute(inner, before, federation, device, world, onlookers, pretraining.PURPOSE)
    except TrainingError as error:
        raise TrainingError(f"pre-training, {error}") from None
    return state


def _save(folder: Path, simulator: Simulator, state: RunState, identity: str) -> None:
    whole = simulator.gathered(state)
    if simulator.world.first:
        save_checkpoint(folder / CHECKPOINTS, whole, simulator.layout, identity)


class _Files:
    """The three files that grow by a line a round."""

    def __init__(self, folder: Path, state: RunState) -> None:
        earlier = [line for line in _read_timings(folder) if line["round"] <= state.round]
        write_text(folder / METRICS, _lines(state.metrics))
        write_text(folder / TIMINGS, _lines(earlier))
        write_text(folder / CLOCK, _lines(state.clock))
        try:
            self._metrics = (folder / METRICS).open("a", encoding="utf-8")
            self._timings = (folder / TIMINGS).open("a", encoding="utf-8")
            self._clock = (folder / CLOCK).open("a", encoding="utf-8")
        except OSError as error:
            raise OutputError(f"{folder}: cannot be written to ({error.strerror})") from None

    def line(self, state: RunState) -> None:
        """Add the last round's lines."""
        self._append(self._metrics, state.metrics[-1])
        self._append(self._clock, state.clock[-1])

    def timing(self, state: RunState, simulator: Simulator) -> None:
        """Add what the last round took."""
        timing = simulator.timing
        facts = {
            "round": state.round,
            "seconds": round(timing.total, 4),
            "training": round(timing.training, 4),
            "evaluation": round(timing.evaluation, 4),
            "waiting": round(timing.waiting, 4),
            "megabytes": resident_megabytes(),
        }
        self._append(self._timings, facts)

    def _append(self, file: TextIO, row: dict[str, Any]) -> None:
        try:
            file.write(_lines([row]))
            file.flush()
        except OSError as error:
            raise OutputError(f"{file.name}: cannot be written ({error.strerror})") from None

    def close(self) -> None:
        """Close them."""
        for file in (self._metrics, self._timings, self._clock):
            file.close()


def _lines(rows: Sequence[dict[str, Any]]) -> str:
    return "".join(json.dumps(row, allow_nan=False) + "\n" for row in rows)


def _read_timings(folder: Path) -> list[dict[str, Any]]:
    path = folder / TIMINGS
    if not path.exists():
        return []
    found = []
    for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
        with suppress(ValueError):  # half a line of a killed process; it is only about time
            row = json.loads(line)
            if isinstance(row, dict) and "round" in row:
                found.append(row)
    return found
