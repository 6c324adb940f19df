"""``RunRound``, the contract between top server and station, whoever carries it.

A :class:`RoundOrder` asks a station for one round: T internal synchronisations, as many as it has learning rates, from
the given weights. The :class:`RoundResult` brings the station's weights back. An order without rates is a roll call:
nobody trains, but the devices are told the task, announce their batches, and the result says what they announced.

The same order always gets the same result: a station remembers its last one (:mod:`fedgs.deploy.control`), so asking
again, after a lost connection or a restart of the top server, counts no round twice.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from fedgs.deploy.proto import fedgs_wire_pb2 as pb
from fedgs.deploy.team import Wanted
from fedgs.deploy.tensors import Flat, Shapes, to_bytes
from fedgs.deploy.wire import (
    MOST_CLASSES,
    VERSION,
    Task,
    check_task,
    encode_params,
    finite,
    finite_all,
    parse,
    serialise,
    task_message,
    text,
    whole_params,
)  # fmt: skip
from fedgs.errors import WireError
from fedgs.selection.problem import TARGET_TOLERANCE
from fedgs.selection.solve import SOLVERS

MOST_ITERATIONS = 1_000_000
LARGEST_ROUND = 1 << 30
"""Bytes of a round's message: a model of 268 million weights."""


@dataclass(frozen=True, eq=False)
class RoundOrder:
    """What the top server asks of a station."""

    run: str
    """Name of the run; rounds of different runs are different rounds."""
    round: int
    """1 for the first; 0 is the roll call."""
    task: Task
    wanted: Wanted
    """Whom to select; an empty target stands for the station's own estimate."""
    first_iteration: int
    """Of this round, counted over the whole run from 0."""
    rates: NDArray[np.float64]
    """(T,) learning rate η of each iteration."""
    shapes: Shapes
    weights: Flat
    calibration: float = 0.0
    """τ of :mod:`fedgs.calibration`; 0: off."""

    def __post_init__(self) -> None:
        if not 0 <= self.calibration <= 10:  # nor NaN
            raise WireError(f"calibration={self.calibration}; it is from 0 to 10")
        name, shape = self.shapes.tensors[-1]
        if self.calibration and shape != (self.task.classes,):
            raise WireError(
                f"calibration moves the bias of the last layer, of shape ({self.task.classes},), but the model's last "
                f"tensor is {name!r} of shape {shape}; set training.calibration=0"
            )


@dataclass(frozen=True, eq=False)
class RoundResult:
    """What a station answers."""

    run: str
    round: int
    shapes: Shapes
    weights: Flat
    iterations: int
    """In which at least one device trained; 0: the weights are those of the order, leave them out of the mean."""
    samples: int
    loss: float
    """Mean training loss over these iterations."""
    divergence: float
    """Mean ‖P_t^m − P_real‖₂ of the teams."""
    devices: int
    """Online devices that have announced a batch."""
    announced: NDArray[np.float64]
    """(classes,) mean class distribution of what they announced; empty when nobody has."""
    events: Mapping[str, int] = field(default_factory=dict)
    """How often something happened: late, gone, rejected, aside, short, idle, lost."""


def encode_order(order: RoundOrder) -> bytes:
    """Return an order as bytes."""
    wanted = order.wanted
    message = pb.RoundIn(
        version=VERSION,
        run=order.run,
        round=order.round,
        task=task_message(order.task),
        seed=wanted.seed,
        factory=wanted.factory,
        coverage=wanted.coverage,
        pick=wanted.pick,
        presample=wanted.presample,
        solver=wanted.solver,
        start=wanted.start,
        target=wanted.target.tolist(),
        first_iteration=order.first_iteration,
        learning_rates=order.rates.tolist(),
        calibration=order.calibration,
        weights=encode_params(order.shapes, to_bytes(order.weights, "float32"), "float32"),
    )
    return serialise(message)


def decode_order(data: bytes) -> RoundOrder:
    """Return the order of bytes, checked; what is wrong with it is a :class:`WireError`."""
    message = parse(pb.RoundIn, data)
    check_version(message.version)
    task = check_task(message.task)
    target = finite_all("target", message.target)
    if len(target) not in (0, task.classes):
        raise WireError(f"a target of {len(target)} classes, the task has {task.classes}")
    if len(target) and (target.min() < 0 or abs(target.sum() - 1) > TARGET_TOLERANCE):
        raise WireError(f"a target that sums to {target.sum():g}; it must be a distribution")
    if message.solver != "auto" and message.solver not in SOLVERS:
        raise WireError(f"no solver is called {message.solver[:40]!r}; there are {', '.join(SOLVERS)} and auto")
    if message.start not in ("", "mpinv", "zero", "random"):
        raise WireError(f"start={message.start[:40]!r}; it is mpinv, zero or random")
    if message.pick < 1 or message.presample > message.pick:
        raise WireError(f"pick={message.pick} with presample={message.presample}")
    rates = finite_all("learning_rates", message.learning_rates)
    if len(rates) > MOST_ITERATIONS or (len(rates) and rates.min() < 0):
        raise WireError(f"{len(rates)} learning rates, the least {rates.min(initial=0):g}")
    shapes, weights = whole_params(message.weights)
    wanted = Wanted(
        message.pick,
        message.presample,
        message.solver,
        message.start,
        target,
        message.seed,
        message.factory,
        finite("coverage", message.coverage),
    )
    return RoundOrder(
        text("run", message.run),
        message.round,
        task,
        wanted,
        message.first_iteration,
        rates,
        shapes,
        weights,
        message.calibration,
    )


def encode_result(result: RoundResult) -> bytes:
    """Return a result as bytes."""
    message = pb.RoundOut(
        version=VERSION,
        run=result.run,
        round=result.round,
        weights=encode_params(result.shapes, to_bytes(result.weights, "float32"), "float32"),
        iterations=result.iterations,
        samples=result.samples,
        loss=result.loss,
        divergence=result.divergence,
        devices=result.devices,
        announced=result.announced.tolist(),
        events=result.events,
    )
    return serialise(message)


def decode_result(data: bytes) -> RoundResult:
    """Return the result of bytes, checked."""
    message = parse(pb.RoundOut, data)
    check_version(message.version)
    shapes, weights = whole_params(message.weights)
    announced = finite_all("announced", message.announced)
    if len(announced) > MOST_CLASSES or (
        len(announced) and (announced.min() < 0 or abs(announced.sum() - 1) > TARGET_TOLERANCE)
    ):
        raise WireError("announced is not a distribution")
    if len(message.events) > 100:
        raise WireError(f"{len(message.events)} kinds of events")
    return RoundResult(
        text("run", message.run),
        message.round,
        shapes,
        weights,
        message.iterations,
        message.samples,
        finite("loss", message.loss),
        finite("divergence", message.divergence),
        message.devices,
        announced,
        {text("event", key): value for key, value in message.events.items()},
    )


def check_version(version: int) -> None:
    """Refuse another version of the protocol."""
    if version != VERSION:
        raise WireError(f"protocol version {version}, this end speaks {VERSION}; install the same fedgs on both")
