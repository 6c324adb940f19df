"""The messages of the wire: bytes in, checked values out, and back. Whatever else comes in is a :class:`WireError`.

A message is checked here for what can be seen in it alone: that it parses, says exactly one thing, keeps to the limits,
and agrees with itself (class counts that sum to the batch size, finite numbers, sizes that fit the shapes). Whether it
fits the moment (the step that was asked for, the model that is trained) its receiver checks.

Weights that do not fit into one message follow it in parts (:class:`Assembly`), so no message is larger than
``LARGEST_MESSAGE`` whatever the model: a sender of two gigabytes is stopped at the first part too many.
"""

import json
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, fields
from typing import Any, TypeVar

import numpy as np
from google.protobuf.message import DecodeError
from numpy.typing import NDArray

from fedgs.deploy.proto import fedgs_wire_pb2 as pb
from fedgs.deploy.tensors import LONGEST_NAME, WIRE_TYPES, Flat, Shapes, from_bytes, item_size, to_bytes
from fedgs.errors import WireError

VERSION = 4
"""Of the protocol; both ends must speak the same."""
PART = 1 << 20
"""Bytes of weights in one message."""
LARGEST_MESSAGE = 2 * PART
MOST_CLASSES, MOST_SAMPLES = 1 << 16, 1 << 24
LONGEST_SPEC = 1 << 16
"""Characters of a text in JSON."""
ATTACH = "/fedgs.v1.Edge/Attach"
RUN_ROUND = "/fedgs.v1.StationControl/RunRound"
STATUS = "/fedgs.v1.StationControl/Status"

_DTYPES = {"float32": pb.FLOAT32, "bfloat16": pb.BFLOAT16, "float16": pb.FLOAT16}
_WIRES: dict[int, str] = {int(number): name for name, number in _DTYPES.items()}
_LONGEST = {"spec": LONGEST_SPEC, "inputs": LONGEST_SPEC, "head": LONGEST_NAME, "reason": 200}
"""Characters of these fields; 100 of any other."""
Kind = TypeVar("Kind")


@dataclass(frozen=True)
class Ready:
    """The class counts of a device's next mini-batch."""

    batch_id: int
    counts: NDArray[np.int64]

    @property
    def batch_size(self) -> int:
        """How many samples there are in it (n^{m,k})."""
        return int(self.counts.sum())


@dataclass(frozen=True)
class Head:
    """Shapes, type and first bytes of weights; :class:`Assembly` collects the rest."""

    shapes: Shapes
    wire: str
    size: int
    data: bytes


@dataclass(frozen=True)
class Update:
    """The result of one step on a device; ``change`` is complete when its :class:`Assembly` is."""

    step: int
    batch_id: int
    num_samples: int
    loss: float
    change: Head
    next: Ready | None


@dataclass(frozen=True)
class Part:
    """More bytes of the weights of the message before."""

    data: bytes | memoryview


@dataclass(frozen=True)
class Task:
    """What is trained."""

    run: str
    spec: str
    """The task by name, or its components, in JSON: what a device imports."""
    classes: int
    """Bins that selection balances."""
    inputs: str
    """Shapes and types of one sample, in JSON; "": not known."""
    batch_size: int
    wire: str = "float32"
    digest: str = ""
    """Of the network that a device must import."""
    seed: int = 0
    """Of the initial values of frozen weights."""

    @property
    def label(self) -> str:
        """A short name of the task, for logs: of what is imported, or of its network."""
        found = json_of("spec", self.spec)
        return str(found.get("model", "task")) if isinstance(found, dict) else str(found)


@dataclass(frozen=True)
class Step:
    """A device is selected."""

    step: int
    batch_id: int
    learning_rate: float
    weights: Head


class Assembly:
    """Collects weights from the message that opens them and the parts that follow.

    Room is made for the model that is expected, never for what a message claims.
    """

    def __init__(self, head: Head, shapes: Shapes, wire: str) -> None:
        difference = shapes.difference(head.shapes)
        if difference:
            raise WireError(f"another model: it {difference}")
        if head.wire != wire:
            raise WireError(f"weights in {head.wire}; {wire} was agreed")
        self.head = head
        self._buffer = bytearray(head.size)
        self._filled = 0
        self.add(head.data)

    def add(self, data: bytes | memoryview) -> None:
        """Take more bytes."""
        last = self._filled + len(data)
        if last > self.head.size:
            raise WireError(f"{last} bytes of weights, {self.head.size} were announced")
        if last < self.head.size and len(data) != PART:
            raise WireError(f"a part of {len(data)} bytes; all but the last have {PART}")
        self._buffer[self._filled : last] = data
        self._filled = last

    @property
    def complete(self) -> bool:
        """Whether all bytes are there."""
        return self._filled == self.head.size

    def flat(self) -> Flat:
        """Return the weights."""
        return from_bytes(self._buffer, self.head.wire)


# --- encoding


def serialise(message: Any) -> bytes:
    """Return a message as bytes; the same message always gives the same ones."""
    data: bytes = message.SerializeToString(deterministic=True)
    return data


def message_of(kind: type[Kind], *sources: Any, **more: Any) -> Kind:
    """Return a message of a kind: ``more``, and every other field that a source has under the same name."""
    for name in kind.DESCRIPTOR.fields_by_name.keys() - more.keys():  # type: ignore[attr-defined]
        for source in sources:
            if hasattr(source, name):
                value = getattr(source, name)
                more[name] = value.tolist() if isinstance(value, np.ndarray) else value
    return kind(**more)


def encode_hello(software: str) -> bytes:
    """The first message of a device."""
    return serialise(pb.Up(hello=pb.Hello(version=VERSION, software=software)))


def encode_ready(ready: Ready) -> bytes:
    """The announcement of a mini-batch."""
    return serialise(pb.Up(ready=_ready(ready)))


def encode_update(
    step: int, batch_id: int, num_samples: int, loss: float, shapes: Shapes, change: Flat, wire: str,
    following: Ready | None,
) -> Iterator[bytes]:  # fmt: skip
    """The messages of an update: the first holds everything but the later parts of the change."""
    coded = to_bytes(change, wire)
    first = pb.Update(
        step=step,
        batch_id=batch_id,
        num_samples=num_samples,
        loss=loss,
        change=encode_params(shapes, coded, wire, PART),
        next=None if following is None else _ready(following),
    )
    yield serialise(pb.Up(update=first))
    yield from _parts(pb.Up, coded)


def encode_task(task: Task) -> bytes:
    """What a device is told when it connects, and when the task changes."""
    return serialise(pb.Down(task=task_message(task)))


def encode_bye(reason: str) -> bytes:
    """The last message of a station."""
    return serialise(pb.Down(bye=pb.Bye(reason=reason)))


class StepMessages:
    """The messages of one step for many devices: the weights are coded once, only the first message differs."""

    def __init__(self, learning_rate: float, shapes: Shapes, weights: Flat, wire: str) -> None:
        coded = to_bytes(weights, wire)
        self._rate = learning_rate
        self._params = encode_params(shapes, coded, wire, PART)
        self._parts = list(_parts(pb.Down, coded))

    def for_device(self, step: int, batch_id: int) -> Sequence[bytes]:
        """Return what is sent to one device."""
        head = pb.Step(step=step, batch_id=batch_id, learning_rate=self._rate, weights=self._params)
        return [serialise(pb.Down(step=head)), *self._parts]


def encode_params(shapes: Shapes, coded: memoryview, wire: str, most: int | None = None) -> pb.Params:
    """Weights as a message, at most the first ``most`` bytes of them."""
    return pb.Params(
        tensors=[pb.Tensor(name=name, shape=shape) for name, shape in shapes.tensors],
        dtype=_DTYPES[wire],
        size=len(coded),
        data=bytes(coded[:most]),
        buffers=shapes.buffers,
        integers=shapes.integers,
    )


def task_message(task: Task) -> pb.Task:
    """A task as a message."""
    return message_of(pb.Task, task, wire=_DTYPES[task.wire])


def _ready(ready: Ready) -> pb.Ready:
    return message_of(pb.Ready, ready, class_counts=ready.counts.tolist())


# A full part is always these few bytes and then its data, so neither end lets the library copy a megabyte three times.
_OPENINGS = {kind: serialise(kind(part=pb.Part(data=bytes(PART))))[:-PART] for kind in (pb.Up, pb.Down)}


def _parts(kind: Any, coded: memoryview) -> Iterator[bytes]:
    """Everything after the first ``PART`` bytes."""
    for begin in range(PART, len(coded), PART):
        data = coded[begin : begin + PART]
        if len(data) == PART:
            yield b"".join((_OPENINGS[kind], data))
        else:
            yield serialise(kind(part=pb.Part(data=bytes(data))))


# --- decoding


def decode_up(data: bytes) -> pb.Hello | Ready | Update | Part:
    """Return what a device says."""
    kind, found = _opened(pb.Up, data)
    if kind == "hello":
        text("software", found.software)
    elif kind == "ready":
        return check_ready(found)
    elif kind == "update":
        if not 0 < found.num_samples <= MOST_SAMPLES:
            raise WireError(f"an update from {found.num_samples} samples")
        following = check_ready(found.next) if found.HasField("next") else None
        # The loss may be anything: a device whose loss is no number says so, and is left out by the station.
        return value_of(Update, found, loss=found.loss, change=check_head(found.change), next=following)
    made: pb.Hello | Part = found
    return made


def decode_down(data: bytes) -> Task | Step | Part | pb.Bye:
    """Return what a station says."""
    kind, found = _opened(pb.Down, data)
    if kind == "task":
        return check_task(found)
    if kind == "step":
        return value_of(Step, found, weights=check_head(found.weights))
    if kind == "bye":
        text("reason", found.reason)
    made: Part | pb.Bye = found
    return made


def _opened(kind: Any, data: bytes) -> tuple[str, Any]:
    """Return which message it is, and that message; a full part is not copied."""
    opening = _OPENINGS[kind]
    if len(data) == len(opening) + PART and data.startswith(opening):
        return "part", Part(memoryview(data)[len(opening) :])
    message = parse(kind, data)
    name = message.WhichOneof("message")
    if name is None:
        raise WireError("a message that says nothing")
    return name, Part(message.part.data) if name == "part" else getattr(message, name)


def parse(kind: Any, data: bytes) -> Any:
    """Return the protobuf message of these bytes."""
    try:
        return kind.FromString(data)
    except (DecodeError, ValueError, RecursionError):
        raise WireError(f"{len(data)} bytes that are not a message of the protocol") from None


def value_of(kind: type[Kind], message: Any, **more: Any) -> Kind:
    """Return a dataclass from ``more`` and the fields of a message with the same names: short texts, finite numbers."""
    names = {field.name for field in fields(kind)}  # type: ignore[arg-type]
    for name in names & message.DESCRIPTOR.fields_by_name.keys() - more.keys():
        value = getattr(message, name)
        if isinstance(value, str):
            text(name, value)
        elif isinstance(value, float) and not math.isfinite(value):
            raise WireError(f"{name} is {value}")
        more[name] = value
    return kind(**more)


def check_ready(message: pb.Ready) -> Ready:
    """Class counts that sum to the batch size."""
    if not 0 < len(message.class_counts) <= MOST_CLASSES:
        raise WireError(f"counts of {len(message.class_counts)} classes; there are 1 to {MOST_CLASSES}")
    counts = np.fromiter(message.class_counts, np.int64, len(message.class_counts))
    total = int(counts.sum())
    if not 0 < message.batch_size <= MOST_SAMPLES or total != message.batch_size:
        raise WireError(f"class counts that sum to {total} for a batch of {message.batch_size}")
    return Ready(message.batch_id, counts)


def check_task(message: pb.Task) -> Task:
    """A task with sensible numbers."""
    if not 0 < message.classes <= MOST_CLASSES or not 0 < message.batch_size <= MOST_SAMPLES:
        raise WireError(f"a task with {message.classes} classes and batches of {message.batch_size}")
    for field, value in (("spec", message.spec), ("inputs", message.inputs)):
        json_of(field, value)
    return value_of(Task, message, wire=_wire(message.wire))


def json_of(field: str, value: str) -> Any:
    """The value of a text in JSON; None of an empty one."""
    if not value:
        return None
    try:
        if len(value) > LONGEST_SPEC:
            raise ValueError
        return json.loads(value)
    except (ValueError, RecursionError):
        raise WireError(f"{field} is {value[:40]!r}, which is no JSON of up to {LONGEST_SPEC} characters") from None


def check_head(message: pb.Params) -> Head:
    """Weights whose size fits their shapes; the bytes may be incomplete."""
    if len(message.tensors) > 4096:
        raise WireError(f"{len(message.tensors)} tensors; a model has fewer")
    tensors = tuple((tensor.name, tuple(tensor.shape)) for tensor in message.tensors)
    shapes = Shapes(tensors, message.buffers, message.integers)
    wire = _wire(message.dtype)
    if message.size != shapes.size * item_size(wire):
        raise WireError(f"{message.size} bytes of weights, their shapes need {shapes.size * item_size(wire)}")
    data = message.data
    if len(data) > message.size:
        raise WireError(f"{len(data)} bytes of weights, {message.size} were announced")
    return Head(shapes, wire, message.size, data)


def whole_params(message: pb.Params) -> tuple[Shapes, Flat]:
    """Weights that are complete in their message, and finite."""
    head = check_head(message)
    if len(head.data) != head.size:
        raise WireError(f"{len(head.data)} of {head.size} bytes of weights")
    flat = from_bytes(head.data, head.wire)
    if not np.isfinite(flat).all():
        raise WireError("weights that are not finite numbers")
    return head.shapes, flat


def text(field: str, value: str) -> str:
    """A short printable string."""
    longest = _LONGEST.get(field, 100)
    if len(value) > longest or not value.isprintable():
        raise WireError(f"{field} is {value[:40]!r}; up to {longest} printable characters are allowed")
    return value


def finite_all(field: str, values: Iterable[float]) -> NDArray[np.float64]:
    """Finite numbers."""
    found = np.fromiter(values, np.float64)
    if not np.isfinite(found).all():
        raise WireError(f"{field} holds a number that is not finite")
    return found


def _wire(number: int) -> str:
    if number not in _WIRES:
        raise WireError(f"a number format {number}; known are {', '.join(WIRE_TYPES)}")
    return _WIRES[number]
