"""``fedgs.run`` and ``fedgs.resume``: a run from its first round, or from its last checkpoint, to its end.

    history = fedgs.run(task, federation, algorithm="fedgs", rounds=40, pick=10, learning_rate=0.1)

The command line parses, calls :mod:`fedgs.simulation.launch`, and prints.
"""

import copy
from collections.abc import Iterable, Mapping
from hashlib import blake2b
from pathlib import Path
from typing import Any

import torch

from fedgs.algorithms.run_state import RunState
from fedgs.config import assign, checked_settings, load_settings, merged
from fedgs.data import Federation
from fedgs.errors import ConfigError, TrainingError
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
from fedgs.simulation.federations import load_federation
from fedgs.simulation.folder import RunFolder
from fedgs.simulation.history import Finished, History
from fedgs.simulation.memory import translate_oom
from fedgs.simulation.process_group import ProcessGroup
from fedgs.simulation.simulator import Simulator, pick_device
from fedgs.simulation.summary import summarise
from fedgs.tasks.bind import BoundTask
from fedgs.tasks.task import Task

IN_PYTHON: dict[str, Any] = {
    "training": {"rounds": 40, "iterations": 25, "batch_size": 32, "learning_rate": 0.1},
    "algorithm": {"local_epochs": 2},
}
"""Settings of a run from Python where nobody says otherwise; those of a file are the paper's."""


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
    out: str | Path | None = None,
    settings: Settings | str | Path | Mapping[str, Any] | None = None,
    callbacks: Iterable[Any] = (),
) -> History:
    """Train a task on a federation and return the history of the run.

    Args:
        task: what is learnt; None: as the settings say.
        federation: whose data; None: as the settings say.
        algorithm: a name (``fedgs``, ``fedavg``, ``fedprox``, …), ``package.module:name``, or an object such as
            ``FedProx(mu=0.1)``; fedgs by default.
        rounds: external synchronisations, or rounds of a baseline; 40 by default.
        iterations: internal synchronisations in a round of FedGS; 25 by default.
        batch_size: samples of a mini-batch; 32 by default.
        learning_rate: of a step; 0.1 by default.
        optimizer: sgd, momentum, adam or adamw, of the stations or of a baseline's clients.
        pick: devices selected per factory and iteration; a fifth of the smallest factory by default, at least two.
        solver: of the selection: a name, or a function of a problem and a random generator.
        seed: all random streams follow from it.
        device: auto, cpu or cuda.
        engine: auto, fused, clients, per-device, graph or stacked.
        eval_every: rounds between two tests.
        out: a folder to write the run into; None: it stays in memory.
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
    _check_arguments(task, federation)
    own_algorithm = None if isinstance(algorithm, str) else algorithm
    own_solver = None if isinstance(solver, str) else solver
    given = {
        "seed": seed,
        "training.rounds": rounds,
        "training.iterations": iterations,
        "training.batch_size": batch_size,
        "training.learning_rate": learning_rate,
        "training.optimizer": optimizer,
        "training.engine": engine,
        "selection.pick": pick,
        # The real names of objects follow, once they have been looked at.
        "selection.solver": solver if own_solver is None else "own:solver",
        "algorithm.name": algorithm if own_algorithm is None else "own:algorithm",
        "algorithm.kind": getattr(own_algorithm, "kind", None),
        "eval.every": eval_every,
    }
    wanted = settings_for(federation, settings, given)
    chosen = pick_device(device)
    if federation is None:
        federation = load_federation(wanted)
    classes = len(federation.classes)
    wanted, components = resolve(wanted, task=task, algorithm=own_algorithm, solver=own_solver, classes=classes)
    folder = None if out is None else Path(out)
    if folder is not None:
        folders.create_run(folder, wanted)
    try:
        return execute(wanted, federation, chosen, components=components, folder=folder, callbacks=callbacks)
    finally:
        if folder is not None:
            folders.discard_if_unused(folder)


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
    """Go on with a run from its last checkpoint; a finished run is read.

    Args:
        folder: of the run.
        task: the run's task, where it cannot be imported by its name: one of a notebook, say.
        federation: the run's federation, where it was made from arrays.
        algorithm: the run's algorithm, where it was an object that cannot be imported.
        solver: likewise.
        device: auto, cpu or cuda.
        callbacks: as for :func:`run`.

    Examples:
        >>> import fedgs
        >>> history = fedgs.resume("runs/mine")              # doctest: +SKIP
    """
    _check_arguments(task, federation)
    path = Path(folder)
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
    return execute(settings, federation, pick_device(device), components=components, folder=path, callbacks=callbacks)


def _check_arguments(task: Any, federation: Any) -> None:
    if task is not None and not isinstance(task, Task):
        raise ConfigError(
            f"task is a {type(task).__name__}, not a fedgs.Task; make one of the network, for example with "
            "fedgs.classification(model)"
        )
    if federation is not None and not isinstance(federation, Federation):
        raise ConfigError(
            f"federation is a {type(federation).__name__}, not a fedgs.Federation; make one with "
            "Federation.from_arrays, from_datasets or load"
        )


def settings_for(
    federation: Federation | None,
    given: Settings | str | Path | Mapping[str, Any] | None,
    overrides: Mapping[str, Any],
) -> Settings:
    """Return a run's settings: defaults, under what is given, under single keys; sizes follow the data."""
    if isinstance(given, str | Path):
        given = load_settings(given)
    if isinstance(given, Settings):
        values: dict[str, Any] = given.model_dump()
        picks = "pick" in given.selection.model_fields_set
        if "presample" not in given.selection.model_fields_set:
            values["selection"].pop("presample", None)  # it follows pick
    elif given is not None and not isinstance(given, Mapping):
        raise ConfigError(f"settings is a {type(given).__name__}; give Settings, the path of a TOML file, or a dict")
    else:
        values = copy.deepcopy(merged(IN_PYTHON, given or {}))
        picks = "pick" in (given or {}).get("selection", {})
    values["baseline"] = []
    if federation is not None:
        values = merged(values, {"federation": {"devices": len(federation), "factories": federation.factories}})
        values = merged(values, {"data": {"name": federation.name}})
        if not picks and overrides.get("selection.pick") is None:
            values = merged(values, {"selection": {"pick": default_pick(int(federation.factory_sizes.min()))}})
    for key, value in overrides.items():
        if value is not None:
            assign(values, key, value, f"run: {key}")
    return checked_settings(values, "run")


def default_pick(devices: int) -> int:
    """Return how many of a factory's devices are selected where nobody says: a fifth, at least two."""
    return min(devices, max(2, round(devices / 5)))


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
        self._callbacks = [*([RunFolder(folder)] if folder is not None else []), *checked_callbacks(callbacks)]
        with translate_oom():
            self.simulator = Simulator(
                settings, federation, device, self.group, components=components, purpose=purpose,
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
        with translate_oom():
            state = before = None
            if self.folder is not None:
                checkpoints = self.folder / folders.CHECKPOINTS
                state = load_newest(checkpoints, self.simulator.layout, self.identity, self._note)
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
    """Return what stands for a network and its bins: names, shapes and types of all weights and buffers."""
    digest = blake2b(digest_size=8)
    for name, value in task.module.state_dict().items():
        digest.update(f"{name} {tuple(value.shape)} {value.dtype}\n".encode())
    digest.update(f"{task.score} {task.mode} {len(task.classes)}".encode())
    return digest.hexdigest()
