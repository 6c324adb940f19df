"""The process of ``fedgs top``: from its newest checkpoint, or from the beginning, to the last round.

After a round the global model is tested on a held-out set, where there is one.
"""

import asyncio
import json
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedgs.algorithms import ServerRule
from fedgs.data import DataSet
from fedgs.data.arrays import map_tree, shapes_of, take
from fedgs.data.characters import CHARACTERS
from fedgs.data.sources import load_dataset
from fedgs.deploy.factory_numbers import FactoryNumbers
from fedgs.deploy.logs import log, set_up
from fedgs.deploy.metrics import TopMetrics, served_metrics
from fedgs.deploy.pki import Bundle, Identity
from fedgs.deploy.process import claim, end_with_parent, note_addresses, until_stopped
from fedgs.deploy.run_spec import RunSpec, check_deployable
from fedgs.deploy.settings import TopSettings
from fedgs.deploy.sources import one_device
from fedgs.deploy.station_list import NamedStations, StationList
from fedgs.deploy.team_file import TeamFile
from fedgs.deploy.top import Top
from fedgs.deploy.top_service import TopView, check_server
from fedgs.deploy.top_state import Checkpoints, TopState, save_model, settings_digest
from fedgs.deploy.torch_trainer import Deployed
from fedgs.deploy.transport import GrpcTransport, Transport
from fedgs.errors import ConfigError, InputFileError
from fedgs.settings import Settings
from fedgs.tasks.bind import BoundTask, bind
from fedgs.tasks.cnn import MODELS
from fedgs.tasks.facts import ModelFacts, model_facts
from fedgs.tasks.losses import predicted_classes
from fedgs.tasks.metrics import class_metrics, confusion_matrix
from fedgs.tasks.prepare import as_tensor, call, prepare_targets, statistics_of
from fedgs.tasks.task import QuantileBins, Task, reconstruction_error, task_from
from fedgs.training.layout import frozen_weights

_BATCH = 512


class HeldOut:
    """Tests weights on all samples of a data set."""

    def __init__(self, data: DataSet, task: Task, settings: Settings) -> None:
        alone = one_device(data, "all", np.arange(len(data)))
        # Statistics of this set are put in front of the network, until weights come with those of the devices.
        self.task: BoundTask = bind(task, alone, settings.seed, settings.data.normalise)
        self._data = self.task.federation
        self._module = self.task.module.eval().requires_grad_(False)

    @torch.no_grad()  # a forward pass may ask for gradients of its own
    def __call__(self, weights: Mapping[str, Tensor]) -> dict[str, Any]:
        """Return the task's metrics and its mean loss."""
        known = {**dict(self._module.named_parameters()), **dict(self._module.named_buffers())}
        for name, value in weights.items():
            known[name].copy_(value)
        task = self.task
        losses: list[Tensor] = []
        values: dict[str, list[Tensor]] = {name: [] for name in task.metrics}
        predicted: list[Tensor] = []
        samples = len(self._data.labels)
        for first in range(0, samples, _BATCH):
            rows = np.arange(first, min(first + _BATCH, samples))
            inputs = task.prepare(map_tree(as_tensor, take(self._data.inputs, rows)))
            targets = prepare_targets(map_tree(as_tensor, take(self._data.targets, rows)))
            outputs = call(self._module, inputs)
            losses.append(task.loss(outputs, targets, inputs))
            for name, metric in task.metrics.items():
                values[name].append(metric.values(outputs, targets, inputs))
            if task.classifies:
                predicted.append(predicted_classes(outputs))
        pooled = {
            name: metric.pooled(torch.cat(values[name]).double().numpy(), self._data.targets)
            for name, metric in task.metrics.items()
        }
        found = {**pooled, "loss": float(torch.cat(losses).double().mean())}
        if predicted:
            said = torch.cat(predicted).numpy()
            found |= class_metrics(confusion_matrix(self._data.labels, said, len(task.classes)))
        return found


def run_top(
    settings: Settings,
    options: TopSettings,
    stations: Sequence[str],
    folder: Path,
    bundle: Bundle | None,
    listen: str | None = None,
) -> TopState:
    """Carry out the run over plain gRPC, until its last round or SIGTERM, and return its last state.

    ``stations``: as ``--stations`` names them (:mod:`fedgs.deploy.station_list`). ``bundle`` None: plain text on the
    loopback. ``listen``: where operators are answered; None: nowhere.
    """
    end_with_parent()
    identity = Identity("park", "top", "top") if bundle is None else bundle.check("top")
    set_up(options.log_level, options.log_json, process="top" if identity.name == "top" else str(identity))
    if listen is not None:
        check_server(listen, bundle)
    numbers = FactoryNumbers(folder)

    def connect(address: str) -> Transport:
        rounds = settings.training.rounds
        return GrpcTransport(
            address, bundle, identity, options.keepalive, numbers=numbers, epoch=numbers.epoch, rounds=rounds
        )  # fmt: skip

    listed = NamedStations(stations, connect, numbers, options.min_stations)
    running = carry_out(settings, options, folder, listed, listen=listen, bundle=bundle)
    last = asyncio.run(until_stopped(running, bundle, listed.reload))
    if last is None:
        raise KeyboardInterrupt
    return last


async def carry_out(
    settings: Settings,
    options: TopSettings,
    folder: Path,
    stations: StationList,
    rule: ServerRule | None = None,
    listen: str | None = None,
    bundle: Bundle | None = None,
) -> TopState:
    """Carry out the run over these stations, from its newest checkpoint or from the beginning.

    ``rule`` None: the one the settings name. ``listen``: where operators are answered, with ``bundle``.
    """
    check_deployable(settings)
    held_out, deployed, classes, inputs, names = _task(settings, options)
    network = deployed.digest(classes, settings.training.batch_size)
    metrics = TopMetrics()
    digest = settings_digest(settings, network, names)
    view = TopView(settings, options, stations, metrics)
    view.classes = names or tuple(map(str, range(classes)))
    with claim(folder, "top server"), served_metrics(metrics.registry, options.metrics, view.unready) as scraped:
        kept, teams = Checkpoints(folder, digest), TeamFile(folder)
        state = kept.load()
        run = f"{folder.resolve().name[:40]}-{secrets.token_hex(4)}" if state is None else state.run
        run_spec = RunSpec(
            settings, run, classes, inputs, network, deployed.head, options.wire, names, deployed.channels
        )
        evaluate = held_out
        if deployed.layout.local and held_out is not None:
            log.warning("the model is not tested: task.keep_local keeps a part of it on the devices")
            evaluate = None
        top = Top(
            run_spec, stations, options, metrics, evaluate, _target(options.target, classes), rule,
            deployed.shapes, "loss" if held_out is None else held_out.task.score,
        )  # fmt: skip
        view.score = "" if evaluate is None else evaluate.task.score
        async with view.served(listen, bundle) as operators:
            note_addresses(folder, operators=operators, metrics=scraped)
            log.info("top server serves", operators=operators, metrics=scraped)
            if state is None:
                log.info("run begins", run=run, stations=len(stations.transports))
                state = await top.begin(run, deployed.first_weights())
            else:
                log.info("run is resumed", run=run, round=state.round)
            kept.save(state)  # of a resumed run too: its metrics may be ahead of the checkpoint
            view.state = state
            teams.begin(state.round)
            teams.describe(settings, view.score, view.classes, _shares(state.target))
            while state.round < settings.training.rounds:
                view.state = state = await top.advance(state)
                teams.add(state.round, state.parts)  # before its metrics, by which the page notices the round
                kept.save(state)
            teams.describe(settings, view.score, view.classes, _shares(state.target))
            facts = _facts(settings, deployed, tuple(view.classes), inputs, state.weights)
            save_model(folder, state, facts, frozen_weights(deployed.module))
        return state


def image_shape(text: str | None) -> tuple[int, ...] | None:
    """Return the shape that HEIGHTxWIDTH or HEIGHTxWIDTHxCHANNELS stands for."""
    if text is None:
        return None
    sides = text.split("x")
    if len(sides) not in (2, 3) or not all(side.isdecimal() and int(side) > 0 for side in sides):
        raise ConfigError(f"--image {text}: expected HEIGHTxWIDTH or HEIGHTxWIDTHxCHANNELS, for example 28x28")
    return tuple(int(side) for side in sides)


def _task(settings: Settings, options: TopSettings) -> tuple[HeldOut | None, Deployed, int, str, tuple[str, ...]]:
    """Return the held-out set, the run's task with its network, the number of bins, a sample's shapes in JSON, and the
    names of the classes."""
    task, image = task_from(settings.task), image_shape(options.image)
    normalise = settings.data.normalise != "none"
    told = options.classes or task.bins or CHARACTERS
    names = () if isinstance(told, int) else tuple(map(str, told))
    if options.held_out is None:
        wanted = told if isinstance(told, int) else len(names)
        if task.balance is not None and isinstance(task.bins, int):
            wanted = task.bins  # the names are of the classes, which are not the bins
        built_in = isinstance(task.model, str) and task.model in MODELS  # to the shape of images
        shape = image or ((28, 28) if built_in and not isinstance(settings.task, str) else None)
        inputs = None if shape is None else [list(shape), "uint8"]
        if normalise and inputs is None:
            raise ConfigError("data.normalise needs the shape of the inputs; give --held-out, or --image for photos")
        described = "" if inputs is None else json.dumps(inputs)
        return None, Deployed.of(task, wanted, inputs, settings.seed, normalise), wanted, described, names
    data = load_dataset(options.held_out)
    if not len(data):
        raise InputFileError(f"{options.held_out}: no sample in it")
    if isinstance(options.classes, list) and task.balance is None:
        task = replace(task, bins=options.classes)
    held_out = HeldOut(data, task, settings)
    classes, shape = len(held_out.task.classes), shapes_of(data.inputs)
    number = options.classes if isinstance(options.classes, int) else None
    for option, given, found in (("--classes", number, classes), ("--image", image, shape)):
        if given is not None and given != found:
            raise ConfigError(f"{option} {given}: the held-out set has {found}; leave the option out")
    inputs = map_tree(lambda array: [list(array.shape[1:]), str(array.dtype)], data.inputs)
    # The quantiles of the held-out set are not those of the devices: the edges of the bins must be given.
    if isinstance(held_out.task.task.balance, QuantileBins) and held_out.task.task.balance != task.balance:
        raise ConfigError(
            "the edges of quantile bins must be given where devices are deployed: fedgs.regression(…, edges=[…]); a "
            "simulation of the same task finds them"
        )
    names = data.classes if task.balance is not None or not data.classes else held_out.task.classes
    deployed = Deployed.of(task, classes, inputs, settings.seed, normalise)
    return held_out, deployed, classes, json.dumps(inputs), names


def _facts(
    settings: Settings, deployed: Deployed, classes: tuple[str, ...], inputs: str, weights: Mapping[str, Tensor]
) -> ModelFacts | None:
    """Return what the model's file says of it; None where devices keep a part, or nobody knows the inputs."""
    if deployed.layout.local or not inputs:
        return None
    task = deployed.task
    classifies = task.loss == "cross_entropy" and task.balance is None
    reconstructs, statistics = task.loss is reconstruction_error, statistics_of(weights) if deployed.channels else {}
    return model_facts(task, settings, classes, json.loads(inputs), classifies, reconstructs, statistics)


def _shares(target: NDArray[np.float64] | None) -> list[float]:
    return [] if target is None else target.tolist()


def _target(text: str, classes: int) -> NDArray[np.float64] | None:
    if text == "estimate":
        return None
    if text == "uniform":
        return np.full(classes, 1 / classes)
    try:
        values: Any = json.loads(Path(text).read_text(encoding="utf-8"))
        target = np.array(values, dtype=np.float64)
    except (OSError, ValueError, TypeError) as error:
        raise InputFileError(f"--target {text}: not a JSON list of shares ({error})") from None
    if target.shape != (classes,) or not np.isfinite(target).all() or target.min() < 0 or abs(target.sum() - 1) > 1e-6:
        raise InputFileError(f"--target {text}: expected {classes} shares that sum to 1")
    return target
