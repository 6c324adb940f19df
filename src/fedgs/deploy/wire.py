"""The messages of the wire: bytes in, checked values out, and back. Whatever else comes in is a :class:`WireError`.

A message is checked here for what can be seen in it alone: that it parses, says exactly one thing, keeps to the limits,
and agrees with itself (class counts that sum to the batch size, finite numbers, sizes that fit the shapes). Whether it
fits the moment (the step that was asked for, the model that is trained) its receiver checks.

Weights that do not fit into one message follow it in parts (:class:`Assembly`), so no message is larger than
``LARGEST_MESSAGE`` whatever the model: a sender of two gigabytes is stopped at the first part too many.
"""

import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from google.protobuf.message import DecodeError
from numpy.typing import NDArray

from fedgs.deploy.proto import fedgs_wire_pb2 as pb
from fedgs.deploy.tensors import LONGEST_NAME, MOST_TENSORS, Flat, Shapes, from_bytes, item_size, to_bytes, wire_name
from fedgs.errors import WireError

VERSION = 6
"""Of the protocol, raised with each release that changes it; see :func:`check_version`."""
PART = 1 << 20
"""Bytes of weights in one message."""
LARGEST_MESSAGE = 2 * PART
MOST_CLASSES, MOST_SAMPLES = 1 << 16, 1 << 24
LONGEST_SPEC = 1 << 16
"""Characters of a text in JSON."""
ATTACH = "/fedgs.v1.Edge/Attach"
RUN_ROUND = "/fedgs.v1.StationControl/RunRound"
STATUS = "/fedgs.v1.StationControl/Status"

_LONGEST = dict.fromkeys(("spec", "inputs", "solver_options", "optimizer"), LONGEST_SPEC)
_LONGEST |= {"head": LONGEST_NAME, "reason": 200}
"""Characters of these fields; 100 of any other."""
Part = bytes | memoryview
"""More bytes of the weights of the message before."""


@dataclass(frozen=True)
class Ready:
    """The class counts of a device's next mini-batch."""

    batch_id: int
    counts: NDArray[np.int64]
    moments: NDArray[np.float64] = field(default_factory=lambda: np.empty(0))
    """(3 · channels,) of all the device's values, where the task asks for them."""

    @property
    def batch_size(self) -> int:
        """How many samples there are in it (n^{m,k})."""
        return int(self.counts.sum())

    @property
    def message(self) -> pb.Ready:
        """The same as a message."""
        counts, moments = self.counts.tolist(), self.moments.tolist()
        return pb.Ready(batch_id=self.batch_id, batch_size=self.batch_size, class_counts=counts, moments=moments)

    @classmethod
    def of(cls, message: pb.Ready) -> "Ready":
        """Return the counts of a message; they must sum to the batch size."""
        if not 0 < len(message.class_counts) <= MOST_CLASSES:
            raise WireError(f"counts of {len(message.class_counts)} classes; there are 1 to {MOST_CLASSES}")
        counts = np.fromiter(message.class_counts, np.int64, len(message.class_counts))
        total = int(counts.sum())
        if not 0 < message.batch_size <= MOST_SAMPLES or total != message.batch_size:
            raise WireError(f"class counts that sum to {total} for a batch of {message.batch_size}")
        return cls(message.batch_id, counts, moments_in(message))


class Assembly:
    """Collects weights from the message that opens them and the parts that follow.

    Room is made for the model that is expected, never for what a message claims.
    """

    def __init__(self, opening: pb.Params, shapes: Shapes, wire: int) -> None:
        difference = shapes.difference(shapes_in(opening))
        if difference:
            raise WireError(f"another model: it {difference}")
        if opening.dtype != wire:
            raise WireError(f"weights in {wire_name(opening.dtype)}; {wire_name(wire)} was agreed")
        self._wire, self._size, self._filled = wire, opening.size, 0
        self._buffer = bytearray(opening.size)
        self.add(opening.data)

    def add(self, data: Part) -> None:
        """Take more bytes."""
        last = self._filled + len(data)
        if last > self._size:
            raise WireError(f"{last} bytes of weights, {self._size} were announced")
        if last < self._size and len(data) != PART:
            raise WireError(f"a part of {len(data)} bytes; all but the last have {PART}")
        self._buffer[self._filled : last] = data
        self._filled = last

    @property
    def complete(self) -> bool:
        """Whether all bytes are there."""
        return self._filled == self._size

    def flat(self) -> Flat:
        """Return the weights."""
        return from_bytes(self._buffer, self._wire)


# --- encoding


def serialise(message: Any) -> bytes:
    """Return a message as bytes; the same message always gives the same ones."""
    data: bytes = message.SerializeToString(deterministic=True)
    return data


def encode_params(shapes: Shapes, coded: memoryview, wire: int, most: int | None = None) -> pb.Params:
    """Weights as a message, at most the first ``most`` bytes of them."""
    return pb.Params(
        tensors=[pb.Tensor(name=name, shape=shape) for name, shape in shapes.tensors],
        dtype=wire,  # type: ignore[arg-type]
        size=len(coded),
        data=bytes(coded[:most]),
        buffers=shapes.buffers,
        integers=shapes.integers,
    )


def encode_update(update: pb.Update, shapes: Shapes, change: Flat, wire: int) -> Iterator[bytes]:
    """The messages of an update: the first holds everything but the later parts of the change."""
    coded = to_bytes(change, wire)
    update.change.CopyFrom(encode_params(shapes, coded, wire, PART))
    yield serialise(pb.Up(update=update))
    yield from _parts(pb.Up, coded)


class StepMessages:
    """The messages of one step for many devices: the weights are coded once, only the first message differs."""

    def __init__(self, learning_rate: float, shapes: Shapes, weights: Flat, wire: int) -> None:
        coded = to_bytes(weights, wire)
        params = encode_params(shapes, coded, wire, PART)
        self._first = pb.Down(step=pb.Step(learning_rate=learning_rate, weights=params))
        self._parts = list(_parts(pb.Down, coded))

    def for_device(self, step: int, batch_id: int) -> Sequence[bytes]:
        """Return what is sent to one device."""
        self._first.step.step, self._first.step.batch_id = step, batch_id
        return [serialise(self._first), *self._parts]


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


def decode_up(data: bytes) -> pb.Hello | pb.Ready | pb.Update | Part:
    """Return what a device says; the weights of an update are checked by their :class:`Assembly`."""
    found: pb.Hello | pb.Ready | pb.Update | Part = _opened(pb.Up, data)
    if isinstance(found, pb.Hello):
        check_fields(found)
    elif isinstance(found, pb.Ready):
        Ready.of(found)
    elif isinstance(found, pb.Update):
        # The loss may be anything: a device whose loss is no number says so, and is left out by the station.
        if not 0 < found.num_samples <= MOST_SAMPLES:
            raise WireError(f"an update from {found.num_samples} samples")
        if found.HasField("next"):
            Ready.of(found.next)
    return found


def decode_down(data: bytes) -> pb.Task | pb.Step | pb.Bye | Part:
    """Return what a station says; the weights of a step are checked by their :class:`Assembly`."""
    found: pb.Task | pb.Step | pb.Bye | Part = _opened(pb.Down, data)
    if isinstance(found, pb.Task):
        check_task(found)
    elif isinstance(found, pb.Step | pb.Bye):
        check_fields(found)
    return found


def _opened(kind: Any, data: bytes) -> Any:
    """Return the message inside; a full part is not copied."""
    opening = _OPENINGS[kind]
    if len(data) == len(opening) + PART and data.startswith(opening):
        return memoryview(data)[len(opening) :]
    message = parse(kind, data)
    name = message.WhichOneof("message")
    if name is None:
        raise WireError("a message that says nothing")
    return message.part.data if name == "part" else getattr(message, name)


def parse(kind: Any, data: bytes) -> Any:
    """Return the protobuf message of these bytes."""
    try:
        return kind.FromString(data)
    except (DecodeError, ValueError, RecursionError):
        raise WireError(f"{len(data)} bytes that are not a message of the protocol") from None


def moments_in(message: Any) -> NDArray[np.float64]:
    """Return the moments of a message; they must be those of some values."""
    found = np.fromiter(message.moments, np.float64, len(message.moments))
    if len(found) % 3 or len(found) > 3 * MOST_CLASSES or not np.isfinite(found).all():
        raise WireError(f"{len(found)} moments that are no finite numbers, three a channel")
    count, first, second = found.reshape(3, -1)
    with np.errstate(over="ignore"):
        if not ((count > 0) & (first**2 <= count * second * (1 + 1e-6))).all():
            raise WireError("moments that no values have")
    return found


def check_version(theirs: int, peer: str, own: str) -> None:
    """Refuse a peer that is more than one version away.

    Neighbours work together: the newer one sends nothing that the older one cannot do without, since proto3 ignores
    unknown fields, and a field that it misses means what the older one did. A station checks whoever calls it, the top
    server checks the answers; the refusal is sent to the other end, so that both log it.
    """
    if abs(theirs - VERSION) > 1:
        raise WireError(
            f"protocol version {theirs} of the {peer}, {VERSION} of the {own}: only versions next to each other work "
            f"together; update fedgs on the {own if theirs > VERSION else peer}"
        )


def check_fields(message: Any) -> None:
    """Refuse texts that are long or cannot be printed, and numbers that are not finite."""
    for name in message.DESCRIPTOR.fields_by_name:
        value = getattr(message, name)
        if isinstance(value, str):
            text(name, value)
        elif isinstance(value, float) and not math.isfinite(value):
            raise WireError(f"{name} is {value}")


def check_task(message: pb.Task) -> None:
    """Refuse a task without sensible numbers."""
    if not 0 < message.classes <= MOST_CLASSES or not 0 < message.batch_size <= MOST_SAMPLES:
        raise WireError(f"a task with {message.classes} classes and batches of {message.batch_size}")
    json_of("spec", message.spec)
    json_of("inputs", message.inputs)
    item_size(message.wire)
    check_fields(message)
    names = [text("class_names", name) for name in message.class_names]
    if len(names) > MOST_CLASSES or len(set(names)) != len(names):
        raise WireError(f"{len(names)} names of classes, {len(names) - len(set(names))} of them twice")


def task_label(task: pb.Task) -> str:
    """A short name of a task, for logs: of what is imported, or of its network."""
    found = json_of("spec", task.spec)
    return str(found.get("model", "task")) if isinstance(found, dict) else str(found)


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


def shapes_in(message: pb.Params) -> Shapes:
    """Return the shapes of weights; the announced size must fit them."""
    if len(message.tensors) > MOST_TENSORS:
        raise WireError(f"{len(message.tensors)} tensors; a model has fewer")
    tensors = tuple((tensor.name, tuple(tensor.shape)) for tensor in message.tensors)
    shapes = Shapes(tensors, message.buffers, message.integers)
    needed = shapes.size * item_size(message.dtype)
    if message.size != needed:
        raise WireError(f"{message.size} bytes of weights, their shapes need {needed}")
    return shapes


def whole_params(message: pb.Params) -> tuple[Shapes, Flat]:
    """Weights that are complete in their message, and finite."""
    shapes, data = shapes_in(message), message.data  # the library copies the bytes each time they are asked for
    if len(data) != message.size:
        raise WireError(f"{len(data)} of {message.size} bytes of weights")
    flat = from_bytes(data, message.dtype)
    if not np.isfinite(flat).all():
        raise WireError("weights that are not finite numbers")
    return shapes, flat


def text(field: str, value: str) -> str:
    """A short printable string."""
    longest = _LONGEST.get(field, 100)
    if len(value) > longest or not value.isprintable():
        raise WireError(f"{field} is {value[:40]!r}; up to {longest} printable characters are allowed")
    return value
