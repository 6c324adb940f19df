"""``fedgs.run`` and ``fedgs.resume``: a run from its first round, or from its last checkpoint, to its end.

    history = fedgs.run(task, federation, algorithm="fedgs", rounds=40, pick=10, learning_rate=0.1)

The command line is a thin client of :func:`execute`: it parses, calls, and prints.
"""

import copy
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any

import torch

from fedgs.algorithms import Baseline
from fedgs.algorithms.run_state import RunState
from fedgs.config import checked_settings, load_settings, merged
from fedgs.data import Federation
from fedgs.errors import ConfigError, TrainingError
from fedgs.settings import Settings
from fedgs.simulation import folder as folders
from fedgs.simulation import pretraining
from fedgs.simulation.callbacks import Callbacks, Run
from fedgs.simulation.checkpoint import load_newest
from fedgs.simulation.components import Components, resolve
from fedgs.simulation.folder import RunFolder
from fedgs.simulation.history import Finished, History
from fedgs.simulation.made_of import check_same
from fedgs.simulation.memory import resident_megabytes, translate_oom
from fedgs.simulation.process_group import ProcessGroup
from fedgs.simulation.simulator import Simulator, pick_device
from fedgs.simulation.source import load_federation
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
    given = {
        "seed": seed,
        "training.rounds": rounds,
        "training.iterations": iterations,
        "training.batch_size": batch_size,
        "training.learning_rate": learning_rate,
        "training.optimizer": optimizer,
        "training.engine": engine,
        "selection.pick": pick,
        "selection.solver": solver if isinstance(solver, str) else None,
        "algorithm.name": algorithm if isinstance(algorithm, str) else None,
        "eval.every": eval_every,
    }
    if algorithm is not None and not isinstance(algorithm, str):
        given["algorithm.kind"] = getattr(algorithm, "kind", None)
        given["algorithm.name"] = "own:algorithm"  # its real name follows, once it has been looked at
    if solver is not None and not isinstance(solver, str):
        given["selection.solver"] = "own:solver"
    wanted = settings_for(federation, settings, given)
    chosen = pick_device(device)
    if federation is None:
        federation = load_federation(wanted)
    own_algorithm = algorithm if not isinstance(algorithm, str) else None
    wanted, components = resolve(
        wanted, task=task, algorithm=own_algorithm, solver=solver if not isinstance(solver, str) else None,
        classes=len(federation.classes),
    )  # fmt: skip
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
    """Go on with a run from its last checkpoint; a run that has come to its end is read.

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
    check_same(path, folders.read_task(path).get("made_of"), components)
    return execute(settings, federation, pick_device(device), components=components, folder=path, callbacks=callbacks)


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
        if value is None:
            continue
        *sections, last = key.split(".")
        place = values
        for section in sections:
            place = place.setdefault(section, {})
        place[last] = value
    return checked_settings(values, "run")


def default_pick(devices: int) -> int:
    """Return how many of a factory's devices are selected where nobody says: a fifth, at least two."""
    return min(devices, max(2, round(devices / 5)))


@dataclass
class _Timings:
    """What every round took, in memory."""

    lines: list[dict[str, Any]]

    def add(self, state: RunState, simulator: Simulator) -> dict[str, Any]:
        """Note a round."""
        timing = simulator.timing
        line = {
            "round": state.round,
            "seconds": round(timing.total, 4),
            "training": round(timing.training, 4),
            "evaluation": round(timing.evaluation, 4),
            "waiting": round(timing.waiting, 4),
            "megabytes": resident_megabytes(),
        }
        self.lines.append(line)
        return line


def execute(
    settings: Settings,
    federation: Federation,
    device: str | torch.device = "cpu",
    group: ProcessGroup | None = None,
    *,
    components: Components | None = None,
    folder: Path | None = None,
    callbacks: Iterable[Any] = (),
) -> History:
    """Carry out a run, in a folder from its newest checkpoint, and return its history."""
    group = group or ProcessGroup()
    if group.size > 1:
        group.wait()  # for the first rank to have made the folder
    if components is None:
        settings, components = resolve(settings, classes=len(federation.classes))
    everyone = [RunFolder(folder), *callbacks] if folder is not None else list(callbacks)
    with translate_oom():
        return _execute(settings, federation, torch.device(device), group, components, folder, Callbacks(everyone))


def _execute(
    settings: Settings,
    federation: Federation,
    device: torch.device,
    group: ProcessGroup,
    components: Components,
    folder: Path | None,
    callbacks: Callbacks,
    purpose: str = "",
) -> History:
    with Simulator(
        settings, federation, device, group, components=components, tick=callbacks.tick, note=callbacks.note,
        purpose=purpose,
    ) as simulator:  # fmt: skip
        identity = folders.run_identity(settings, simulator.federation, purpose, network_digest(simulator.task))
        state = None
        if folder is not None:
            state = load_newest(folder / folders.CHECKPOINTS, simulator.layout, identity, callbacks.note)
        resumed = state is not None
        before = None
        if state is None:
            before = _pretrained(settings, federation, device, group, components, folder, callbacks)
            state = simulator.begin(None if before is None else _last_state(before))
        group.wait()  # nobody writes a checkpoint before all have read
        earlier = (
            [] if folder is None else [line for line in folders.read_timings(folder) if line["round"] <= state.round]
        )
        timings = _Timings(earlier)
        if not resumed:
            timings.add(state, simulator)
        failure: BaseException | None = None
        try:
            callbacks.tell("on_begin", Run(settings, simulator, state, folder, identity, resumed))
            for following in simulator.rounds(state):
                state = following
                line = timings.add(state, simulator)
                told = {
                    **state.metrics[-1],
                    "seconds": line["seconds"],
                    "simulated_seconds": state.clock[-1]["elapsed"],
                }
                if any(answer is True for answer in callbacks.tell("on_round", state, told)):
                    break
            if simulator.last_evaluation is None:  # resumed with nothing left to do
                simulator.last_evaluation = simulator.evaluate(state)
            old = before.summary if before is not None else None
            if folder is not None and old is None:
                old = folders.read_summary(folder / pretraining.FOLDER)
            summary = summarise(settings, simulator.task, state, timings.lines, old, components)
            whole = simulator.gathered(state)
            history = History(
                settings, state.metrics, state.clock, tuple(timings.lines), summary, simulator.task.score,
                simulator.task.mode, "run" if folder is None else folder.resolve().name, folder,
                Finished(simulator.task, components, simulator.layout, whole, simulator.last_evaluation, identity),
            )  # fmt: skip
            callbacks.tell("on_end", history)
            return history
        except BaseException as error:
            failure = error
            raise
        finally:
            callbacks.tell("on_stop", failure)


def _last_state(history: History) -> RunState:
    assert history.finished is not None
    return history.finished.state


def network_digest(task: BoundTask) -> str:
    """Return what stands for a network and its bins: names, shapes and types of all weights and buffers."""
    digest = blake2b(digest_size=8)
    for name, value in task.module.state_dict().items():
        digest.update(f"{name} {tuple(value.shape)} {value.dtype}\n".encode())
    digest.update(f"{task.score} {task.mode} {len(task.classes)}".encode())
    return digest.hexdigest()


def _pretrained(
    settings: Settings,
    federation: Federation,
    device: torch.device,
    group: ProcessGroup,
    components: Components,
    folder: Path | None,
    callbacks: Callbacks,
) -> History | None:
    """Carry out the run before this one, where there is to be one, or go on with it."""
    wanted = pretraining.pretraining_of(settings, components)
    if wanted is None:
        return None
    before, plain = wanted
    inner = None if folder is None else folder / pretraining.FOLDER
    if inner is not None and group.first and not inner.exists():
        folders.create_run(inner, before)
    group.wait()
    onlookers = callbacks.before(before, inner)
    onlookers.note(
        f"{before.training.rounds} rounds of FedAvg come before the first round" + (f", see {inner}" if inner else "")
    )
    try:
        return _execute(before, federation, device, group, plain, inner, onlookers, pretraining.PURPOSE)
    except TrainingError as error:
        raise TrainingError(f"pre-training, {error}") from None


__all__ = ["Baseline", "execute", "resume", "run", "settings_for"]
