"""The process of ``fedgs top``: from its newest checkpoint, or from the beginning, to the last round."""

import asyncio
import contextlib
import json
import secrets
import signal
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedgs.algorithms import ServerRule
from fedgs.data.arrays import map_tree, shapes_of
from fedgs.data.sources import load_dataset
from fedgs.deploy.carrier import Carrier, GrpcCarrier
from fedgs.deploy.evaluation import HeldOut
from fedgs.deploy.folder import claim
from fedgs.deploy.identity import Identity
from fedgs.deploy.logs import log, set_up
from fedgs.deploy.metrics import TopMetrics, serve_metrics
from fedgs.deploy.parent import end_with_parent
from fedgs.deploy.run_spec import RunSpec, check_deployable
from fedgs.deploy.settings import TopSettings
from fedgs.deploy.tls import Bundle, watch_expiry
from fedgs.deploy.top import Top
from fedgs.deploy.top_state import TopState, load_state, save_model, save_state, settings_digest
from fedgs.deploy.torch_trainer import Deployed, deployed_task_of, head_of, is_built_in
from fedgs.errors import ConfigError, InputFileError
from fedgs.settings import Settings
from fedgs.tasks.from_settings import task_from
from fedgs.tasks.task import QuantileBins


@dataclass(frozen=True)
class TopProcess:
    """What a top server is started with."""

    settings: Settings
    stations: tuple[str, ...]
    """Control addresses, in the order of the factories."""
    state: Path
    policy: TopSettings
    bundle: Bundle | None
    """None: plain text on the loopback."""
    held_out: str | None = None
    """A data set to test on."""
    target: str = "estimate"
    """P_real: ``estimate``, ``uniform``, or a JSON file with a list of shares."""
    classes: int | None = None
    image_shape: tuple[int, ...] | None = None
    wire: str = "float32"
    metrics: str | None = None
    log_level: str = "info"
    log_json: bool = False


def run_top(process: TopProcess) -> TopState:
    """Carry out the run over plain gRPC and return its last state."""
    end_with_parent()
    if not process.stations:
        raise ConfigError("--stations: name at least one HOST:PORT")
    if len(set(process.stations)) != len(process.stations):
        raise ConfigError("--stations: an address is there twice")
    set_up(process.log_level, process.log_json)
    identity = Identity("park", "top", "top") if process.bundle is None else process.bundle.check("top")
    carriers = [
        GrpcCarrier(address, process.bundle, identity, process.policy.keepalive) for address in process.stations
    ]
    with contextlib.suppress(asyncio.CancelledError):
        return carry_out(process, carriers, stop=signal.SIGTERM)
    raise KeyboardInterrupt


def carry_out(
    process: TopProcess,
    carriers: Sequence[Carrier],
    rule: ServerRule | None = None,
    stop: signal.Signals | None = None,
) -> TopState:
    """Carry out the run over these carriers, from its newest checkpoint or from the beginning.

    ``rule`` None: the one the settings name. ``stop``: the signal that ends it, where nobody else looks after signals.
    """
    check_deployable(process.settings)
    settings, held_out, deployed, classes, inputs = _task(process)
    process = replace(process, settings=settings)
    network = deployed.digest(classes, settings.training.batch_size)
    metrics = TopMetrics()
    if process.metrics is not None:
        serve_metrics(metrics.registry, process.metrics)
    digest = settings_digest(settings, network, len(carriers))
    with claim(process.state, "top server"):
        state = load_state(process.state, digest)
        run = f"{process.state.resolve().name[:40]}-{secrets.token_hex(4)}" if state is None else state.run
        run_spec = RunSpec(settings, run, classes, inputs, network, head_of(deployed.task), process.wire)
        evaluate = held_out
        if deployed.layout.local and held_out is not None:
            log.warning("the model is not tested: task.keep_local keeps a part of it on the devices")
            evaluate = None
        top = Top(
            run_spec, carriers, process.policy, metrics, evaluate, _target(process.target, classes), rule,
            deployed.shapes, "loss" if held_out is None else held_out.task.score,
        )  # fmt: skip
        return asyncio.run(_run(process, top, run_spec, deployed, state, digest, stop))


def image_shape(text: str | None) -> tuple[int, ...] | None:
    """Return the shape that HEIGHTxWIDTH or HEIGHTxWIDTHxCHANNELS stands for."""
    if text is None:
        return None
    sides = text.split("x")
    if len(sides) not in (2, 3) or not all(side.isdecimal() and int(side) > 0 for side in sides):
        raise ConfigError(f"--image {text}: expected HEIGHTxWIDTH or HEIGHTxWIDTHxCHANNELS, for example 28x28")
    return tuple(int(side) for side in sides)


async def _run(
    process: TopProcess, top: Top, run_spec: RunSpec, deployed: Deployed, state: TopState | None, digest: str,
    stop: signal.Signals | None,
) -> TopState:  # fmt: skip
    own = asyncio.current_task()
    if stop is not None and own is not None:
        asyncio.get_running_loop().add_signal_handler(stop, own.cancel)
    watching = asyncio.ensure_future(watch_expiry(process.bundle))
    settings = process.settings
    if state is None:
        weights = deployed.first_weights()
        log.info("run begins", extra={"run": run_spec.run, "stations": len(top.carriers)})
        state = await top.begin(run_spec.run, weights)
        save_state(process.state, state, digest)
    else:
        log.info("run goes on", extra={"run": state.run, "round": state.round})
        save_state(process.state, state, digest)  # metrics may be ahead of the checkpoint
    while state.round < settings.training.rounds:
        state = await top.advance(state)
        save_state(process.state, state, digest)
    save_model(process.state, state)
    watching.cancel()
    return state


def _task(process: TopProcess) -> tuple[Settings, HeldOut | None, Deployed, int, str]:
    """Return the run's task with its network, the number of bins, and the shapes of one sample in JSON."""
    settings = process.settings
    task = task_from(settings.task)
    if process.held_out is None:
        wanted = process.classes or (task.bins if isinstance(task.bins, int) else len(task.bins or ())) or 62
        images = is_built_in(task) and not isinstance(settings.task, str)
        shape = process.image_shape or ((28, 28) if images else None)
        inputs = None if shape is None else [list(shape), "uint8"]
        return settings, None, deployed_task_of(task, wanted, inputs, settings.seed), wanted, _described(inputs)
    data = load_dataset(process.held_out)
    if not len(data):
        raise InputFileError(f"{process.held_out}: no sample in it")
    held_out = HeldOut(data, task, settings.seed)
    classes, shape = len(held_out.task.classes), shapes_of(data.inputs)
    for option, given, found in (("--classes", process.classes, classes), ("--image", process.image_shape, shape)):
        if given is not None and given != found:
            raise ConfigError(f"{option} {given}: the held-out set has {found}; leave the option out")
    inputs = map_tree(lambda array: [list(array.shape[1:]), str(array.dtype)], data.inputs)
    # Bins that were found in the held-out set (quantiles) are not those of the devices: who deploys names them.
    if isinstance(held_out.task.task.balance, QuantileBins) and held_out.task.task.balance != task.balance:
        raise ConfigError(
            "the edges of quantile bins must be given where devices are deployed: fedgs.regression(…, edges=[…]); a "
            "simulation of the same task finds them"
        )
    return settings, held_out, deployed_task_of(task, classes, inputs, settings.seed), classes, _described(inputs)


def _described(inputs: Any) -> str:
    return "" if inputs is None else json.dumps(inputs)


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
