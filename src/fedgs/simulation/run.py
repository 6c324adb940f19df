"""``fedgs.run`` and ``fedgs.resume``: a run from its first round, or from its last checkpoint, to its end.

    history = fedgs.run(task, federation, algorithm="fedgs", rounds=40, pick=10, learning_rate=0.1)

The command line parses, calls :mod:`fedgs.simulation.launch`, and prints.
"""

import copy
import os
from collections.abc import Iterable, Mapping
from contextlib import nullcontext
from functools import partial
from hashlib import blake2b
from pathlib import Path
from typing import Any

import torch

from fedgs.algorithms.run_state import RunState
from fedgs.compiled import telling
from fedgs.config import assign, checked_settings, load_settings, merged, with_whole_paths
from fedgs.data import Federation
from fedgs.errors import ConfigError, OutputError, TrainingError
from fedgs.settings import Settings
from fedgs.simulation import folder as folders
from fedgs.simulation.callbacks import checked_callbacks
from fedgs.simulation.checkpoint import load_newest
from fedgs.simulation.components import (
    PRETRAINING,
    PURPOSE,
    Components,
    check_same_components,
    pretraining_of,
    resolve,
)
from fedgs.simulation.federations import default_pick, load_federation
from fedgs.simulation.folder import RunFolder
from fedgs.simulation.history import Finished, History, load_history
from fedgs.simulation.lock import locked
from fedgs.simulation.memory import translate_oom
from fedgs.simulation.process_group import ProcessGroup
from fedgs.simulation.simulator import Simulator, pick_device
from fedgs.simulation.summary import summarise
from fedgs.simulation.teams import TeamLog, changes_of
from fedgs.simulation.trackers import trackers_of
from fedgs.tasks.bind import BoundTask
from fedgs.tasks.task import Task, check_task
from fedgs.training.layout import frozen_weights

IN_PYTHON: dict[str, Any] = {
    "training": {"rounds": 40, "iterations": 25, "batch_size": 32, "learning_rate": 0.1},
    "algorithm": {"local_epochs": 2},
}
"""Settings of a run from Python where nobody says otherwise; those of a file are the paper's."""


KEYWORDS = {
    "seed": "seed", "rounds": "training.rounds", "iterations": "training.iterations",
    "batch_size": "training.batch_size", "learning_rate": "training.learning_rate", "optimizer": "training.optimizer",
    "engine": "training.engine", "pick": "selection.pick", "solver": "selection.solver", "algorithm": "algorithm.name",
    "eval_every": "eval.every", "init": "init",
}  # fmt: skip
"""Keywords of :func:`run` that stand for a key of the settings."""
OF_ALGORITHM = ("name", "options", "objective")
"""Keys of the section algorithm that an object takes the place of."""


def run(
    task: Task | None = None,
    federation: Federation | None = None,
    *,
    algorithm: Any = None,
    rounds: int | None = None,
    iterations: int | None = None,
    batch_size: int | None = None,
    learning_rate: float | None = None,
    optimizer: str | None = None,
    pick: int | None = None,
    solver: Any = None,
    seed: int | None = None,
    device: str = "auto",
    engine: str | None = None,
    eval_every: int | None = None,
    init: str | Path | None = None,
    out: str | Path | None = None,
    overwrite: bool = False,
    resume: bool = False,
    settings: Settings | str | Path | Mapping[str, Any] | None = None,
    callbacks: Iterable[Any] = (),
) -> History:
    """Train a task on a federation and return the history of the run.

    Args:
        task: network, loss and metrics; None: the task of the settings.
        federation: the devices and their data; None: the federation of the settings.
        algorithm: a name (``fedgs``, ``fedavg``, ``fedprox``, …), ``package.module:name``, or an object such as
            ``FedProx(mu=0.1)``; fedgs by default.
        rounds: communication rounds; 40 by default.
        iterations: iterations (internal synchronisations) per round of FedGS; 25 by default.
        batch_size: samples per mini-batch; 32 by default.
        learning_rate: learning rate of an SGD step; 0.1 by default.
        optimizer: sgd, momentum, adam or adamw; used by the stations, or by a baseline's clients.
        pick: devices selected per factory and iteration; a fifth of the smallest factory by default, at least two.
        solver: the selection solver: a name, or a function of a problem and a random generator.
        seed: the seed of all random numbers.
        device: auto, cpu or cuda.
        engine: auto, fused, clients, per-device, graph or stacked.
        eval_every: rounds between two tests.
        init: a trained model to start from: the folder of a run, a .safetensors or .pt2 file, or a saved state_dict.
        out: a folder to write the run into; None: it stays in memory.
        overwrite: replace the run in that folder after the first round of this run.
        resume: if ``out`` already holds this run, resume it; if it is finished, only read it.
        settings: everything else: a :class:`Settings`, the path of a TOML file, or a nested dict.
        callbacks: objects with ``on_round(state, metrics)``, ``on_end(history)`` or other hooks of :class:`Callback`.

    Examples:
        >>> import fedgs, numpy as np, torch
        >>> x, y = np.random.rand(200, 4).astype("float32"), np.arange(200) % 3
        >>> federation = fedgs.Federation.from_arrays(x, y, devices=np.arange(200) % 10, factories=2)
        >>> task = fedgs.classification(lambda: torch.nn.Linear(4, 3), classes=3)
        >>> history = fedgs.run(task, federation, rounds=2, iterations=3, batch_size=8, pick=2)
        >>> len(history)
        2
    """
    check_arguments(task, federation)
    given = overrides_of(locals())
    check_effect(settings, task, algorithm)
    own_algorithm = None if isinstance(algorithm, str) else algorithm
    own_solver = None if isinstance(solver, str) else solver
    wanted = settings_for(federation, settings, given)
    chosen = pick_device(device)
    if federation is None:
        federation = load_federation(wanted)
    classes = len(federation.classes)
    wanted, components = resolve(wanted, task=task, algorithm=own_algorithm, solver=own_solver, classes=classes)
    folder = None if out is None else folders.as_path(out, "out")
    if folder is not None and resume and folder.exists():
        if folders.read_settings(folder) != wanted:
            raise OutputError(f"{folder}: holds a run with other settings; choose another folder (out)")
        check_same_components(folder, folders.read_task(folder).get("made_of"), components)
        if folders.is_finished(folder) and not folders.has_stopped_early(folder):
            folders.check_finished(folder)
            with Run(wanted, federation, chosen, components=components, folder=folder) as prepared:
                prepared.newest()  # refuses other data and networks
            return load_history(folder, task)
        writing: Any = locked(folder)
    else:
        writing = nullcontext() if folder is None else folders.new_run(folder, wanted, overwrite)
    with writing:
        return execute(wanted, federation, chosen, components=components, folder=folder, callbacks=callbacks)


def resume(
    folder: str | Path,
    task: Task | None = None,
    federation: Federation | None = None,
    *,
    algorithm: Any = None,
    solver: Any = None,
    device: str = "auto",
    callbacks: Iterable[Any] = (),
) -> History:
    """Resume a run from its last checkpoint; a finished run is only read.

    Args:
        folder: the folder of the run.
        task: the run's task, if it cannot be imported by its name, for example one of a notebook.
        federation: the run's federation, if it was made from arrays.
        algorithm: the run's algorithm, if it was an object that cannot be imported.
        solver: the run's solver, in the same case.
        device: auto, cpu or cuda.
        callbacks: as for :func:`run`.

    Examples:
        >>> import fedgs, numpy as np, torch
        >>> x, y = np.random.rand(200, 4), np.arange(200) % 3
        >>> federation = fedgs.Federation.from_arrays(x, y, devices=np.arange(200) % 10, factories=2)
        >>> task = fedgs.classification(lambda: torch.nn.Linear(4, 3))
        >>> stop = type("Stop", (fedgs.Callback,), {"on_round": lambda self, state, metrics: state.round == 1})
        >>> history = fedgs.run(task, federation, rounds=3, pick=2, out="runs/stopped", callbacks=[stop()])
        >>> len(history), len(fedgs.resume("runs/stopped", task, federation))
        (1, 3)
    """
    check_arguments(task, federation)
    path = folders.as_path(folder, "folder")
    settings = folders.read_settings(path)
    if federation is None:
        try:
            federation = load_federation(settings)
        except ConfigError:
            raise
        except Exception as error:
            raise ConfigError(
                f"{path}: its data cannot be loaded ({error}); give them: resume(…, federation=…)"
            ) from None
    components = resolve(settings, task=task, algorithm=algorithm, solver=solver, classes=len(federation.classes))[1]
    check_same_components(path, folders.read_task(path).get("made_of"), components)
    chosen = pick_device(device)
    with locked(path):
        return execute(settings, federation, chosen, components=components, folder=path, callbacks=callbacks)


def check_arguments(task: Any, federation: Any) -> None:
    """Refuse what is no task, or no federation."""
    check_task(task)
    if federation is not None and not isinstance(federation, Federation):
        raise ConfigError(
            f"federation is a {type(federation).__name__}, not a fedgs.Federation; make one with "
            "Federation.from_arrays, from_datasets or load"
        )


def check_effect(settings: Any, task: Any, algorithm: Any) -> None:
    """Refuse keys of a dict that would have no effect, because an object takes their place; a file may hold more."""
    if not isinstance(settings, Mapping):
        return
    own = settings.get("algorithm")
    options = isinstance(own, Mapping) and set(OF_ALGORITHM) & set(own)
    for key, given in (("task", task if "task" in settings else None), ("algorithm", algorithm if options else None)):
        if given is not None and not isinstance(given, str):
            raise ConfigError(f"settings: {key} was given as an object too; change the object, or leave it out")


def settings_for(
    federation: Federation | None,
    given: Settings | str | Path | Mapping[str, Any] | None,
    overrides: Mapping[str, Any],
) -> Settings:
    """Return a run's settings: defaults, under what is given, under single keys; sizes follow the data."""
    if isinstance(given, str | Path):
        given = load_settings(given)
    if isinstance(given, Settings):
        given = plain_values(given)
    elif given is not None and not isinstance(given, Mapping):
        raise ConfigError(f"settings is a {type(given).__name__}; give Settings, the path of a TOML file, or a dict")
    values: dict[str, Any] = copy.deepcopy(merged(IN_PYTHON, given or {}))
    selection = values.get("selection", {})
    picks = not isinstance(selection, Mapping) or "pick" in selection
    values["baseline"] = []
    if federation is not None:
        values = merged(values, {"federation": {"devices": len(federation), "factories": federation.factories}})
        values = merged(values, {"data": {"name": federation.name}})
        if not picks and overrides.get("selection.pick") is None:
            values = merged(values, {"selection": {"pick": default_pick(int(federation.factory_sizes.min()))}})
    for key, value in overrides.items():
        if value is not None:
            assign(values, key, value, f"run: {key}")
    return checked_settings(values if federation is not None else with_whole_paths(values), "run")


def overrides_of(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return those of the arguments of :func:`run` that stand for a key of the settings, by that key."""
    found = {key: arguments.get(keyword) for keyword, key in KEYWORDS.items()}
    algorithm, solver, init = found["algorithm.name"], found["selection.solver"], found["init"]
    # The real names of objects follow, once they have been looked at.
    if algorithm is not None and not isinstance(algorithm, str):
        found |= {"algorithm.name": "own:algorithm", "algorithm.kind": getattr(algorithm, "kind", None)}
    if solver is not None and not isinstance(solver, str):
        found["selection.solver"] = "own:solver"
    return found | {"init": None if init is None else os.path.abspath(init) if os.path.exists(init) else str(init)}


def plain_values(settings: Settings) -> dict[str, Any]:
    """Return settings as nested values, without the sizes that nobody gave: they follow others."""
    values = settings.model_dump()
    for key in {"pick", "presample"} - settings.selection.model_fields_set:
        del values["selection"][key]
    return values


def execute(*arguments: Any, **options: Any) -> History:
    """Execute a run, in a folder from its newest checkpoint, and return its history; takes what :class:`Run` takes."""
    with Run(*arguments, **options) as prepared:
        return prepared.execute()


class Run:
    """A run that is ready to begin: settings, data, network and engine have been found to fit each other."""

    state: RunState
    """From which it begins or goes on, and later that after the last round."""

    def __init__(
        self,
        settings: Settings,
        federation: Federation,
        device: str | torch.device = "cpu",
        group: ProcessGroup | None = None,
        *,
        components: Components | None = None,
        folder: Path | None = None,
        callbacks: Iterable[Any] = (),
        purpose: str = "",
    ) -> None:
        """``purpose``: as for :class:`Simulator`."""
        if components is None:
            settings, components = resolve(settings, classes=len(federation.classes))
        self.settings, self.federation, self.components = settings, federation, components
        self.folder, self.group = folder, group or ProcessGroup()
        self._callbacks = [
            *(trackers_of(settings, folder) if self.group.first else []),  # first: a server may refuse the run
            *([] if folder is None else [RunFolder(folder), TeamLog(folder)]),
            *checked_callbacks(callbacks),
        ]
        tested = federation
        if settings.data.validation:
            tested = federation.for_tuning(settings.data.validation, settings.seed)
        with translate_oom(), telling(self._note):
            self.simulator = Simulator(
                settings, tested, device, self.group, components=components, purpose=purpose,
                tick=self._tick, note=self._note,
            )  # fmt: skip
        self.identity = folders.run_identity(
            settings, self.simulator.federation, purpose, network_digest(self.simulator.task)
        )
        """What its checkpoints are known by."""
        self.resumed = False
        self.timings: list[dict[str, Any]] = []
        """What each round took, one row a round; grows as the run goes on."""

    def __enter__(self) -> "Run":
        return self

    def __exit__(self, *error: object) -> None:
        self.simulator.__exit__(*error)

    @property
    def score(self) -> str:
        """The metric that counts."""
        return self.simulator.task.score

    def execute(self) -> History:
        """Run from the newest checkpoint, or from the start, to the end."""
        self.group.wait()  # for the first rank to have made the folder
        with translate_oom(), telling(self._note):
            before, state = None, self.newest()
            if self.folder is not None and state is not None:
                self.state, self.resumed = state, True
                before = folders.read_summary(self.folder / PRETRAINING)
                self.timings = [row for row in folders.read_timings(self.folder) if row["round"] <= state.round]
            else:
                first = self._pretrain()
                before = None if first is None else first.summary
                self.state = self.simulator.begin(None if first is None or not first.finished else first.finished.state)
                self.timings = [self.simulator.timing.row(self.state.round)]
            return self._finish(before)

    def newest(self) -> RunState | None:
        """Return the state of its newest checkpoint; None where there is none. Those of another run are refused."""
        if self.folder is None:
            return None
        checkpoints = self.folder / folders.CHECKPOINTS
        changes = partial(changes_of, self.folder, self.simulator.federation)
        return load_newest(checkpoints, self.simulator.layout, self.identity, self._note, changes)

    def _finish(self, before: dict[str, Any] | None) -> History:
        """Run the rounds that are left and call the callbacks; ``before`` is the summary of the pre-training."""
        settings, simulator, task = self.settings, self.simulator, self.simulator.task
        self.group.wait()  # nobody writes a checkpoint before all have read
        failure: BaseException | None = None
        try:
            self._call("on_begin", self)
            for state in simulator.rounds(self.state):
                self.state = state
                self.timings.append(simulator.timing.row(state.round))
                seconds = {"seconds": self.timings[-1]["seconds"], "simulated_seconds": state.clock[-1]["elapsed"]}
                if any(answer is True for answer in self._call("on_round", state, state.metrics[-1] | seconds)):
                    break
            if simulator.last_evaluation is None:  # resumed with nothing left to do
                simulator.last_evaluation = simulator.evaluate(self.state)
            finished = Finished(
                task, self.components, simulator.layout, simulator.gathered(self.state), simulator.last_evaluation,
                self.identity,
            )  # fmt: skip
            history = History(
                settings, self.state.metrics, self.state.clock, tuple(self.timings),
                summarise(settings, task, self.state, self.timings, before, self.components), task.score, task.mode,
                "run" if self.folder is None else self.folder.resolve().name, self.folder, finished,
            )  # fmt: skip
            self._call("on_end", history)
            return history
        except BaseException as error:
            failure = error
            raise
        finally:
            self._call("on_stop", failure)

    def _call(self, hook: str, *arguments: Any) -> list[Any]:
        """Call a hook of every callback that has it; return what they return."""
        return [getattr(one, hook)(*arguments) for one in self._callbacks if callable(getattr(one, hook, None))]

    def _tick(self, iterations: float) -> None:
        self._call("on_tick", iterations)

    def _note(self, line: str) -> None:
        self._call("on_note", line)

    def _pretrain(self) -> History | None:
        """Execute the run before this one, where there is to be one, or go on with it."""
        wanted = pretraining_of(self.settings, self.components)
        if wanted is None:
            return None
        settings, components = wanted
        folder = None if self.folder is None else self.folder / PRETRAINING
        if folder is not None and self.group.first and not folder.exists():
            folders.create_run(folder, settings)
        self.group.wait()
        callbacks = [one for one in self._call("on_pretraining", settings, folder) if one is not None]
        place = f", see {folder}" if folder else ""
        try:
            with Run(
                settings, self.federation, self.simulator.device, self.group, components=components, folder=folder,
                callbacks=callbacks, purpose=PURPOSE,
            ) as before:  # fmt: skip
                before._note(f"{settings.training.rounds} rounds of FedAvg come before the first round{place}")
                return before.execute()
        except TrainingError as error:
            raise TrainingError(f"pre-training, {error}") from None


def network_digest(task: BoundTask) -> str:
    """Return what stands for a network and its bins: names, shapes and types of all weights, values of frozen ones."""
    digest = blake2b(digest_size=8)
    for name, value in task.module.state_dict().items():
        digest.update(f"{name} {tuple(value.shape)} {value.dtype}\n".encode())
    digest.update(f"{task.score} {task.mode} {len(task.classes)}".encode())
    for value in frozen_weights(task.module).values():
        digest.update(value.numpy().tobytes())
    return digest.hexdigest()
