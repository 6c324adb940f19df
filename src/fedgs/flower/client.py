"""The ClientApp of a factory, and a round as a Flower message: a thin bridge between a SuperNode and its station.

    flower-supernode --node-config 'factory=0 station="/var/lib/fedgs/station-1"' …

``factory`` is the station's number, 0 to M − 1; ``station`` its state folder, whose socket only the station's user may
use. Flower starts this anew for each message, so it imports little and, above all, no torch, and keeps no state. The
station gives the same order the same answer, so asking again is safe.

The weights travel as Flower's ``arrays``, so that strategies can work with them; everything else of the order and of
the result travels beside them in the bytes of the protocol (:mod:`fedgs.deploy.round_messages`), and is checked by the
same code.

    order   arrays: ω, name by name    config: order = RoundIn without weights
    result  arrays: ω^m                facts: result = RoundOut without weights
            metrics: weight (1, or 0 where no device trained), num-examples, train_loss, divergence, devices, iterations
"""

import math
import sys
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Error, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.common.constant import ErrorCode
from numpy.lib import format as npy
from numpy.typing import NDArray

from fedgs.deploy.process import SOCKET
from fedgs.deploy.proto import fedgs_wire_pb2 as pb
from fedgs.deploy.round_messages import RoundOrder, RoundResult, decode_result, encode_order
from fedgs.deploy.tensors import Flat, Shapes
from fedgs.deploy.transport import call_station
from fedgs.deploy.wire import parse, serialise, whole_params
from fedgs.errors import ConfigError, FedgsError, WireError

ARRAYS, CONFIG, METRICS, FACTS = "arrays", "config", "metrics", "facts"
ORDER, RESULT, FACTORY, WEIGHT = "order", "result", "factory", "weight"
app = ClientApp()


@app.train()
def train(message: Message, context: Context) -> Message:
    """Let the station carry out one round."""
    try:
        factory, station = site(context)
        answer = call_station(station / SOCKET, order_bytes(message.content, factory))
        return Message(result_content(answer), reply_to=message)
    except FedgsError as error:
        return _refused(message, error)


@app.query()
def who(message: Message, context: Context) -> Message:
    """Say which factory this is."""
    try:
        facts = ConfigRecord({FACTORY: site(context)[0]})
        return Message(RecordDict({FACTS: facts}), reply_to=message)
    except FedgsError as error:
        return _refused(message, error)


def site(context: Context) -> tuple[int, Path]:
    """Return the number of the factory and the state folder of its station."""
    factory, station = context.node_config.get("factory"), context.node_config.get("station")
    if type(factory) is not int or factory < 0 or not isinstance(station, str) or not station:
        raise ConfigError(
            f"the SuperNode has factory={factory!r} and station={station!r}; start it with "
            "--node-config 'factory=0 station=\"DIR\"': its number from 0 on, and the --state folder of its station"
        )
    return factory, Path(station)


def _refused(message: Message, error: FedgsError) -> Message:
    print(f"fedgs: {error}", file=sys.stderr)
    return Message(Error(ErrorCode.CLIENT_APP_RAISED_EXCEPTION, str(error)), reply_to=message)


# --- a round as a message


def order_content(order: RoundOrder) -> RecordDict:
    """Return the content of the message that asks a SuperNode for a round."""
    head = parse(pb.RoundIn, encode_order(order))
    head.weights.data = b""
    return RecordDict({ARRAYS: arrays_of(order.shapes, order.weights), CONFIG: ConfigRecord({ORDER: serialise(head)})})


def order_bytes(content: RecordDict, factory: int) -> bytes:
    """Return the order in a message as a station takes it; ``factory`` is the number of that station."""
    head = parse(pb.RoundIn, _bytes(content, CONFIG, ORDER))
    head.factory = factory
    _fill(head.weights, content)
    return serialise(head)


def result_content(answer: bytes) -> RecordDict:
    """Return the content of the reply that brings a station's answer."""
    head = parse(pb.RoundOut, answer)
    shapes, weights = whole_params(head.weights)
    head.weights.data = b""
    metrics = MetricRecord(
        {
            WEIGHT: 1.0 if head.iterations else 0.0,
            "num-examples": head.samples,
            "train_loss": head.loss,
            "divergence": head.divergence,
            "devices": head.devices,
            "iterations": head.iterations,
        }
    )
    return RecordDict(
        {ARRAYS: arrays_of(shapes, weights), METRICS: metrics, FACTS: ConfigRecord({RESULT: serialise(head)})}
    )


def result_of(content: RecordDict) -> RoundResult:
    """Return the result in a reply, checked as one that came over gRPC."""
    head = parse(pb.RoundOut, _bytes(content, FACTS, RESULT))
    _fill(head.weights, content)
    return decode_result(serialise(head))


def arrays_of(shapes: Shapes, weights: Flat) -> ArrayRecord:
    """Return flat weights as Flower's record of named arrays."""
    return ArrayRecord({name: Array(np.asarray(view)) for name, view in shapes.views(weights).items()})


def _bytes(content: RecordDict, record: str, key: str) -> bytes:
    found = content.get(record)
    value = found.get(key) if isinstance(found, ConfigRecord) else None
    if not isinstance(value, bytes):
        raise WireError(f"a Flower message without {record}.{key}; is the other end fedgs.flower of the same version?")
    return value


def _fill(params: Any, content: RecordDict) -> None:
    """Put the arrays of a message into the protocol's weights, in the order and shapes announced there."""
    arrays = content.get(ARRAYS)
    if not isinstance(arrays, ArrayRecord):
        raise WireError(f"a Flower message without {ARRAYS}")
    wanted = {tensor.name: tuple(tensor.shape) for tensor in params.tensors}
    if wanted.keys() != arrays.keys():
        raise WireError(f"arrays {sorted(arrays)[:4]}…, announced were {sorted(wanted)[:4]}…")
    parts = []
    for name, shape in wanted.items():
        values = _values(name, arrays[name].data, shape)
        with np.errstate(over="ignore"):  # infinity is refused where the weights are checked
            parts.append(np.ascontiguousarray(values, "<f4").tobytes())  # strategies may compute in float64
    params.data = b"".join(parts)


def _values(name: str, data: bytes, shape: tuple[int, ...]) -> NDArray[Any]:
    """Return the numbers of an array in NumPy's format, without copying.

    Flower hands the bytes to ``np.load``, which would open an archive as gladly, and make room for whatever a header
    claims. Here header and length must fit what was announced first.
    """
    stream = BytesIO(data)
    try:
        version = npy.read_magic(stream)
        read = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}[version]
        found, by_columns, kind = read(stream)
    except Exception as error:  # a header is parsed as Python: what a hostile one raises cannot be listed
        raise WireError(f"array {name[:40]!r} cannot be read: {type(error).__name__}: {str(error)[:80]}") from None
    if found != shape or kind.kind != "f":
        raise WireError(f"array {name[:40]!r} is {kind} of shape {found}, announced was {shape}")
    there, due = len(data) - stream.tell(), math.prod(shape) * kind.itemsize
    if there != due:
        raise WireError(f"array {name[:40]!r} cannot be read: it has {there} bytes, its header announces {due}")
    return np.frombuffer(data, kind, offset=stream.tell()).reshape(shape, order="F" if by_columns else "C")
