"""The messages: what fits comes through, what does not is a WireError, and no field could carry a sample."""

import json
import math
from contextlib import suppress
from dataclasses import asdict, replace
from typing import Any

import numpy as np
import pytest
from google.protobuf.descriptor import FieldDescriptor
from hypothesis import given
from hypothesis import strategies as st

from fedgs.deploy.proto import fedgs_wire_pb2 as pb
from fedgs.deploy.round_messages import RoundResult, decode_order, decode_result, encode_order, encode_result
from fedgs.deploy.tensors import Shapes
from fedgs.deploy.transport import checked_result
from fedgs.deploy.wire import (
    PART,
    VERSION,
    Assembly,
    Part,
    Ready,
    Step,
    StepMessages,
    Task,
    Update,
    decode_down,
    decode_up,
    encode_bye,
    encode_hello,
    encode_ready,
    encode_task,
    encode_update,
    serialise,
)
from fedgs.errors import WireError
from fedgs.selection.team import TeamRule
from fedgs.training.optimizers import Optimizer
from tests.deploy.processes import SHAPES, TASK, UNIFORM, named_task, order

READY = Ready(7, np.array([2, 0, 3, 0]))
CHANGE = np.linspace(-1, 1, SHAPES.size, dtype=np.float32)


def an_update(wire: str = "float32") -> bytes:
    (message,) = encode_update(11, 7, 5, 0.25, SHAPES, CHANGE, wire, READY)
    return message


def a_step() -> bytes:
    (message,) = StepMessages(0.5, SHAPES, CHANGE, "float32").for_device(11, 7)
    return message


def an_optimizer(**changes: Any) -> str:
    return json.dumps(asdict(Optimizer()) | changes)


UPS = [encode_hello("fedgs"), encode_ready(READY), an_update(), serialise(pb.Up(part=pb.Part(data=b"abc")))]
DOWNS = [encode_task(TASK), a_step(), encode_bye("enough")]


def test_what_a_device_says_comes_through() -> None:
    hello, ready, update, part = (decode_up(data) for data in UPS)
    assert hello == pb.Hello(version=VERSION, software="fedgs")
    assert isinstance(ready, Ready)
    assert (ready.batch_id, ready.batch_size, ready.counts.tolist()) == (7, 5, [2, 0, 3, 0])
    assert isinstance(update, Update)
    assert (update.step, update.batch_id, update.num_samples, update.loss) == (11, 7, 5, 0.25)
    assert update.next is not None
    assert update.next.counts.tolist() == [2, 0, 3, 0]
    assembly = Assembly(update.change, SHAPES, "float32")
    assert assembly.complete
    np.testing.assert_array_equal(assembly.flat(), CHANGE)
    assert part == Part(b"abc")


def test_what_a_station_says_comes_through() -> None:
    task, step, bye = (decode_down(data) for data in DOWNS)
    assert task == TASK
    assert isinstance(step, Step)
    assert (step.step, step.batch_id, step.learning_rate) == (11, 7, 0.5)
    np.testing.assert_array_equal(Assembly(step.weights, SHAPES, "float32").flat(), CHANGE)
    assert bye == pb.Bye(reason="enough")


@pytest.mark.parametrize("wire", ["float32", "bfloat16", "float16"])
def test_large_weights_travel_in_parts(wire: str) -> None:
    shapes = Shapes((("a", (1000, 1000)), ("b", (3,))))
    weights = np.random.default_rng(0).standard_normal(shapes.size).astype(np.float32)
    messages = StepMessages(0.1, shapes, weights, wire).for_device(1, 1)
    assert len(messages) == (4 if wire == "float32" else 2)
    assert max(map(len, messages)) < 2 * PART
    step = decode_down(messages[0])
    assert isinstance(step, Step)
    assembly = Assembly(step.weights, shapes, wire)
    for data in messages[1:]:
        assert not assembly.complete
        part = decode_down(data)
        assert isinstance(part, Part)
        assembly.add(part.data)
    assert assembly.complete
    rounding = {"float32": 0, "bfloat16": 2**-8, "float16": 2**-10}[wire]
    np.testing.assert_allclose(assembly.flat(), weights, rtol=rounding, atol=rounding * 1e-4)
    with pytest.raises(WireError, match="were announced"):
        assembly.add(b"x")


def test_a_full_part_is_what_the_library_makes_of_it() -> None:
    """Full parts go past protobuf on both sides; their bytes are the same."""
    shapes = Shapes((("a", (PART // 2,)),))
    coded = np.arange(PART // 2, dtype=np.float32)
    _, up = encode_update(1, 1, 1, 0.0, shapes, coded, "float32", None)
    _, down = StepMessages(0.1, shapes, coded, "float32").for_device(1, 1)
    second = coded.tobytes()[PART:]
    assert up == serialise(pb.Up(part=pb.Part(data=second)))
    assert down == serialise(pb.Down(part=pb.Part(data=second)))
    for found in (decode_up(up), decode_down(down)):
        assert isinstance(found, Part)
        assert bytes(found.data) == second
    shorter = decode_up(serialise(pb.Up(part=pb.Part(data=second[:-1]))))
    assert isinstance(shorter, Part)
    assert shorter.data == second[:-1]
    with pytest.raises(WireError):
        decode_up(down[:-1])  # a station's part, cut


def test_room_is_made_for_the_expected_model_only() -> None:
    huge = Shapes((("dense.weight", (1 << 20, 1 << 10)),))
    head = pb.Params(tensors=[pb.Tensor(name="dense.weight", shape=(1 << 20, 1 << 10))], dtype=pb.FLOAT32)
    head.size = 4 * huge.size
    update = decode_up(serialise(pb.Up(update=pb.Update(num_samples=1, change=head))))
    assert isinstance(update, Update)
    with pytest.raises(WireError, match="another model: it "):
        Assembly(update.change, SHAPES, "float32")
    with pytest.raises(WireError, match="weights in float32; float16 was agreed"):
        Assembly(update.change, huge, "float16")


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        (pb.Up(), "says nothing"),
        (pb.Up(ready=pb.Ready(batch_id=1, batch_size=4, class_counts=[2, 3])), "sum to 5 for a batch of 4"),
        (pb.Up(ready=pb.Ready(batch_id=1)), "counts of 0 classes"),
        (pb.Up(ready=pb.Ready(batch_id=1, class_counts=[0, 0])), "sum to 0 for a batch of 0"),
        (pb.Up(hello=pb.Hello(version=1, software="x" * 101)), "software is"),
        (pb.Up(hello=pb.Hello(version=1, software="a\nb")), "software is"),
        (pb.Up(update=pb.Update(num_samples=0)), "an update from 0 samples"),
        (pb.Up(update=pb.Update(num_samples=1)), "0 tensors"),
        (pb.Up(update=pb.Update(num_samples=1, change=pb.Params(tensors=[pb.Tensor(name="a")]))), "number format 0"),
    ],
)
def test_rubbish_is_named(message: pb.Up, reason: str) -> None:
    with pytest.raises(WireError, match=reason):
        decode_up(serialise(message))


def params(*tensors: tuple[str, tuple[int, ...]], size: int = 4, data: bytes = b"") -> pb.Params:
    made = [pb.Tensor(name=name, shape=shape) for name, shape in tensors]
    return pb.Params(tensors=made, dtype=pb.FLOAT32, size=size, data=data)


@pytest.mark.parametrize(
    ("weights", "reason"),
    [
        (params(("a", (1,)), ("a", (1,)), size=8), "two tensors have the same name"),
        (params(("", (1,))), "not the name of a tensor"),
        (params(("a", (0,)), size=0), r"has shape \(0,\)"),
        (params(("a", (1,) * 9)), "has shape"),
        (params(("a", (2,))), "4 bytes of weights, their shapes need 8"),
        (params(("a", (1,)), data=b"12345"), "5 bytes of weights, 4 were announced"),
        (params(("a", (1 << 30, 1 << 30))), "a model of"),
    ],
)
def test_weights_that_do_not_fit_themselves_are_refused(weights: pb.Params, reason: str) -> None:
    with pytest.raises(WireError, match=reason):
        decode_down(serialise(pb.Down(step=pb.Step(weights=weights))))


def test_an_order_and_its_result_come_through() -> None:
    wanted = TeamRule(3, 1, "multistart", {"starts": 4}, UNIFORM, 5, 2, 0.5)
    optimizer = Optimizer("adamw", 0.0, (0.8, 0.95), 1e-6, 0.01)
    asked = order(
        3, 2, rate=0.125, weights=CHANGE, calibration=0.5, class_wise=True, wanted=wanted, optimizer=optimizer
    )  # fmt: skip
    got = decode_order(encode_order(asked))
    assert (got.run, got.round, got.task, got.first_iteration) == ("test", 3, TASK, 4)
    assert got.rates.tolist() == [0.125, 0.125]
    assert got.wanted.target.tolist() == [0.25] * 4
    assert (got.wanted.solver, got.wanted.options) == ("multistart", {"starts": 4})
    assert (got.wanted.pick, got.wanted.presample, got.wanted.seed) == (3, 1, 5)
    assert (got.wanted.factory, got.wanted.coverage) == (2, 0.5)
    assert got.calibration == 0.5
    assert (got.head, got.optimizer) == ("dense", optimizer)
    assert decode_order(encode_order(order())).optimizer == Optimizer()
    assert got.class_wise
    assert got.clip is None
    assert decode_order(encode_order(order(clip=2.5))).clip == 2.5
    np.testing.assert_array_equal(got.weights, CHANGE)
    sent = result(round=3, weights=CHANGE, iterations=2, events={"late": 1})
    back = decode_result(encode_result(sent))
    assert (back.round, back.iterations, back.samples, back.loss, back.events) == (3, 2, 30, 0.5, {"late": 1})
    assert back.seen.tolist() == [10, 0, 19, 1]
    np.testing.assert_array_equal(back.weights, CHANGE)


def result(**changes: Any) -> RoundResult:
    """Return what a station answers to ``order(class_wise=True)``."""
    good = RoundResult(
        "test", 1, SHAPES, order().weights, 3, 30, 0.5, 0.1, 3, np.full(4, 0.25), seen=np.array([10, 0, 19, 1])
    )
    return replace(good, **changes)


@pytest.mark.parametrize("version", [0, 1, 2, 3, 5])
def test_other_versions_are_refused(version: int) -> None:
    assert VERSION == 4
    for kind, data, decode in (
        (pb.RoundIn, encode_order(order(class_wise=True, clip=2.0)), decode_order),
        (pb.RoundOut, encode_result(result()), decode_result),
    ):
        message = kind.FromString(data)
        assert message.version == VERSION
        message.version = version
        with pytest.raises(WireError, match=f"protocol version {version}, this end speaks 4; install the same fedgs"):
            decode(serialise(message))


SMALLER = {"shapes": Shapes((("dense.weight", (2, 64)), ("dense.bias", (2,)))), "weights": np.zeros(130, np.float32)}


@pytest.mark.parametrize(
    ("asked", "field", "value", "reason"),
    [
        ({}, "solver", "best", "no solver is called 'best'"),
        ({}, "pick", 0, "pick=0"),
        ({}, "presample", 9, "presample=9"),
        ({}, "solver_options", "here", "solver_options is"),
        ({}, "solver_options", "[3]", "solver_options is no table"),
        ({}, "optimizer", "{}", "optimizer is"),
        ({}, "optimizer", an_optimizer(name="best"), "known are sgd, momentum, adam, adamw"),
        ({}, "optimizer", an_optimizer(weight_decay=-1.0), "optimizer is"),
        ({}, "optimizer", an_optimizer(epsilon=math.inf), "optimizer is"),
        ({}, "head", "x" * 201, "head is"),
        ({}, "run", "x" * 101, "run is"),
        ({}, "calibration", math.nan, "calibration is nan"),
        ({}, "calibration", math.inf, "calibration is inf"),
        ({}, "calibration", -0.5, "calibration=-0.5"),
        ({"clip": 1.0}, "clip", -1.0, "clip="),
        ({"clip": 1.0}, "clip", math.inf, "clip="),
        ({"clip": 1.0}, "clip", math.nan, "clip="),
        ({"head": ""}, "calibration", 1.0, "'' has none; .*task.head"),
        ({"head": "other"}, "calibration", 1.0, "'other' has none; .*task.head"),
        (SMALLER, "calibration", 1.0, r"of shape \(4,\), but 'dense' has one of shape \(2,\)"),
    ],
)
def test_orders_that_cannot_be_are_refused(asked: dict[str, Any], field: str, value: object, reason: str) -> None:
    message = pb.RoundIn.FromString(encode_order(order(**asked)))
    setattr(message, field, value)
    with pytest.raises(WireError, match=reason):
        decode_order(serialise(message))


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"clip": math.nan}, "clip="),
        ({"calibration": 1.0, "head": "other"}, "'other' has none"),
        ({"rates": np.array([0.1, np.nan])}, "learning_rates holds a number that is not finite"),
        ({"rates": np.array([-0.1])}, "the least -0.1"),
        ({"weights": np.full(SHAPES.size, np.inf, np.float32)}, "weights that are not finite"),
        ({"task": named_task("r", classes=3)}, "a target of 4 classes, the task has 3"),
        ({"task": replace(TASK, spec="{")}, "spec is"),
        ({"task": replace(TASK, inputs="]")}, "inputs is"),
    ],
)
def test_orders_with_values_that_cannot_be_are_refused(changes: dict[str, Any], reason: str) -> None:
    """By whoever makes the order, or by whoever gets it."""
    with pytest.raises(WireError, match=reason):
        decode_order(encode_order(order(**changes)))


def test_the_bias_of_the_last_layer_may_lie_anywhere() -> None:
    shapes = Shapes(SHAPES.tensors[::-1])
    assert decode_order(encode_order(order(shapes=shapes, calibration=1.0))).shapes == shapes


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"announced": np.array([0.9, 0.9])}, "not a distribution"),
        ({"announced": np.array([1.5, -0.5])}, "not a distribution"),
        ({"announced": np.array([1.0, np.nan])}, "announced holds a number that is not finite"),
        ({"announced": np.array([0.5, 0.5])}, "announces 2 classes, the task has 4"),
        ({"iterations": 4}, "answers 4 iterations, asked were 3"),
        ({"round": 2}, "answers round 2"),
        ({"samples": 46, "seen": np.array([46, 0, 0, 0])}, "answers 46 samples of 3 iterations; there are 3 to 45"),
        ({"samples": 2, "seen": np.array([2, 0, 0, 0])}, "answers 2 samples of 3 iterations"),
        ({"seen": np.array([10, 10, 10, 1])}, "seen sums to 31 for 30 samples"),
        ({"seen": np.array([0, 0, 0, 0])}, "seen sums to 0 for 30 samples"),
        ({"seen": np.array([15, 15])}, "counts samples of 2 classes, the task has 4"),
        ({"seen": np.ones(1 << 16 | 1, np.int64)}, "seen has 65537 classes; 65536 are the most"),
        ({"seen": np.array([1 << 63, 1 << 63, 30, 0], np.uint64)}, "seen sums to 18446744073709551646 for 30 samples"),
        (
            {"seen": np.array([1 << 63, 1 << 62, 0, 0], np.uint64), "samples": 3 << 62},
            "seen sums to 13835058055282163712",
        ),
        ({"seen": np.empty(0, np.int64)}, "does not say which classes it trained on, which server.class_wise needs"),
    ],
)
def test_results_that_cannot_be_are_refused(changes: dict[str, Any], reason: str) -> None:
    with pytest.raises(WireError, match=reason):
        checked_result(decode_result(encode_result(result(**changes))), order(class_wise=True), "s1")


def test_results_that_can_be_are_taken() -> None:
    none = np.empty(0, np.int64)
    for asked, good in (
        (order(class_wise=True), result()),
        (order(), result(seen=none)),  # nobody asked for it
        (order(class_wise=True), result(seen=none, iterations=0, samples=0)),
    ):
        assert checked_result(decode_result(encode_result(good)), asked, "s1").iterations == good.iterations


# --- fuzzing: typed errors only, whatever comes


@st.composite
def mutated(draw: st.DrawFn, originals: list[bytes]) -> bytes:
    data = bytearray(draw(st.sampled_from(originals)))
    for _ in range(draw(st.integers(0, 4))):
        place = draw(st.integers(0, max(0, len(data) - 1)))
        kind = draw(st.sampled_from(("flip", "cut", "insert", "double")))
        if kind == "flip" and data:
            data[place] ^= 1 << draw(st.integers(0, 7))
        elif kind == "cut":
            del data[place : place + draw(st.integers(1, 40))]
        elif kind == "insert":
            data[place:place] = draw(st.binary(max_size=20))
        else:
            data[place:place] = data[place : place + 30]
    return bytes(data)


@given(st.one_of(st.binary(max_size=200), mutated(UPS)))
def test_any_bytes_from_a_device_are_a_message_or_a_wire_error(data: bytes) -> None:
    with suppress(WireError):
        message = decode_up(data)
        assert isinstance(message, pb.Hello | Ready | Update | Part)
        if isinstance(message, Update):
            Assembly(message.change, SHAPES, "float32")


@given(st.one_of(st.binary(max_size=200), mutated(DOWNS)))
def test_any_bytes_from_a_station_are_a_message_or_a_wire_error(data: bytes) -> None:
    with suppress(WireError):
        message = decode_down(data)
        assert isinstance(message, Task | Step | Part | pb.Bye)
        if isinstance(message, Step):
            Assembly(message.weights, SHAPES, "float32")


@given(mutated([encode_order(order())]))
def test_any_order_is_one_or_a_wire_error(data: bytes) -> None:
    with suppress(WireError):
        assert decode_order(data).wanted.pick > 0


# --- confidentiality: the schema itself


LEAVES_A_DEVICE = {
    "Hello": {"version", "software"},
    "Ready": {"batch_id", "batch_size", "class_counts"},
    "Update": {"step", "batch_id", "num_samples", "loss", "change", "next"},
    "Part": {"data"},
    "Params": {"tensors", "dtype", "size", "data", "buffers", "integers"},
    "Tensor": {"name", "shape"},
}
"""Class counts of the next batch, the change of the model, batch size, loss; and numbers that tell messages apart.

``buffers`` and ``integers`` are numbers of tensors, which the station holds against the model's.
"""


def test_no_field_of_the_wire_could_carry_a_sample() -> None:
    """Walk everything reachable from what a device sends: only what is listed leaves it."""
    found: dict[str, set[str]] = {}
    raw: set[str] = set()
    waiting = [pb.Up.DESCRIPTOR]
    while waiting:
        message = waiting.pop()
        for field in message.fields:
            if message.name != "Up":
                found.setdefault(message.name, set()).add(field.name)
            if field.type == FieldDescriptor.TYPE_BYTES:
                raw.add(f"{message.name}.{field.name}")
            if field.message_type is not None and field.message_type.name not in found:
                waiting.append(field.message_type)
    assert found == LEAVES_A_DEVICE
    # Raw bytes are weights only: of the model's shapes, finite, and of a bounded norm, or they are refused.
    assert raw == {"Params.data", "Part.data"}


def test_nothing_more_leaves_a_station() -> None:
    """What a station passes on to the top server is sums and means over devices, never a device's own numbers."""
    fields = {field.name for field in pb.RoundOut.DESCRIPTOR.fields}
    assert fields == {
        "version", "run", "round", "weights", "iterations", "samples", "loss", "divergence", "devices", "announced",
        "events", "seen",
    }  # fmt: skip
