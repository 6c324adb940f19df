"""The process of ``fedgs top``: from its newest checkpoint, or from the beginning, to the last round."""

import asyncio
import contextlib
import json
import secrets
import signal
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedgs.algorithms import ServerRule
from fedgs.data.sources import load_dataset
from fedgs.deploy.carrier import Carrier, GrpcCarrier
from fedgs.deploy.evaluation import HeldOut
from fedgs.deploy.folder import claim
from fedgs.deploy.identity import Identity
from fedgs.deploy.logs import log, set_up
from fedgs.deploy.metrics import TopMetrics, serve_metrics
from fedgs.deploy.parent import end_with_parent
from fedgs.deploy.recipe import Recipe, check_deployable
from fedgs.deploy.settings import TopSettings
from fedgs.deploy.tls import Bundle, watch_expiry
from fedgs.deploy.top import Top
from fedgs.deploy.top_state import TopState, load_state, save_model, save_state, settings_digest
from fedgs.errors import ConfigError, InputFileError
from fedgs.settings import Settings
from fedgs.tasks.cnn import build_model


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
    evaluate, classes, shape = _held_out(process)
    metrics = TopMetrics()
    if process.metrics is not None:
        serve_metrics(metrics.registry, process.metrics)
    digest = settings_digest(process.settings, classes, shape, len(carriers))
    with claim(process.state, "top server"):
        state = load_state(process.state, digest)
        run = f"{process.state.resolve().name[:40]}-{secrets.token_hex(4)}" if state is None else state.run
        recipe = Recipe(process.settings, run, classes, shape, process.wire)
        top = Top(recipe, carriers, process.policy, metrics, evaluate, _target(process.target, classes), rule)
        return asyncio.run(_run(process, top, recipe, state, digest, stop))


def image_shape(text: str | None) -> tuple[int, ...] | None:
    """Return the shape that HEIGHTxWIDTH or HEIGHTxWIDTHxCHANNELS stands for."""
    if text is None:
        return None
    sides = text.split("x")
    if len(sides) not in (2, 3) or not all(side.isdecimal() and int(side) > 0 for side in sides):
        raise ConfigError(f"--image {text}: expected HEIGHTxWIDTH or HEIGHTxWIDTHxCHANNELS, for example 28x28")
    return tuple(int(side) for side in sides)


async def _run(
    process: TopProcess, top: Top, recipe: Recipe, state: TopState | None, digest: str, stop: signal.Signals | None
) -> TopState:
    own = asyncio.current_task()
    if stop is not None and own is not None:
        asyncio.get_running_loop().add_signal_handler(stop, own.cancel)
    watching = asyncio.ensure_future(watch_expiry(process.bundle))
    settings = process.settings
    if state is None:
        model = build_model(settings.training.model, recipe.classes, recipe.image_shape, settings.seed)
        weights = {name: value.detach().clone() for name, value in model.named_parameters()}
        log.info("run begins", extra={"run": recipe.run, "stations": len(top.carriers)})
        state = await top.begin(recipe.run, weights)
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


def _held_out(process: TopProcess) -> tuple[HeldOut | None, int, tuple[int, ...]]:
    classes, shape = process.classes or 62, process.image_shape or (28, 28)
    if process.held_out is None:
        return None, classes, shape
    data = load_dataset(process.held_out)
    own = len(data.classes), tuple(data.images.shape[1:])
    for option, given, found in (("--classes", process.classes, own[0]), ("--image", process.image_shape, own[1])):
        if given is not None and given != found:
            raise ConfigError(f"{option} {given}: the held-out set has {found}; leave the option out")
    if not len(data):
        raise InputFileError(f"{process.held_out}: no sample in it")
    return HeldOut(data, process.settings.training.model), *own


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
