"""The history of a run: its rounds as a table, a picture, the trained network; saved to a folder and read back."""

import copy
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from fedgs.algorithms.run_state import RunState
from fedgs.errors import ConfigError, InputFileError, MissingDependencyError, OutputError
from fedgs.settings import Settings
from fedgs.simulation import folder as folders
from fedgs.simulation.checkpoint import save_checkpoint
from fedgs.simulation.components import Components
from fedgs.simulation.evaluate import Evaluation
from fedgs.tasks.bind import BoundTask
from fedgs.tasks.task import Task
from fedgs.training.layout import MODEL, Layout

if TYPE_CHECKING:
    import pandas
    from matplotlib.figure import Figure
    from torch import nn

Line = Mapping[str, Any]


def data_frame(rows: Iterable[Line], wanted: str, instead: str) -> "pandas.DataFrame":
    """Return rows as a pandas DataFrame; the error says who ``wanted`` it and what does ``instead`` without pandas."""
    try:
        import pandas
    except ImportError:
        raise MissingDependencyError(
            f"{wanted} needs pandas; install it with: pip install 'fedgs[pandas]' ({instead} needs nothing)"
        ) from None
    return pandas.DataFrame(list(rows))


@dataclass(frozen=True)
class Finished:
    """What only a run of this process has: its last state, and the task it was bound to."""

    task: BoundTask
    components: Components
    layout: Layout
    state: RunState
    evaluation: Evaluation | None
    identity: str


@dataclass(frozen=True, eq=False)
class History:
    """The rounds of a run and its model.

    Examples:
        >>> import fedgs
        >>> history = fedgs.load_history("runs/mine")        # doctest: +SKIP
        >>> history.summary["accuracy"]["final"]             # doctest: +SKIP
    """

    settings: Settings
    metrics: tuple[Line, ...]
    """One line a round, from round 0 on."""
    clock: tuple[Line, ...]
    """What each round would take in a real park."""
    timings: tuple[Line, ...]
    """What each round took here."""
    summary: dict[str, Any]
    """Final and best score, round of the target, divergence, use of the devices, simulated time and bytes."""
    score: str
    """The metric that counts."""
    mode: str
    """``max``: a higher score is better; ``min``: a lower one."""
    name: str = "run"
    folder: Path | None = None
    finished: Finished | None = field(default=None, repr=False)
    task: Task | None = field(default=None, repr=False)
    """The task of a run that was loaded, where it was given."""

    def __len__(self) -> int:
        """Return how many rounds were made."""
        return len(self.metrics) - 1

    @property
    def rows(self) -> list[dict[str, Any]]:
        """One flat dict a round: round, loss, metrics, train_loss, divergence, seconds, simulated_seconds and more."""
        seconds = {line["round"]: line.get("seconds") for line in self.timings}
        elapsed = {line["round"]: line.get("elapsed") for line in self.clock}
        factories = self._factory_names()
        rows = []
        for line in self.metrics:
            row: dict[str, Any] = {}
            for key, value in line.items():
                if key == "factories":
                    row |= {f"{self.score}_{name}": one for name, one in zip(factories, value, strict=False)}
                elif key == "percentiles":
                    row |= {f"{self.score}_p{name}": one for name, one in value.items()}
                elif isinstance(value, Mapping):
                    row |= {f"{key}_{name}": one for name, one in value.items()}
                else:
                    row[key] = value
            number = line["round"]
            rows.append(row | {"seconds": seconds.get(number), "simulated_seconds": elapsed.get(number)})
        return rows

    def _factory_names(self) -> Sequence[str]:
        if self.finished is not None:
            return self.finished.task.federation.factory_names
        most = max((len(line.get("factories", ())) for line in self.metrics), default=0)
        return [f"factory-{number:02d}" for number in range(most)]

    def frame(self) -> "pandas.DataFrame":
        """Return the rounds as a pandas DataFrame, a row a round."""
        return data_frame(self.rows, "History.frame()", "History.rows")

    def plot(self, path: str | Path | None = None) -> "Figure":
        """Return a picture of score, loss and divergence over the rounds; ``path``: also write it."""
        from fedgs.report.run_figures import comparison_figure, save_figure

        figure = comparison_figure({self.name: self})
        if path is not None:
            save_figure(figure, Path(path))
        return figure

    @property
    def weights(self) -> dict[str, torch.Tensor]:
        """The trained weights and buffers by name."""
        if self.finished is not None:
            return self.finished.layout.named(self.finished.state.tested)
        if self.folder is None:
            raise ConfigError("this history has no weights: it was neither run here nor loaded from a folder")
        from safetensors import SafetensorError
        from safetensors.torch import load_file

        try:
            return load_file(self.folder / MODEL)
        except (OSError, SafetensorError) as error:
            raise InputFileError(f"{self.folder / MODEL}: cannot be read as a model ({error})") from None

    @cached_property
    def facts(self) -> dict[str, Any]:
        """What a file says of the run's task: names, classes, shape and type of the inputs."""
        if self.finished is not None:
            return folders.task_facts(self.finished.task, self.finished.components)
        return {} if self.folder is None else folders.read_task(self.folder)

    @cached_property
    def model(self) -> "nn.Module":
        """The trained network, in eval mode.

        Where devices keep weights of their own it has the mean of theirs.
        """
        if self.finished is None:
            return _model_of_folder(self)
        finished = self.finished
        module = copy.deepcopy(finished.task.module)
        known = {**dict(module.named_parameters()), **dict(module.named_buffers())}
        if not set(finished.layout.names) <= set(known):
            odd = next(name for name in finished.layout.names if name not in known)
            raise ConfigError(
                f"{self.settings.algorithm.name} trains weights that the network itself does not have ({odd}); "
                "they are in History.weights"
            )
        flat = finished.state.tested.detach().cpu().clone()
        if finished.state.local is not None:
            flat[torch.from_numpy(finished.layout.local_places)] = finished.state.local.cpu().double().mean(0).float()
        finished.layout.load(module, flat)
        return module.eval()

    def export(self, path: str | Path) -> Path:
        """Write the trained network with its class names into a .safetensors, .pt2 or .onnx file."""
        from fedgs.simulation.exported import export_model

        return export_model(self, path)

    def save(self, folder: str | Path) -> Path:
        """Write the run into a folder, as ``fedgs run`` does; ``fedgs resume``, ``compare`` and others take it."""
        if self.finished is None:
            raise OutputError(
                f"{folder}: only a run of this process can be saved; this one was loaded from {self.folder}"
            )
        path, finished = Path(folder), self.finished
        folders.create_run(path, self.settings)
        folders.write_json(path / folders.TASK, folders.task_facts(finished.task, finished.components))
        folders.write_rounds(path, self.metrics, self.clock, self.timings)
        save_checkpoint(path / folders.CHECKPOINTS, finished.state, finished.layout, finished.identity)
        folders.write_results(path, self)
        return path

    def __repr__(self) -> str:
        found = self.summary.get(self.score, self.summary.get("loss", {}))
        last = found.get("final") if isinstance(found, dict) else None
        shown = "" if last is None else f", {self.score} {last:.4g}"
        return f"History({self.name!r}, {self.settings.algorithm.name}, {len(self)} rounds{shown})"


def load_history(folder: str | Path, task: Task | None = None) -> History:
    """Read the history of a run from its folder, finished or not.

    Args:
        folder: that ``fedgs run`` or ``History.save`` wrote.
        task: the run's task, where ``History.model`` cannot import it: a network of a notebook, say.

    Examples:
        >>> import fedgs
        >>> history = fedgs.load_history("runs/mine")        # doctest: +SKIP
    """
    path = Path(folder)
    settings, facts = folders.read_settings(path), folders.read_task(path)
    return History(
        settings,
        tuple(folders.read_metrics(path)),
        tuple(folders.read_clock(path) or ()),
        tuple(folders.read_timings(path)),
        folders.read_summary(path) or {},
        facts["score"],
        facts["mode"],
        path.resolve().name,
        path,
        task=task,
    )


def _model_of_folder(history: History) -> "nn.Module":
    """Return the trained network of a run that lies in a folder."""
    from fedgs.simulation.exported import facts_of, network_of

    return network_of(facts_of(history), history.weights, str(history.folder), history.task)
