"""The messages of ``RunRound`` between top server and station, whatever the transport.

A :class:`RoundOrder` asks a station for one round: T internal synchronisations, as many as it has learning rates, from
the given weights. The :class:`RoundResult` brings the station's weights back. With an order without rates no
device trains, but the devices are told the task, announce their batches, and the result says what they announced.

The same order always gets the same result: a station remembers its last one (:mod:`fedgs.deploy.station_process`), so
asking again, after a lost connection or a restart of the top server, counts no round twice.
"""

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from fedgs.deploy.proto import fedgs_wire_pb2 as pb
from fedgs.deploy.tensors import Flat, Shapes, to_bytes
from fedgs.deploy.wire import (
    MOST_CLASSES,
    VERSION,
    check_fields,
    check_task,
    check_version,
    encode_params,
    json_of,
    moments_in,
    parse,
    serialise,
    text,
    whole_params,
)  # fmt: skip
from fedgs.errors import WireError
from fedgs.selection.problem import TARGET_TOLERANCE
from fedgs.selection.solve import SOLVERS
from fedgs.selection.team import TeamRule
from fedgs.training.optimizers import NAMES, Optimizer

MOST_ITERATIONS, MOST_DEVICES = 1_000_000, 1 << 16
MOST_SEEN, MOST_BEHIND = 1 << 62, 1e9
LARGEST_ROUND = 1 << 30
"""Bytes of a round's message: a model of 268 million weights."""
Kind = TypeVar("Kind")


@dataclass(frozen=True, eq=False)
class RoundOrder:
    """What the top server asks of a station."""

    run: str
    """Name of the run; rounds of different runs are different rounds."""
    round: int
    """1 for the first; 0: no device trains, they only announce their batches."""
    task: pb.Task
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
    """c of :mod:`fedgs.training.step`."""
    head: str = ""
    """The name of the last layer."""
    optimizer: Optimizer = field(default_factory=Optimizer)
    """Of the station (:mod:`fedgs.training.optimizers`)."""
    attempt: int = 0
    """How often the round was discarded before: another attempt is another order."""
    elsewhere: Sequence[str] = ()
    """Devices that are active at another station: this one does not serve them."""
    queues: Mapping[str, float] = field(default_factory=dict)
    """With coverage: the turns that each device of the park was behind its fair share after the round before."""
    released: bool = False
    """Whether the station is no longer in the run: it sends its devices away and trains nothing."""

    def __post_init__(self) -> None:
        if not 0 <= self.calibration <= 10:  # nor NaN
            raise WireError(f"calibration={self.calibration}; it is from 0 to 10")
        if self.clip is not None and not 0 < self.clip < float("inf"):
            raise WireError(f"clip={self.clip}; it is a length over 0")
        shape = dict(self.shapes.tensors).get(f"{self.head}.bias")
        if self.calibration and shape != (self.task.classes,):
            raise WireError(
                f"calibration moves the bias of the last layer, of shape ({self.task.classes},), but {self.head!r} has "
                f"{'none' if shape is None else f'one of shape {shape}'}; set training.calibration=0, or name the "
                "layer with task.head"
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
    """(classes,) mean class distribution of what they announced; empty: no announcement."""
    events: Mapping[str, int] = field(default_factory=dict)
    """How often something happened: late, gone, rejected, shortened, quarantined, slow, short, idle,
    lost."""
    seen: NDArray[np.int64] = field(default_factory=lambda: np.empty(0, np.int64))
    """(classes,) samples of each class the teams trained on, in sum ``samples``; empty: not asked for.

    They are the announced counts of the devices whose update went into the weights. Where every update did, they are
    the simulator's ``RoundPlan.seen``.
    """
    took_part: Sequence[str] = ()
    """The devices with an update in the weights."""
    turns: Sequence[int] = ()
    """How many of their updates are; empty: not told."""
    team: Sequence[str] = ()
    """Those of the last iteration."""
    mix: Sequence[int] = ()
    """Samples of each class that these trained on."""
    sent_bytes: int = 0
    received_bytes: int = 0
    """To devices and from them in this round."""
    online: Sequence[str] = ()
    """The devices that are connected."""
    moments: NDArray[np.float64] = field(default_factory=lambda: np.empty(0))
    """(3 · channels,) sums over the devices that told them; empty: not asked for, or nobody did."""
    queues: Mapping[str, float] = field(default_factory=dict)
    """With coverage: the turns that the devices of this round are behind their fair share now."""
    order_bytes: int = 0
    answer_bytes: int = 0
    """Of the order and of this answer; 0: not known."""


def encode_order(order: RoundOrder) -> bytes:
    """Return an order as bytes."""
    message = _message(
        pb.RoundIn,
        order,
        order.wanted,
        version=VERSION,
        solver_options=json.dumps(order.wanted.options) if order.wanted.options else "",
        learning_rates=order.rates.tolist(),
        by_class=order.class_wise,
        clip=order.clip or 0.0,
        optimizer="" if order.optimizer == Optimizer() else json.dumps(asdict(order.optimizer)),
        weights=encode_params(order.shapes, to_bytes(order.weights, pb.FLOAT32), pb.FLOAT32),
    )
    return serialise(message)


def decode_order(data: bytes) -> RoundOrder:
    """Return the order of bytes, checked; what is wrong with it is a :class:`WireError`."""
    message = _parsed(pb.RoundIn, data)
    check_task(message.task)
    task = pb.Task.FromString(serialise(message.task))  # by itself: a part of the message would keep all of it alive
    target = _distribution("target", message.target)
    if len(target) not in (0, task.classes):
        raise WireError(f"a target of {len(target)} classes, the task has {task.classes}")
    if message.solver != "auto" and ":" not in message.solver and message.solver not in SOLVERS:
        raise WireError(f"no solver is called {message.solver[:40]!r}; there are {', '.join(SOLVERS)} and auto")
    options = json_of("solver_options", message.solver_options)
    if options is not None and not isinstance(options, dict):
        raise WireError("solver_options is no table")
    if message.pick < 1 or message.presample > message.pick:
        raise WireError(f"pick={message.pick} with presample={message.presample}")
    rates = _finite("learning_rates", message.learning_rates)
    if len(rates) > MOST_ITERATIONS or (len(rates) and rates.min() < 0):
        raise WireError(f"{len(rates)} learning rates, the least {rates.min(initial=0):g}")
    shapes, weights = whole_params(message.weights)
    return _value(
        RoundOrder,
        message,
        task=task,
        wanted=_value(TeamRule, message, options=options or {}, target=target),
        rates=rates,
        shapes=shapes,
        weights=weights,
        class_wise=message.by_class,
        clip=message.clip if message.clip != 0 else None,
        optimizer=_optimizer(message.optimizer),
        elsewhere=_names("elsewhere", message.elsewhere),
        queues=_queues(message.queues),
    )


def encode_result(result: RoundResult) -> bytes:
    """Return a result as bytes."""
    weights = encode_params(result.shapes, to_bytes(result.weights, pb.FLOAT32), pb.FLOAT32)
    return serialise(_message(pb.RoundOut, result, version=VERSION, weights=weights))


def decode_result(data: bytes) -> RoundResult:
    """Return the result of bytes, checked."""
    message = _parsed(pb.RoundOut, data)
    shapes, weights = whole_params(message.weights)
    announced = _distribution("announced", message.announced)
    if len(announced) > MOST_CLASSES:
        raise WireError(f"announced has {len(announced)} classes; {MOST_CLASSES} are the most")
    if len(message.events) > 100:
        raise WireError(f"{len(message.events)} kinds of events")
    if len(message.seen) > MOST_CLASSES:
        raise WireError(f"seen has {len(message.seen)} classes; {MOST_CLASSES} are the most")
    total = sum(message.seen)  # Python's numbers do not overflow
    if message.seen and (total != message.samples or total > MOST_SEEN):
        raise WireError(f"seen sums to {total} for {message.samples} samples")
    return _value(
        RoundResult,
        message,
        shapes=shapes,
        weights=weights,
        announced=announced,
        events={text("event", key): value for key, value in message.events.items()},
        took_part=_names("took_part", message.took_part),
        turns=_counts("turns", message.turns, len(message.took_part)),
        team=_names("team", message.team),
        mix=_counts("mix", message.mix, MOST_CLASSES),
        online=_names("online", message.online),
        moments=moments_in(message),
        queues=_queues(message.queues),
        seen=np.fromiter(message.seen, np.int64, len(message.seen)),
    )


def _parsed(kind: Any, data: bytes) -> Any:
    """Return a message of a version of the protocol that this one understands."""
    message = parse(kind, data)
    check_version(message.version, *(("top server", "station") if kind is pb.RoundIn else ("station", "top server")))
    check_fields(message)
    return message


def _message(kind: type[Kind], *sources: Any, **more: Any) -> Kind:
    """Return a message of a kind: ``more``, and every other field that a source has under the same name."""
    for name in kind.DESCRIPTOR.fields_by_name.keys() - more.keys():  # type: ignore[attr-defined]
        for source in sources:
            if hasattr(source, name):
                value = getattr(source, name)
                more[name] = value.tolist() if isinstance(value, np.ndarray) else value
    return kind(**more)


def _value(kind: type[Kind], message: Any, **more: Any) -> Kind:
    """Return a dataclass from ``more`` and the fields of a message with the same names."""
    names = {one.name for one in fields(kind)} - more.keys()  # type: ignore[arg-type]
    shared = names.intersection(message.DESCRIPTOR.fields_by_name)
    return kind(**{name: getattr(message, name) for name in shared}, **more)


def _names(field: str, names: Sequence[str]) -> list[str]:
    if len(names) > MOST_DEVICES:
        raise WireError(f"{field} has {len(names)} devices; {MOST_DEVICES} are the most")
    return [text(field, name) for name in names]


def _counts(field: str, counts: Sequence[int], most: int) -> list[int]:
    if len(counts) > most or sum(counts) > MOST_SEEN:
        raise WireError(f"{field} has {len(counts)} numbers with a sum of {sum(counts)}; {most} numbers are the most")
    return list(counts)


def _queues(queues: Mapping[str, float]) -> dict[str, float]:
    names = _names("queues", list(queues))
    if not all(abs(behind) <= MOST_BEHIND for behind in queues.values()):  # nor NaN
        raise WireError(f"queues has a device that is more than {MOST_BEHIND:g} turns behind or ahead")
    return {name: queues[name] for name in names}


def _finite(name: str, values: Iterable[float]) -> NDArray[np.float64]:
    found = np.fromiter(values, np.float64)
    if not np.isfinite(found).all():
        raise WireError(f"{name} holds a number that is not finite")
    return found


def _distribution(field: str, values: Iterable[float]) -> NDArray[np.float64]:
    """Shares that sum to 1, or none at all."""
    shares = _finite(field, values)
    if len(shares) and (shares.min() < 0 or abs(shares.sum() - 1) > TARGET_TOLERANCE):
        raise WireError(f"{field} is not a distribution: it sums to {shares.sum():g}")
    return shares


def _optimizer(coded: str) -> Optimizer:
    """The optimizer of an order, checked."""
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
