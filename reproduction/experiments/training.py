"""The work of most jobs: a training run, from beginning to end or on from where it was stopped.

    unfinished/table2-fedavg-seed-0/     the folder of the run while it is at work, with its checkpoints

A job that was stopped continues from its last checkpoint, but only with the same settings, federation, data, source
files and hardware; on CPUs the result is the same to the bit. The folder is removed once the job is done.

What comes of it: the curve of the rounds that were tested, the summary of the run, and the rates and options it really
used (``resolved``). A run that diverges has a curve up to there, and says why under ``failed``.
"""

import shutil
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from fedgs.algorithms.run_state import RunState
from fedgs.data import Federation
from fedgs.errors import CheckpointError, TrainingError
from fedgs.files import write_text
from fedgs.settings import Settings
from fedgs.simulation.callbacks import Callback
from fedgs.simulation.folder import create_run
from fedgs.simulation.run import Run, execute
from reproduction.experiments.resolved import resolved_of

if TYPE_CHECKING:
    from reproduction.experiments.jobs import Result, Share

FOLDER = "unfinished"
MADE_WITH = "made_with.json"


@dataclass
class Unfinished:
    """Where the run of a job lies while it is at work, and what is known of those who worked on it before."""

    folder: Path
    made_with: str
    """Only work that was made with the same goes on."""
    earlier: float = 0.0
    """Seconds of work that were done before, by processes that were stopped."""
    note: str = ""
    """What the user should know of it."""

    def open(self, settings: Settings) -> None:
        """Make the folder, unless there is one to go on with."""
        with suppress(OSError):
            if (self.folder / MADE_WITH).read_text(encoding="utf-8") == self.made_with:
                return
        if self.folder.exists():
            self.start_again()
        create_run(self.folder, settings)
        write_text(self.folder / MADE_WITH, self.made_with)

    def start_again(self) -> None:
        """Remove what cannot be used."""
        self.note = "started again: its checkpoint is damaged, or of other settings, data, source files or hardware"
        shutil.rmtree(self.folder)


class _Watch(Callback):
    """Tells of the progress, and keeps the last state: a run that diverges returns none."""

    def __init__(self, settings: Settings, share: "Share", unfinished: Unfinished) -> None:
        self._share, self._unfinished, self._rounds = share, unfinished, max(settings.training.rounds, 1)
        # A baseline tells of shares of its rounds, FedGS of iterations.
        self._work = self._rounds * (1 if settings.algorithm.is_baseline else settings.training.iterations)
        self.state: RunState | None = None

    def on_begin(self, run: Run) -> None:
        self.state = run.state
        if run.state.round:
            self._unfinished.earlier = sum(row["seconds"] for row in run.timings)
            self._unfinished.note = f"continued from round {run.state.round}, where it had been stopped"
            self._share(run.state.round / self._rounds)

    def on_tick(self, iterations: float) -> None:
        self._share(iterations / self._work)

    def on_round(self, state: RunState, metrics: dict[str, Any]) -> None:
        self.state = state


def train(
    settings: Settings, federation: Federation, device: torch.device, share: "Share", unfinished: Unfinished
) -> "Result":
    """Run a training from beginning to end, or on from where it was stopped: its curve and its summary."""
    unfinished.open(settings)
    watch = _Watch(settings, share, unfinished)
    came_out: Result = {"resolved": resolved_of(settings, len(federation.classes))}
    try:
        history = execute(settings, federation, device, folder=unfinished.folder, callbacks=[watch])
    except TrainingError as error:
        return came_out | {"failed": str(error), "curve": _curve(watch.state), "summary": None}
    except CheckpointError:
        unfinished.start_again()
        return train(settings, federation, device, share, unfinished)
    summary = {key: value for key, value in history.summary.items() if key != "machine"}
    return came_out | {"curve": _curve(watch.state), "summary": summary}


def discard(folder: Path) -> None:
    """Remove what was kept of one job, and the folder of all jobs if it was the last."""
    shutil.rmtree(folder, ignore_errors=True)
    with suppress(OSError):
        folder.parent.rmdir()


def _curve(state: RunState | None) -> dict[str, list[Any]]:
    """Return what was measured in the rounds that were tested."""
    tested = [line for line in state.metrics if "accuracy" in line] if state is not None else []
    keys = ("round", "accuracy", "loss", "train_loss", "divergence", "divergence_of_round", "missing_classes")
    return {key: [_short(line.get(key)) for line in tested] for key in keys}


def _short(value: Any) -> Any:
    return float(f"{value:.6g}") if isinstance(value, float) else value
