"""``RunRound``, the contract between top server and station, whoever carries it.

A :class:`RoundOrder` asks a station for one round: T internal synchronisations, as many as it has learning rates, from
the given weights. The :class:`RoundResult` brings the station's weights back. An order without rates is a roll call:
nobody trains, but the devices are told the task, announce their batches, and the result says what they announced.

The same order always gets the same result: a station remembers its last one (:mod:`fedgs.deploy.control`), so asking
again, after a lost connection or a restart of the top server, counts no round twice.
"""

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field

import numpy as np
from numpy.typing import NDArray

from fedgs.deploy.proto import fedgs_wire_pb2 as pb
from fedgs.deploy.tensors import LONGEST_NAME, Flat, Shapes, to_bytes
from fedgs.deploy.wire import (
    MOST_CLASSES,
    VERSION,
    Task,
    check_task,
    encode_params,
    finite,
    finite_all,
    json_of,
    parse,
    serialise,
    task_message,
    text,
    whole_params,
)  # fmt: skip
from fedgs.errors import WireError
from fedgs.selection.problem import TARGET_TOLERANCE
from fedgs.selection.solve import SOLVERS
from fedgs.selection.team import TeamRule
from fedgs.training.optimizers import NAMES, Optimizer

MOST_ITERATIONS = 1_000_000
MOST_SEEN = 1 << 62
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
    wanted: TeamRule
    """Whom to select; an empty target stands for the station's own estimate."""
    first_iteration: int
    """Of this round, counted over the whole run from 0."""
    rates: NDArray[np.float64]
    """(T,) learning rate η of each iteration."""
    shapes: Shapes
    weights: Flat
    calibration: float = 0.0
    """τ of :mod:`fedgs.training.calibration`; 0: off."""
    class_wise: bool = False
    """Whether the result is to tell ``seen``, for :mod:`fedgs.algorithms.class_wise`."""
    clip: float | None = None
    """c of :mod:`fedgs.training.clipping`."""
    head: str = ""
    """The name of the last layer."""
    optimizer: Optimizer = field(default_factory=Optimizer)
    """Of the station (:mod:`fedgs.training.optimizers`)."""

    def __post_init__(self) -> None:
        if not 0 <= self.calibration <= 10:  # nor NaN
            raise WireError(f"calibration={self.calibration}; it is from 0 to 10")
        if self.clip is not None and not 0 < self.clip < float("inf"):
            raise WireError(f"clip={self.clip}; it is a length over 0")
        shape = dict(self.shapes.tensors).get(f"{self.head}.bias")
        if self.calibration and shape != (self.task.classes,):
            raise WireError(
                f"calibration moves the bias of the last layer, of shape ({self.task.classes},), but {self.head!r} has "
                f"{'none' if shape is None else f'one of shape {shape}'}; set training.calibration=0, or "
                "name the layer "
                "with task.head"
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
    seen: NDArray[np.int64] = field(default_factory=lambda: np.empty(0, np.int64))
    """(classes,) samples of each class the teams trained on, in sum ``samples``; empty where nobody asked for them.

    They are the announced counts of the devices whose update went into the weights: a turn that was lost counts
    nothing, for nothing of it was learned. Where no turn is lost they are the simulator's ``RoundPlan.seen``.
    """


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
        solver=str(wanted.solver),
        solver_options=json.dumps(wanted.options) if wanted.options else "",
        target=wanted.target.tolist(),
        first_iteration=order.first_iteration,
        learning_rates=order.rates.tolist(),
        calibration=order.calibration,
        by_class=order.class_wise,
        clip=order.clip or 0.0,
        head=order.head,
        optimizer="" if order.optimizer == Optimizer() else json.dumps(asdict(order.optimizer)),
        weights=encode_params(order.shapes, to_bytes(order.weights, "float32"), "float32"),
    )
    return serialise(message)


def decode_order(data: bytes) -> RoundOrder:
    """Return the order of bytes, checked; what is wrong with it is a :class:`WireError`."""
    message = parse(pb.RoundIn, data)
    check_version(message.version, VERSION)
    task = check_task(message.task)
    target = finite_all("target", message.target)
    if len(target) not in (0, task.classes):
        raise WireError(f"a target of {len(target)} classes, the task has {task.classes}")
    if len(target) and (target.min() < 0 or abs(target.sum() - 1) > TARGET_TOLERANCE):
        raise WireError(f"a target that sums to {target.sum():g}; it must be a distribution")
    if message.solver != "auto" and ":" not in message.solver and message.solver not in SOLVERS:
        raise WireError(f"no solver is called {message.solver[:40]!r}; there are {', '.join(SOLVERS)} and auto")
    options = json_of("solver_options", message.solver_options)
    if options is not None and not isinstance(options, dict):
        raise WireError("solver_options is no table")
    if message.pick < 1 or message.presample > message.pick:
        raise WireError(f"pick={message.pick} with presample={message.presample}")
    rates = finite_all("learning_rates", message.learning_rates)
    if len(rates) > MOST_ITERATIONS or (len(rates) and rates.min() < 0):
        raise WireError(f"{len(rates)} learning rates, the least {rates.min(initial=0):g}")
    shapes, weights = whole_params(message.weights)
    wanted = TeamRule(
        message.pick,
        message.presample,
        text("solver", message.solver),
        options or {},
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
        message.by_class,
        message.clip if message.clip != 0 else None,
        text("head", message.head, LONGEST_NAME),
        _optimizer(message.optimizer),
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
        seen=result.seen.tolist(),
    )
    return serialise(message)


def decode_result(data: bytes) -> RoundResult:
    """Return the result of bytes, checked."""
    message = parse(pb.RoundOut, data)
    check_version(message.version, VERSION)
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
        _check_seen(message),
    )


def check_version(version: int, spoken: int) -> None:
    """Refuse another version of the protocol."""
    if version != spoken:
        raise WireError(f"protocol version {version}, this end speaks {spoken}; install the same fedgs on both")


def _optimizer(coded: str) -> Optimizer:
    """The optimiser of an order, checked."""
    found = json_of("optimizer", coded)
    if found is None:
        return Optimizer()
    try:
        made = Optimizer(
            str(found["name"]), float(found["momentum"]), (float(found["betas"][0]), float(found["betas"][1])),
            float(found["epsilon"]), float(found["weight_decay"]),
        )  # fmt: skip
    except (KeyError, TypeError, ValueError, IndexError):
        raise WireError(f"optimizer is {coded[:80]!r}") from None
    numbers = (made.momentum, *made.betas, made.epsilon, made.weight_decay)
    if made.name not in NAMES or not all(math.isfinite(number) and number >= 0 for number in numbers):
        raise WireError(f"optimizer is {coded[:80]!r}; known are {', '.join(NAMES)}")
    return made


def _check_seen(message: pb.RoundOut) -> NDArray[np.int64]:
    """Class counts that sum to the samples, or none."""
    if len(message.seen) > MOST_CLASSES:
        raise WireError(f"seen has {len(message.seen)} classes; {MOST_CLASSES} are the most")
    total = sum(message.seen)  # Python's numbers do not overflow
    if message.seen and (total != message.samples or total > MOST_SEEN):
        raise WireError(f"seen sums to {total} for {message.samples} samples")
    return np.fromiter(message.seen, np.int64, len(message.seen))
