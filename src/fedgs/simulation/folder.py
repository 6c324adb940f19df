"""The folder of a run: what was asked for, what happened in each round, what came out.

    runs/NAME/config.json         all settings, presets and overrides resolved; fedgs run takes it as a config
    runs/NAME/task.json           names of the network, the loss, the metrics, the classes
    runs/NAME/metrics.jsonl       a line a round; the same seed gives the same bytes (processors)
    runs/NAME/timings.jsonl       a line a round: seconds and memory, which differ from run to run
    runs/NAME/clock.jsonl         a line a round: seconds and bytes the round would take in a real park
    runs/NAME/teams.jsonl         a line a round: who took part, with which classes; federation.json: who there is
    runs/NAME/checkpoints/        the last two, for fedgs resume
    runs/NAME/summary.json        the results; devices.csv the same for every device
    runs/NAME/confusion.json      of classes: which were taken for which, in the last and the best test
    runs/NAME/model.safetensors   the global model
    runs/NAME/pretraining/        the run before this one, of a baseline that begins with a trained network

A run that is killed at any moment can be resumed: metrics and clock are cut back to the checkpoint's round and go
on from there without a hole or a double line.
"""

import csv
import json
import os
import shutil
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from hashlib import blake2b
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from torch import nn

from fedgs.algorithms.run_state import RunState
from fedgs.config import settings_from
from fedgs.data import Federation
from fedgs.data.arrays import map_tree
from fedgs.data.sources import EMBEDDED
from fedgs.errors import InputFileError, OutputError, TrainingError
from fedgs.files import finite, make_folder, write_text
from fedgs.settings import Settings
from fedgs.simulation.callbacks import Callback
from fedgs.simulation.checkpoint import save_checkpoint
from fedgs.simulation.components import PRETRAINING, Components, describe_components
from fedgs.simulation.lock import locked
from fedgs.simulation.summary import write_devices
from fedgs.tasks.bind import BoundTask
from fedgs.tasks.task import describe
from fedgs.training.layout import MODEL, save_model

if TYPE_CHECKING:
    from fedgs.simulation.history import History
    from fedgs.simulation.run import Run

CONFIG, METRICS, TIMINGS, SUMMARY = "config.json", "metrics.jsonl", "timings.jsonl", "summary.json"
CLOCK, TASK = "clock.jsonl", "task.json"
CHECKPOINTS, DEVICES, CONFUSION = "checkpoints", "devices.csv", "confusion.json"
Rows = Iterable[Mapping[str, Any]]
MADE_HERE: list[Path] = []
"""Folders of new runs that this process is writing."""


def as_path(given: Any, keyword: str) -> Path:
    """Return the path of a folder."""
    if not isinstance(given, str | os.PathLike):
        raise InputFileError(f"{keyword}={given!r}; give the path of a folder")
    return Path(given)


@contextmanager
def new_run(folder: Path, settings: Settings, overwrite: bool = False) -> Iterator[None]:
    """Make the folder of a run and lock it while the block runs; a run that ends without a round leaves no folder."""
    create_run(folder, settings, overwrite)
    with locked(folder):
        MADE_HERE.append(folder)
        try:
            yield
        finally:
            MADE_HERE.remove(folder)
            settle_run(folder)


def create_run(folder: Path, settings: Settings, overwrite: bool = False) -> None:
    """Make the folder of a new run; one that exists is refused, or moved aside until :func:`settle_run`."""
    if folder.exists():
        if not (folder / CONFIG).is_file():
            raise OutputError(f"{folder}: exists already and is no run; choose another folder (out)")
        with locked(folder):
            if not overwrite:
                raise OutputError(
                    f"{folder}: exists already; choose another folder (out), go on with: fedgs resume "
                    f"{quote(str(folder))}, or replace it (overwrite)"
                )
            settle_run(folder)  # it may have been killed when it was to replace another
            folder.rename(_replaced(folder))
    make_folder(folder.parent)
    temporary = folder.with_name(f".{folder.name}.{os.getpid()}")
    make_folder(temporary)
    write_json(temporary / CONFIG, settings.model_dump())
    try:
        os.rename(temporary, folder)  # a run folder always has its settings in it
    except OSError as error:
        raise OutputError(f"{folder}: cannot be made ({error.strerror}); choose another folder (out)") from None


def settle_run(folder: Path) -> None:
    """Keep a run that has made a round, else bring back the one it was to replace."""
    before = _replaced(folder)
    if not is_unused(folder):
        shutil.rmtree(before, ignore_errors=True)
        return
    shutil.rmtree(folder, ignore_errors=True)
    if before.exists():
        before.rename(folder)


def _replaced(folder: Path) -> Path:
    """Where a run waits until the one that replaces it has made a round."""
    folder = folder.resolve()
    return folder.with_name(f".{folder.name}.replaced")


def is_unused(folder: Path) -> bool:
    """Whether a run is not finished and has made no round, nor has its pre-training."""
    if is_finished(folder):
        return False
    files = [place / METRICS for place in (folder, folder / PRETRAINING)]
    return not any(path.exists() and path.read_bytes().count(b"\n") > 1 for path in files)  # the first is round 0


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


def read_confusion(folder: Path) -> dict[str, NDArray[np.int64]]:
    """Return the confusion matrices of a run by test; none of one without classes, or from before there were any."""
    path = folder / CONFUSION
    if not path.exists():
        return {}
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        return {test: np.array(found[test], np.int64) for test in ("last", "best")}
    except (OSError, ValueError, KeyError, TypeError):
        raise InputFileError(f"{path}: is broken; take it away") from None


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


def has_stopped_early(folder: Path) -> bool:
    """Whether a finished run has fewer rounds than its settings ask for: a callback has stopped it."""
    summary, wanted = read_summary(folder), read_settings(folder).training.rounds
    return summary is not None and int(summary.get("rounds", wanted)) < wanted


def check_finished(folder: Path) -> None:
    """Refuse a finished run whose rounds or model are not all there."""
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    rounds, wanted = [line["round"] for line in read_metrics(folder)], read_settings(folder).training.rounds
    if rounds != [*range(wanted + 1)]:
        missing = len({*range(1, wanted + 1)} - {*rounds})
        what = f"has {wanted - missing} of {wanted} rounds" if missing else f"its lines are not rounds 0 to {wanted}"
        raise InputFileError(f"{folder / METRICS}: {what}; restore it, or take {SUMMARY} away and resume")
    path = folder / MODEL
    try:
        if not all(value.isfinite().all() for value in load_file(path).values()):
            raise ValueError("NaN or infinity")
    except (OSError, SafetensorError, ValueError) as error:
        raise InputFileError(f"{path}: cannot be read as a model ({error}); take {SUMMARY} away and resume") from None


def run_identity(settings: Settings, federation: Federation, purpose: str = "", network: str = "") -> str:
    """Return what a checkpoint of this run is known by: all settings, the data, what it is for, its network."""
    # Without settings that came later, so that checkpoints of before are known.
    values = settings.model_dump(exclude={"init", "mlflow", "wandb"})
    text = json.dumps(values, sort_keys=True) + federation.fingerprint() + purpose + network
    text += settings.init or ""
    text += federation.contents
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
    save_model(folder / MODEL, history.weights)
    if finished.evaluation is not None:
        write_devices(folder / DEVICES, task.federation, finished.state, finished.evaluation, task.score)
    if history.confusion:
        tests = {test: matrix.tolist() for test, matrix in history.confusion.items()}
        write_text(folder / CONFUSION, json.dumps({"classes": list(task.classes), **tests}) + "\n")
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
        "factories": list(task.federation.factory_names),
        "classifies": task.classifies,
        "reconstructs": task.reconstructs,
        "inputs": map_tree(lambda array: [list(array.shape[1:]), str(array.dtype)], task.federation.inputs),
        "made_of": describe_components(components),
        "network": layers_digest(task.module),
        # What is embedded is made by the settings, with the seed.
        "data": None if task.federation.name in EMBEDDED else task.federation.contents,
    }


def layers_digest(module: nn.Module) -> str:
    """Return what stands for the layers of a network, their names, and the shapes of their weights."""
    layers = [f"{name} {type(layer).__qualname__}" for name, layer in module.named_modules()]
    shapes = [f"{name} {tuple(value.shape)}" for name, value in module.state_dict().items()]
    return blake2b("\n".join([*layers, *shapes]).encode(), digest_size=8).hexdigest()


def read_task(folder: Path) -> dict[str, Any]:
    """Return what the folder of a run says of its task; older runs classified images."""
    try:
        found: dict[str, Any] = json.loads((folder / TASK).read_text(encoding="utf-8"))
        if isinstance(found.get("score"), str) and found.get("mode") in ("max", "min"):
            return found
    except (OSError, ValueError):
        pass
    return {"score": "accuracy", "mode": "max", "metrics": ["accuracy"]}
