"""The folder of a run: what was asked for, what happened in each round, what came out.

    runs/NAME/config.json         all settings, presets and overrides resolved; fedgs run takes it as a config
    runs/NAME/task.json           names of the network, the loss, the metrics, the classes
    runs/NAME/metrics.jsonl       a line a round; the same seed gives the same bytes (processors)
    runs/NAME/timings.jsonl       a line a round: seconds and memory, which differ from run to run
    runs/NAME/clock.jsonl         a line a round: seconds and bytes the round would take in a real park
    runs/NAME/checkpoints/        the last two, for fedgs resume
    runs/NAME/summary.json        the results; devices.csv the same for every device
    runs/NAME/model.safetensors   the global model
    runs/NAME/pretraining/        the run before this one, of a baseline that begins with a trained network

A run that is killed at any moment can be resumed: metrics and clock are cut back to the checkpoint's round and go
on from there without a hole or a double line.
"""

import csv
import json
import os
import shutil
from collections.abc import Iterable, Mapping
from contextlib import suppress
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from fedgs.algorithms.run_state import RunState
from fedgs.config import settings_from
from fedgs.data import Federation
from fedgs.data.arrays import digest_of, map_tree
from fedgs.errors import InputFileError, OutputError, TrainingError
from fedgs.files import finite, make_folder, write_text
from fedgs.settings import Settings
from fedgs.simulation.callbacks import Callback
from fedgs.simulation.checkpoint import save_checkpoint
from fedgs.simulation.components import Components, describe_components
from fedgs.simulation.summary import write_devices
from fedgs.tasks.bind import BoundTask
from fedgs.tasks.task import describe
from fedgs.training.layout import MODEL, save_model

if TYPE_CHECKING:
    from fedgs.simulation.history import History
    from fedgs.simulation.run import Run

CONFIG, METRICS, TIMINGS, SUMMARY = "config.json", "metrics.jsonl", "timings.jsonl", "summary.json"
CLOCK, TASK = "clock.jsonl", "task.json"
CHECKPOINTS, DEVICES = "checkpoints", "devices.csv"
Rows = Iterable[Mapping[str, Any]]


def create_run(folder: Path, settings: Settings) -> None:
    """Make the folder of a new run; one that exists is left as it is and refused."""
    if folder.exists():
        raise OutputError(
            f"{folder}: exists already; choose another folder (out), or go on with: fedgs resume {folder}"
        )
    make_folder(folder.parent)
    temporary = folder.with_name(f".{folder.name}.{os.getpid()}")
    make_folder(temporary)
    write_json(temporary / CONFIG, settings.model_dump())
    try:
        os.rename(temporary, folder)  # a run folder always has its settings in it
    except OSError as error:
        raise OutputError(f"{folder}: cannot be made ({error.strerror}); choose another folder (out)") from None


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
    """Return the lines of a run's metrics; each holds what tables and pictures are made of."""
    path, score = folder / METRICS, read_task(folder)["score"]
    try:
        lines = _read_lines(path)
    except (OSError, ValueError):
        raise InputFileError(f"{path}: is missing or broken; give the folder of a run") from None
    for number, line in enumerate(lines, start=1):
        if not _is_round(line, score):
            raise InputFileError(f"{path}: line {number} is not that of a round; repeat the run, or take the line out")
    return lines


def _is_round(line: Any, score: str) -> bool:
    if not isinstance(line, dict) or not isinstance(line.get("round"), int):
        return False
    needed = [line[score], line.get("loss")] if line.get(score) is not None else []
    maybe = [line[key] for key in ("divergence", "divergence_of_round", "train_loss") if line.get(key) is not None]
    return all(isinstance(value, int | float) for value in (*needed, *maybe))


def read_clock(folder: Path) -> list[dict[str, Any]] | None:
    """Return the lines of a run's clock; None of a run that was made before there was one."""
    path = folder / CLOCK
    if not path.exists():
        return None
    try:
        lines = _read_lines(path)
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


def _read_lines(path: Path) -> list[dict[str, Any]]:
    """Return the rows of a file with a JSON value a line; an unfinished last line is left out."""
    text = path.read_text(encoding="utf-8")
    return [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]


def read_timings(folder: Path) -> list[dict[str, Any]]:
    """Return what each round of a run took; broken lines are left out, for they are only about time."""
    path = folder / TIMINGS
    if not path.exists():
        return []
    found = []
    for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
        with suppress(ValueError):
            row = json.loads(line)
            if isinstance(row, dict) and "round" in row:
                found.append(row)
    return found


def read_rates(folder: Path) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Return every device's rate of selection, and the number of its factory."""
    try:
        with (folder / DEVICES).open(newline="", encoding="utf-8") as file:
            rows = [(float(row["rate"]), row["factory"]) for row in csv.DictReader(file)]
    except (OSError, ValueError, KeyError, TypeError):
        raise InputFileError(f"{folder / DEVICES}: is missing or broken; repeat the run") from None
    names = sorted({name for _, name in rows}, key=lambda name: (len(name), name))  # factory-2 before factory-10
    return np.array([rate for rate, _ in rows]), np.array([names.index(name) for _, name in rows])


def read_summary(folder: Path) -> dict[str, Any] | None:
    """Return the summary of a run; None where it is not finished."""
    if not is_finished(folder):
        return None
    try:
        found: dict[str, Any] = json.loads((folder / SUMMARY).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        raise InputFileError(f"{folder / SUMMARY}: is broken; take it away and resume the run") from None
    return found


def is_finished(folder: Path) -> bool:
    """Whether a run is finished."""
    return (folder / SUMMARY).exists()


def check_finished(folder: Path) -> None:
    """Refuse a finished run whose rounds or model are not all there."""
    from safetensors import SafetensorError, safe_open

    rounds, wanted = len(read_metrics(folder)), read_settings(folder).training.rounds
    if rounds < wanted:
        raise InputFileError(
            f"{folder / METRICS}: has {rounds} of {wanted} rounds; restore it, or take {SUMMARY} away and resume"
        )
    path = folder / MODEL
    try:
        with safe_open(path, "numpy") as model:
            model.keys()
    except (OSError, SafetensorError) as error:
        raise InputFileError(f"{path}: cannot be read as a model ({error}); take {SUMMARY} away and resume") from None


def run_identity(settings: Settings, federation: Federation, purpose: str = "", network: str = "") -> str:
    """Return what a checkpoint of this run is known by: all settings, the data, what it is for, its network."""
    text = json.dumps(settings.model_dump(), sort_keys=True) + federation.fingerprint() + purpose + network
    text += digest_of(federation.inputs, federation.targets)
    for file in (settings.dynamics.trace, settings.clock.profile):
        if file and Path(file).is_file():  # its content, not only its name, is part of the run
            text += blake2b(Path(file).read_bytes(), digest_size=16).hexdigest()
    return blake2b(text.encode(), digest_size=16).hexdigest()


class RunFolder(Callback):
    """Writes a run into its folder: a line a round, checkpoints, and at the end summary, model and devices."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._run: Run | None = None
        self._saved = -1

    def on_begin(self, run: "Run") -> None:
        """Cut the files back to the state, and write the first checkpoint."""
        self._run = run
        if run.group.first:
            write_json(self.folder / TASK, task_facts(run.simulator.task, run.simulator.components))
            write_rounds(self.folder, run.state.metrics, run.state.clock, run.timings)
        if not run.resumed:
            self._save(run)

    def on_round(self, state: RunState, metrics: dict[str, Any]) -> None:
        """Add the lines of a round; write a checkpoint when it is due."""
        run = self._run
        assert run is not None
        if run.group.first:
            for name, rows in ((METRICS, state.metrics), (CLOCK, state.clock), (TIMINGS, run.timings)):
                _append(self.folder / name, rows[-1])
        if state.round % run.settings.checkpoint.every == 0 or state.round == run.settings.training.rounds:
            self._save(run)

    def on_end(self, history: "History") -> None:
        """Write the results of the run."""
        assert self._run is not None
        self._save(self._run)
        if self._run.group.first:
            write_results(self.folder, history)

    def on_stop(self, error: BaseException | None) -> None:
        """Keep the last good round of a run that was stopped."""
        if self._run is not None and error is not None:
            alone = self._run.group.size == 1
            if isinstance(error, TrainingError) or (isinstance(error, KeyboardInterrupt) and alone):
                self._save(self._run)

    def _save(self, run: "Run") -> None:
        if self._saved == run.state.round:
            return
        whole = run.simulator.gathered(run.state)
        if run.group.first:
            save_checkpoint(self.folder / CHECKPOINTS, whole, run.simulator.layout, run.identity)
        self._saved = run.state.round


def write_results(folder: Path, history: "History") -> None:
    """Write model, devices and, last, the summary of a finished run."""
    finished = history.finished
    assert finished is not None
    task = finished.task
    save_model(folder / MODEL, finished.state.tested, finished.layout)
    if finished.evaluation is not None:
        write_devices(folder / DEVICES, task.federation, finished.state, finished.evaluation, task.score)
    write_json(folder / SUMMARY, finite(history.summary))


def write_json(path: Path, values: Any) -> None:
    """Write values for people and programs to read."""
    write_text(path, json.dumps(values, indent=1) + "\n")


def write_rounds(folder: Path, metrics: Rows, clock: Rows, timings: Rows) -> None:
    """Write the files with a line a round."""
    for name, rows in ((METRICS, metrics), (CLOCK, clock), (TIMINGS, timings)):
        write_lines(folder / name, rows)


def write_lines(path: Path, rows: Rows) -> None:
    """Write a file with a JSON value a line."""
    write_text(path, "".join(_line(row) for row in rows))


def _append(path: Path, row: Mapping[str, Any]) -> None:
    try:
        with path.open("a", encoding="utf-8") as file:
            file.write(_line(row))
    except OSError as error:
        raise OutputError(f"{path}: cannot be written ({error.strerror})") from None


def _line(row: Mapping[str, Any]) -> str:
    return json.dumps(finite(dict(row)), allow_nan=False) + "\n"


def task_facts(task: BoundTask, components: Components) -> dict[str, Any]:
    """Return what a folder says of a run's task, for those who read it without the task itself."""
    return {
        **describe(task.task),
        "score": task.score,
        "mode": task.mode,
        "metrics": list(task.metrics),
        "classes": list(task.classes),
        "classifies": task.classifies,
        "reconstructs": task.reconstructs,
        "inputs": map_tree(lambda array: [list(array.shape[1:]), str(array.dtype)], task.federation.inputs),
        "made_of": describe_components(components),
    }


def read_task(folder: Path) -> dict[str, Any]:
    """Return what the folder of a run says of its task; older runs classified images."""
    try:
        found: dict[str, Any] = json.loads((folder / TASK).read_text(encoding="utf-8"))
        if isinstance(found.get("score"), str) and found.get("mode") in ("max", "min"):
            return found
    except (OSError, ValueError):
        pass
    return {"score": "accuracy", "mode": "max", "metrics": ["accuracy"]}
