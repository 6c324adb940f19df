"""The process of ``fedgs top``: from its newest checkpoint, or from the beginning, to the last round.

After a round the global model is tested on a held-out set, where there is one.
"""

import asyncio
import json
import secrets
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedgs.algorithms import ServerRule
from fedgs.data import DataSet
from fedgs.data.arrays import map_tree, shapes_of, take
from fedgs.data.sources import load_dataset
from fedgs.deploy.logs import log, set_up
from fedgs.deploy.metrics import TopMetrics, serve_metrics
from fedgs.deploy.pki import Bundle, Identity
from fedgs.deploy.process import claim, end_with_parent, until_stopped
from fedgs.deploy.run_spec import RunSpec, check_deployable
from fedgs.deploy.settings import TopSettings
from fedgs.deploy.sources import one_device
from fedgs.deploy.top import Top, TopState, load_state, save_model, save_state, settings_digest
from fedgs.deploy.torch_trainer import Deployed
from fedgs.deploy.transport import GrpcTransport, Transport
from fedgs.errors import ConfigError, InputFileError
from fedgs.settings import Settings
from fedgs.tasks.bind import BoundTask, bind, parts_of
from fedgs.tasks.cnn import MODELS
from fedgs.tasks.prepare import as_tensor, call, prepare_targets
from fedgs.tasks.task import QuantileBins, Task, task_from

_BATCH = 512


class HeldOut:
    """Tests weights on all samples of a data set."""

    def __init__(self, data: DataSet, task: Task, seed: int) -> None:
        alone = one_device(data, "all", np.arange(len(data)))
        self.task: BoundTask = bind(task, alone, seed)
        self._data = data
        self._module = self.task.module.eval().requires_grad_(False)

    @torch.inference_mode()
    def __call__(self, weights: Mapping[str, Tensor]) -> dict[str, float]:
        """Return the task's metrics and its mean loss."""
        known = {**dict(self._module.named_parameters()), **dict(self._module.named_buffers())}
        for name, value in weights.items():
            known[name].copy_(value)
        task = self.task
        losses: list[Tensor] = []
        values: dict[str, list[Tensor]] = {name: [] for name in task.metrics}
        for first in range(0, len(self._data), _BATCH):
            rows = np.arange(first, min(first + _BATCH, len(self._data)))
            inputs = task.prepare(map_tree(as_tensor, take(self._data.inputs, rows)))
            targets = prepare_targets(map_tree(as_tensor, take(self._data.targets, rows)))
            outputs = call(self._module, inputs)
            losses.append(task.loss(outputs, targets, inputs))
            for name, metric in task.metrics.items():
                values[name].append(metric.values(outputs, targets, inputs))
        pooled = {
            name: metric.pooled(torch.cat(values[name]).double().numpy(), self._data.targets)
            for name, metric in task.metrics.items()
        }
        return {**pooled, "loss": float(torch.cat(losses).double().mean())}


def run_top(
    settings: Settings, options: TopSettings, stations: Sequence[str], folder: Path, bundle: Bundle | None
) -> TopState:
    """Carry out the run over plain gRPC, until its last round or SIGTERM, and return its last state.

    ``stations``: control addresses, in the order of the factories. ``bundle`` None: plain text on the loopback.
    """
    end_with_parent()
    if not stations:
        raise ConfigError("--stations: name at least one HOST:PORT")
    if len(set(stations)) != len(stations):
        raise ConfigError("--stations: an address is there twice")
    set_up(options.log_level, options.log_json)
    identity = Identity("park", "top", "top") if bundle is None else bundle.check("top")
    transports = [GrpcTransport(address, bundle, identity, options.keepalive) for address in stations]
    last = asyncio.run(until_stopped(carry_out(settings, options, folder, transports), bundle))
    if last is None:
        raise KeyboardInterrupt
    return last


async def carry_out(
    settings: Settings,
    options: TopSettings,
    folder: Path,
    transports: Sequence[Transport],
    rule: ServerRule | None = None,
) -> TopState:
    """Carry out the run over these transports, from its newest checkpoint or from the beginning.

    ``rule`` None: the one the settings name.
    """
    check_deployable(settings)
    held_out, deployed, classes, inputs = _task(settings, options)
    network = deployed.digest(classes, settings.training.batch_size)
    metrics = TopMetrics()
    serve_metrics(metrics.registry, options.metrics)
    digest = settings_digest(settings, network, len(transports))
    with claim(folder, "top server"):
        state = load_state(folder, digest)
        run = f"{folder.resolve().name[:40]}-{secrets.token_hex(4)}" if state is None else state.run
        run_spec = RunSpec(settings, run, classes, inputs, network, parts_of(deployed.task)[0] or "", options.wire)
        evaluate = held_out
        if deployed.layout.local and held_out is not None:
            log.warning("the model is not tested: task.keep_local keeps a part of it on the devices")
            evaluate = None
        top = Top(
            run_spec, transports, options, metrics, evaluate, _target(options.target, classes), rule,
            deployed.shapes, "loss" if held_out is None else held_out.task.score,
        )  # fmt: skip
        if state is None:
            log.info("run begins", run=run, stations=len(transports))
            state = await top.begin(run, deployed.first_weights())
        else:
            log.info("run is resumed", run=run, round=state.round)
        save_state(folder, state, digest)  # of a resumed run too: its metrics may be ahead of the checkpoint
        while state.round < settings.training.rounds:
            state = await top.advance(state)
            save_state(folder, state, digest)
        save_model(folder, state)
        return state


def image_shape(text: str | None) -> tuple[int, ...] | None:
    """Return the shape that HEIGHTxWIDTH or HEIGHTxWIDTHxCHANNELS stands for."""
    if text is None:
        return None
    sides = text.split("x")
    if len(sides) not in (2, 3) or not all(side.isdecimal() and int(side) > 0 for side in sides):
        raise ConfigError(f"--image {text}: expected HEIGHTxWIDTH or HEIGHTxWIDTHxCHANNELS, for example 28x28")
    return tuple(int(side) for side in sides)


def _task(settings: Settings, options: TopSettings) -> tuple[HeldOut | None, Deployed, int, str]:
    """Return the held-out set, the run's task with its network, the number of bins, and a sample's shapes in JSON."""
    task, image = task_from(settings.task), image_shape(options.image)
    if options.held_out is None:
        wanted = options.classes or (task.bins if isinstance(task.bins, int) else len(task.bins or ())) or 62
        built_in = isinstance(task.model, str) and task.model in MODELS  # to the shape of images
        shape = image or ((28, 28) if built_in and not isinstance(settings.task, str) else None)
        inputs = None if shape is None else [list(shape), "uint8"]
        described = "" if inputs is None else json.dumps(inputs)
        return None, Deployed.of(task, wanted, inputs, settings.seed), wanted, described
    data = load_dataset(options.held_out)
    if not len(data):
        raise InputFileError(f"{options.held_out}: no sample in it")
    held_out = HeldOut(data, task, settings.seed)
    classes, shape = len(held_out.task.classes), shapes_of(data.inputs)
    for option, given, found in (("--classes", options.classes, classes), ("--image", image, shape)):
        if given is not None and given != found:
            raise ConfigError(f"{option} {given}: the held-out set has {found}; leave the option out")
    inputs = map_tree(lambda array: [list(array.shape[1:]), str(array.dtype)], data.inputs)
    # The quantiles of the held-out set are not those of the devices: the edges of the bins must be given.
    if isinstance(held_out.task.task.balance, QuantileBins) and held_out.task.task.balance != task.balance:
        raise ConfigError(
            "the edges of quantile bins must be given where devices are deployed: fedgs.regression(…, edges=[…]); a "
            "simulation of the same task finds them"
        )
    return held_out, Deployed.of(task, classes, inputs, settings.seed), classes, json.dumps(inputs)


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
