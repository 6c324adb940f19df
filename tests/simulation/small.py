"""Small federations that can be learnt in a second, and settings for them."""

from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import torch

from fedgs.algorithms.algorithm import Context, Rounds
from fedgs.algorithms.run_state import RunState
from fedgs.config import load_settings
from fedgs.data import DataSet, Federation, build_federation
from fedgs.data.npz import save_npz
from fedgs.settings import Settings, TrainingSettings
from fedgs.simulation.checkpoint import load_newest, save_checkpoint
from fedgs.simulation.components import resolve
from fedgs.simulation.process_group import ProcessGroup
from fedgs.simulation.simulator import Simulator
from fedgs.tasks.bind import BoundTask, bind
from fedgs.tasks.task import Task
from fedgs.training.engine import Setup
from fedgs.training.network import ModuleNetwork
from fedgs.training.probe import probe
from fedgs.training.store import SampleStore

SMALL = [
    "federation.devices=12",
    "federation.factories=3",
    "selection.pick=3",
    "selection.presample=1",
    "task.model=compact",
    "training.rounds=3",
    "training.iterations=4",
    "training.batch_size=5",
    "training.learning_rate=0.1",
    "checkpoint.every=1",
    "clock.step_seconds=0.01",  # to measure it takes as long as a round
    "data.min_samples=0",
]


def small_set(devices: int = 12, classes: int = 4, seed: int = 0, pixels: int = 8) -> DataSet:
    """Noisy pictures of a bright bar whose place tells the class; devices prefer some classes."""
    draws = np.random.default_rng(seed)
    sizes = draws.integers(18, 31, devices)
    labels, clients = [], []
    for device, size in enumerate(sizes):
        labels.append(draws.choice(classes, size, p=draws.dirichlet(np.full(classes, 0.7))))
        clients.append(np.full(size, device))
    label = np.concatenate(labels).astype(np.uint8)
    images = draws.integers(0, 90, (len(label), pixels, pixels)).astype(np.uint8)
    for row, kind in enumerate(label):
        images[row, 2 * kind % pixels] += 150
    return DataSet(
        "bars",
        images,
        label,
        np.concatenate(clients).astype(np.int32),
        tuple(f"device-{device:02d}" for device in range(devices)),
        tuple("abcdefgh"[:classes]),
    )


def small_federation(devices: int = 12, factories: int = 3, seed: int = 0) -> Federation:
    return build_federation(small_set(devices, seed=seed), factories, seed=seed)


def small_settings(*overrides: str) -> Settings:
    return load_settings(overrides=[*SMALL, *overrides])


def small_states(*options: str, ahead: int = 3) -> list[RunState]:
    """Run the small settings on the small federation; return the states before the first and after each round."""
    with Simulator(small_settings(*options), small_federation(), ahead=ahead) as simulator:
        first = simulator.begin()
        return [first, *simulator.rounds(first)]


def resumed(state: RunState, *options: str) -> RunState:
    """Write a state as a checkpoint, read it, and return the last state of a new simulator that goes on from it."""
    with Simulator(small_settings(*options), small_federation()) as simulator, TemporaryDirectory() as folder:
        save_checkpoint(Path(folder), state, simulator.layout, "me")
        loaded = load_newest(Path(folder), simulator.layout, "me")
        assert loaded is not None
        return list(simulator.rounds(loaded))[-1]


def is_one_line(error: str) -> bool:
    return error.startswith("fedgs: error: ") and error.count("\n") == 1


def small_config(folder: Path, *overrides: str) -> list[str]:
    """Write the small data set and return the --set options of a run on it."""
    data = folder / "bars.npz"
    if not data.exists():
        save_npz(small_set(), data)
    options = [*SMALL, "baseline=[]", f"data.name='{data}'", *overrides]
    return [part for option in options for part in ("--set", option)]


def small_task(model: str = "compact", federation: Federation | None = None, seed: int = 0) -> BoundTask:
    return bind(Task(model), federation or small_federation(), seed)


def small_engine_setup(training: TrainingSettings, task: BoundTask | None = None, device: str = "cpu") -> Setup:
    """What an engine of FedGS is made of, for a task of the small federation."""
    task = task or small_task()
    where = torch.device(device)
    network = ModuleNetwork(task, where, training.precision)
    traits = probe(task)
    return Setup(network, SampleStore(task, where), training, traits=traits)


def small_rounds(settings: Settings, federation: Federation, device: str = "cpu") -> Rounds:
    """What runs the rounds of some settings."""
    settings, components = resolve(settings, classes=len(federation.classes))
    task = bind(components.task, federation, settings.seed)
    store = SampleStore(task, torch.device(device))
    return components.algorithm.bind(Context(settings, task, store, ProcessGroup()))
