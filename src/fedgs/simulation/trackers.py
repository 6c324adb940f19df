"""The numbers of each round in TensorBoard, MLflow or Weights & Biases: settings of these names, and callbacks.

    fedgs run --set mlflow=true                                            # to MLFLOW_TRACKING_URI, else ./mlflow.db
    fedgs.run(task, federation, callbacks=[fedgs.simulation.trackers.WandB()])

A run that is resumed goes on in the tracker too: the name it has there lies in its folder.
"""

import os
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedgs.algorithms.run_state import RunState
from fedgs.errors import ConfigError, FedgsError, MissingDependencyError, OutputError
from fedgs.files import write_text
from fedgs.settings import LOGGERS, Settings
from fedgs.simulation.callbacks import Callback

if TYPE_CHECKING:
    from fedgs.simulation.run import Run

SCALARS = ("loss", "balanced_accuracy", "train_loss", "divergence", "learning_rate", "seconds")
"""What is tracked beside the task's metrics."""
PROJECT = "fedgs"
"""The experiment or project of runs where the environment names none."""


class Tracker(Callback, ABC):
    """Gives the numbers of each round to a library, which a subclass opens, writes to and closes."""

    library: str
    extra: str

    def __init__(self, folder: str | Path | None = None) -> None:
        """``folder``: of the run; None: it has none, and cannot be resumed."""
        try:
            self.made_by: Any = import_module(self.library)
        except ImportError:
            raise MissingDependencyError(
                f"{self.extra}=true needs the library of that name; install it with: pip install 'fedgs[{self.extra}]'"
            ) from None
        self._folder = None if folder is None else Path(folder)
        self._names: tuple[str, ...] = ()
        self._score = ""
        self._is_open = False

    def on_begin(self, run: "Run") -> None:
        """Open the run in the tracker."""
        self._score, self._names = run.score, (*run.simulator.task.metrics, *SCALARS)
        with self._errors():
            self.open(run)
            self._is_open = True
            if run.state.round == 0:
                self.write(0, self._numbers(run.state.metrics[-1]))

    def on_round(self, state: RunState, metrics: dict[str, Any]) -> None:
        """Write a round's numbers."""
        with self._errors():
            self.write(state.round, self._numbers(metrics))

    def on_stop(self, error: BaseException | None) -> None:
        """Close the run in the tracker."""
        if self._is_open:
            with self._errors():
                self.close(error is None)

    @abstractmethod
    def open(self, run: "Run") -> None:
        """Begin, or go on with what the run's folder names."""

    @abstractmethod
    def write(self, number: int, numbers: Mapping[str, float]) -> None:
        """Write the numbers of a round."""

    @abstractmethod
    def close(self, well: bool) -> None:
        """End it; ``well``: the run was not broken off."""

    def _numbers(self, line: Mapping[str, Any]) -> dict[str, float]:
        found = {name: line[name] for name in self._names if line.get(name) is not None}
        parts = {name: value for name, value in line.get("percentiles", {}).items() if value is not None}
        return found | {f"{self._score} of devices/{name}th percentile": value for name, value in parts.items()}

    @contextmanager
    def _errors(self) -> Iterator[None]:
        """Let whatever a library raises, which may talk to a server, be one line."""
        try:
            yield
        except FedgsError:
            raise
        except Exception as error:
            reason = " ".join((str(error) or type(error).__name__).split())
            raise OutputError(f"{self.extra}: {reason[:300]}; mend that, or set {self.extra}=false") from None

    @property
    def _id_file(self) -> Path | None:
        return None if self._folder is None else self._folder / f"{self.extra}.id"

    def _known(self, run: "Run") -> str | None:
        """Return what a run that goes on is called in the tracker."""
        file = self._id_file
        return file.read_text(encoding="utf-8").strip() if run.resumed and file is not None and file.is_file() else None

    def _remember(self, name: str) -> None:
        if self._id_file is not None:
            write_text(self._id_file, name + "\n")


class TensorBoard(Tracker):
    """Writes one event a number and round into a folder (extra ``fedgs[tensorboard]``)."""

    library, extra = "torch.utils.tensorboard", "tensorboard"

    def open(self, run: "Run") -> None:
        """Open the events; what a run that was killed wrote beyond its checkpoint is not shown."""
        done = run.state.round
        self._writer = self.made_by.SummaryWriter(str(self._folder), purge_step=done + 1 if done else None)

    def write(self, number: int, numbers: Mapping[str, float]) -> None:
        """Write the events of a round."""
        for name, value in numbers.items():
            self._writer.add_scalar(name, value, number)

    def close(self, well: bool) -> None:
        """Close the events."""
        self._writer.close()


class MLflow(Tracker):
    """Logs settings and numbers to MLflow (extra ``fedgs[mlflow]``)."""

    library = extra = "mlflow"

    def open(self, run: "Run") -> None:
        """Make a run in the experiment MLFLOW_EXPERIMENT_NAME, or go on with one."""
        self._client = self.made_by.MlflowClient()
        known = self._known(run)
        self._last = -1
        if known is not None:
            self._id = known
            self._client.update_run(known, "RUNNING")
            # What was logged beyond the checkpoint comes again, with the same values: it is not logged twice.
            self._last = max((one.step for one in self._client.get_metric_history(known, "loss")), default=-1)
            return
        wanted = os.environ.get("MLFLOW_EXPERIMENT_NAME", PROJECT)
        there = self._client.get_experiment_by_name(wanted)
        experiment = self._client.create_experiment(wanted) if there is None else there.experiment_id
        self._id = self._client.create_run(experiment, run_name=_name(run)).info.run_id
        self._remember(self._id)
        for key, value in flat(run.settings.model_dump()).items():
            self._client.log_param(self._id, key, value)

    def write(self, number: int, numbers: Mapping[str, float]) -> None:
        """Log the numbers of a round."""
        if number <= self._last:
            return
        now = int(1000 * time.time())
        entry = self.made_by.entities.Metric
        self._client.log_batch(self._id, metrics=[entry(name, value, now, number) for name, value in numbers.items()])

    def close(self, well: bool) -> None:
        """End the run."""
        self._client.set_terminated(self._id, "FINISHED" if well else "KILLED")


class WandB(Tracker):
    """Logs settings and numbers to Weights & Biases (extra ``fedgs[wandb]``)."""

    library = extra = "wandb"

    def open(self, run: "Run") -> None:
        """Make a run in the project WANDB_PROJECT, or go on with one; it passes over rounds it knows."""
        self._run = self.made_by.init(
            project=os.environ.get("WANDB_PROJECT", PROJECT), name=_name(run), dir=self._folder,
            config=flat(run.settings.model_dump()), id=self._known(run), resume="allow",
        )  # fmt: skip
        self._remember(self._run.id)

    def write(self, number: int, numbers: Mapping[str, float]) -> None:
        """Log the numbers of a round."""
        self._run.log(dict(numbers), step=number)

    def close(self, well: bool) -> None:
        """End the run."""
        self._run.finish(0 if well else 1)


def trackers_of(settings: Settings, folder: Path | None) -> list[Tracker]:
    """Return the trackers that the settings ask for."""
    if settings.tensorboard and folder is None:
        raise ConfigError("tensorboard=true needs a folder to write to; give the run one (out)")
    wanted: dict[str, Callable[[], Tracker]] = {
        "tensorboard": lambda: TensorBoard(folder and folder / "tensorboard"),
        "mlflow": lambda: MLflow(folder),
        "wandb": lambda: WandB(folder),
    }
    return [wanted[name]() for name in LOGGERS if getattr(settings, name)]


def flat(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return nested values by their dotted keys."""
    found: dict[str, Any] = {}
    for key, value in values.items():
        found |= flat(value, f"{prefix}{key}.") if isinstance(value, Mapping) else {f"{prefix}{key}": value}
    return found


def _name(run: "Run") -> str:
    return run.settings.algorithm.name if run.folder is None else run.folder.resolve().name
