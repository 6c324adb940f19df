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
from fedgs.tasks.task import Task, check_task
from fedgs.training.layout import MODEL, Layout, frozen_weights

if TYPE_CHECKING:
    import numpy as np
    import pandas
    from matplotlib.figure import Figure
    from numpy.typing import NDArray
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

    @cached_property
    def weights(self) -> torch.Tensor:
        """The model that leaves the run, flat: what devices keep to themselves is in it as their mean."""
        flat = self.state.tested.detach().cpu().clone()
        if self.state.local is not None:
            places, local = torch.from_numpy(self.layout.local_places), self.state.local.cpu()
            whole = places >= self.layout.float_size
            flat[places] = torch.where(whole, local.amax(0), local.double().mean(0).float())
        return flat


@dataclass(frozen=True, eq=False)
class History:
    """The result of a run: the metrics of all rounds, and the trained model.

    Examples:
        >>> import fedgs, numpy as np, torch
        >>> x, y = np.random.rand(200, 4), np.arange(200) % 3
        >>> federation = fedgs.Federation.from_arrays(x, y, devices=np.arange(200) % 10, factories=2)
        >>> task = fedgs.classification(lambda: torch.nn.Linear(4, 3))
        >>> history = fedgs.run(task, federation, rounds=2, pick=2)
        >>> list(history.frame()["round"])                   # needs pandas; history.rows does not
        [0, 1, 2]
        >>> history.summary["accuracy"]["final"] == history.rows[-1]["accuracy"]
        True
        >>> history.model                                    # the trained network, in eval mode
        Linear(in_features=4, out_features=3, bias=True)
        >>> figure = history.plot("mine.png")
        >>> history.save("runs/mine").is_dir()
        True
    """

    settings: Settings
    metrics: tuple[Line, ...]
    """The metrics of each round, from round 0 on."""
    clock: tuple[Line, ...]
    """Simulated time and bytes of each round (virtual clock)."""
    timings: tuple[Line, ...]
    """Measured time of each round on this machine."""
    summary: dict[str, Any]
    """Final and best score, round of the target, divergence, use of the devices, simulated time and bytes."""
    score: str
    """The name of the main metric."""
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
        """One flat dict per round: round, loss, metrics, train_loss, divergence, seconds, simulated_seconds, …."""
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
                elif key == "class_accuracy":
                    row |= {f"accuracy_class_{name}": one for name, one in zip(self.classes, value, strict=False)}
                elif isinstance(value, Mapping):
                    row |= {f"{key}_{name}": one for name, one in value.items()}
                else:
                    row[key] = value
            number = line["round"]
            rows.append(row | {"seconds": seconds.get(number), "simulated_seconds": elapsed.get(number)})
        return rows

    def _factory_names(self) -> Sequence[str]:
        most = max((len(line.get("factories", ())) for line in self.metrics), default=0)
        return list(self.facts.get("factories") or (f"factory-{number:02d}" for number in range(most)))  # an older run

    @property
    def classes(self) -> list[str]:
        """The names of the classes, or of the bins that selection balances."""
        return list(self.facts.get("classes", ()))

    @cached_property
    def confusion(self) -> "dict[str, NDArray[np.int64]]":
        """Confusion matrices of the ``last`` and the ``best`` test: (classes, classes), the true ones in rows.

        Empty where the task has no classes, or the run was made before there were any.
        """
        if self.finished is not None:
            return {test: matrix.numpy() for test, matrix in self.finished.state.confusion.items()}
        return {} if self.folder is None else folders.read_confusion(self.folder)

    def frame(self) -> "pandas.DataFrame":
        """Return the rounds as a pandas DataFrame, one row per round."""
        return data_frame(self.rows, "History.frame()", "History.rows")

    def plot(self, path: str | Path | None = None) -> "Figure":
        """Return a figure of score, loss and divergence over the rounds; with ``path`` also save it."""
        from fedgs.report.run_figures import comparison_figure, save_figure

        figure = comparison_figure({self.name: [self]})
        if path is not None:
            save_figure(figure, Path(path))
        return figure

    @property
    def weights(self) -> dict[str, torch.Tensor]:
        """The weights and buffers by name, frozen ones too; for ``keep_local`` names, the mean over devices."""
        if self.finished is not None:
            finished = self.finished
            return {**finished.layout.named(finished.weights), **frozen_weights(finished.task.module)}
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
        from fedgs.simulation.exported import facts_of, network_of

        if self.finished is None:
            return network_of(facts_of(self), self.weights, str(self.folder), self.task)
        finished = self.finished
        module = copy.deepcopy(finished.task.module)
        known = {**dict(module.named_parameters()), **dict(module.named_buffers())}
        if not set(finished.layout.names) <= set(known):
            odd = next(name for name in finished.layout.names if name not in known)
            raise ConfigError(
                f"{self.settings.algorithm.name} trains weights that the network itself does not have ({odd}); "
                "they are in History.weights"
            )
        finished.layout.load(module, finished.weights)
        return module.eval()

    def export(self, path: str | Path) -> Path:
        """Write the trained network with its class names into a .safetensors, .pt2 or .onnx file."""
        from fedgs.simulation.exported import export_model

        return export_model(self, path)

    def save(self, folder: str | Path, overwrite: bool = False) -> Path:
        """Write the run into a folder, as ``fedgs run`` does; ``fedgs resume``, ``compare`` and others take it.

        ``overwrite``: replace a run that is in that folder.
        """
        if self.finished is None:
            raise OutputError(
                f"{folder}: only a run of this process can be saved; this one was loaded from {self.folder}"
            )
        path, finished = Path(folder), self.finished
        with folders.new_run(path, self.settings, overwrite):
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
        folder: a folder that ``fedgs run`` or ``History.save`` wrote.
        task: the run's task, if ``History.model`` cannot import it, for example a network of a notebook.

    Examples:
        >>> import fedgs, numpy as np, torch
        >>> x, y = np.random.rand(200, 4), np.arange(200) % 3
        >>> federation = fedgs.Federation.from_arrays(x, y, devices=np.arange(200) % 10, factories=2)
        >>> task = fedgs.classification(lambda: torch.nn.Linear(4, 3))
        >>> folder = fedgs.run(task, federation, rounds=2, pick=2).save("runs/mine")
        >>> len(fedgs.load_history("runs/mine"))
        2
    """
    check_task(task)
    path = folders.as_path(folder, "folder")
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
