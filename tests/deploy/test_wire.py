"""The messages: what fits comes through, what does not is a WireError, and no field could carry a sample."""

import json
import math
from contextlib import suppress
from dataclasses import asdict, replace
from typing import Any

import numpy as np
import pytest
import torch
from google.protobuf.descriptor import FieldDescriptor
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from fedgs.deploy.proto import fedgs_wire_pb2 as pb
from fedgs.deploy.round_messages import RoundResult, decode_order, decode_result, encode_order, encode_result
from fedgs.deploy.tensors import Flat, Shapes, from_bytes, norm, to_bytes
from fedgs.deploy.transport import checked_result
from fedgs.deploy.wire import (
    PART,
    VERSION,
    Assembly,
    Part,
    Ready,
    StepMessages,
    decode_down,
    decode_up,
    encode_update,
    serialise,
)
from fedgs.errors import WireError
from fedgs.selection.team import TeamRule
from fedgs.training.optimizers import Optimizer
from tests.deploy.processes import SHAPES, TASK, UNIFORM, named_task, order

READY = Ready(7, np.array([2, 0, 3, 0]))
CHANGE = np.linspace(-1, 1, SHAPES.size, dtype=np.float32)


def an_update(shapes: Shapes = SHAPES, change: Flat = CHANGE) -> list[bytes]:
    update = pb.Update(step=11, batch_id=7, num_samples=5, loss=0.25, next=READY.message)
    return list(encode_update(update, shapes, change, pb.FLOAT32))


def a_step() -> bytes:
    (message,) = StepMessages(0.5, SHAPES, CHANGE, pb.FLOAT32).for_device(11, 7)
    return message


def an_optimizer(**changes: Any) -> str:
    return json.dumps(asdict(Optimizer()) | changes)


HELLO = pb.Hello(version=VERSION, software="fedgs")
UPS = [serialise(pb.Up(hello=HELLO)), serialise(pb.Up(ready=READY.message)), *an_update(),
       serialise(pb.Up(part=pb.Part(data=b"abc")))]  # fmt: skip
DOWNS = [serialise(pb.Down(task=TASK)), a_step(), serialise(pb.Down(bye=pb.Bye(reason="enough")))]


def test_what_a_device_says_comes_through() -> None:
    hello, ready, update, part = (decode_up(data) for data in UPS)
    assert (hello, ready, part) == (HELLO, READY.message, b"abc")
    assert Ready.of(READY.message).counts.tolist() == [2, 0, 3, 0]
    assert isinstance(update, pb.Update)
    assert (update.step, update.batch_id, update.num_samples, update.loss) == (11, 7, 5, 0.25)
    assert update.next == READY.message
    assembly = Assembly(update.change, SHAPES, pb.FLOAT32)
    assert assembly.complete
    np.testing.assert_array_equal(assembly.flat(), CHANGE)


def test_what_a_station_says_comes_through() -> None:
    task, step, bye = (decode_down(data) for data in DOWNS)
    assert (task, bye) == (TASK, pb.Bye(reason="enough"))
    assert isinstance(step, pb.Step)
    assert (step.step, step.batch_id, step.learning_rate) == (11, 7, 0.5)
    np.testing.assert_array_equal(Assembly(step.weights, SHAPES, pb.FLOAT32).flat(), CHANGE)


@pytest.mark.parametrize(("wire", "rounding"), [(pb.FLOAT32, 0), (pb.BFLOAT16, 2**-8), (pb.FLOAT16, 2**-10)])
def test_large_weights_travel_in_parts(wire: int, rounding: float) -> None:
    shapes = Shapes((("a", (1000, 1000)), ("b", (3,))))
    weights = np.random.default_rng(0).standard_normal(shapes.size).astype(np.float32)
    messages = StepMessages(0.1, shapes, weights, wire).for_device(1, 1)
    assert len(messages) == (4 if wire == pb.FLOAT32 else 2)
    assert max(map(len, messages)) < 2 * PART
    step = decode_down(messages[0])
    assert isinstance(step, pb.Step)
    assembly = Assembly(step.weights, shapes, wire)
    for data in messages[1:]:
        assert not assembly.complete
        part = decode_down(data)
        assert isinstance(part, Part)
        assembly.add(part)
    assert assembly.complete
    np.testing.assert_allclose(assembly.flat(), weights, rtol=rounding, atol=rounding * 1e-4)
    with pytest.raises(WireError, match="were announced"):
        assembly.add(b"x")


def test_a_full_part_is_what_the_library_makes_of_it() -> None:
    """Full parts go past protobuf on both sides; their bytes are the same."""
    shapes = Shapes((("a", (PART // 2,)),))
    coded = np.arange(PART // 2, dtype=np.float32)
    _, up = an_update(shapes, coded)
    _, down = StepMessages(0.1, shapes, coded, pb.FLOAT32).for_device(1, 1)
    second = coded.tobytes()[PART:]
    assert up == serialise(pb.Up(part=pb.Part(data=second)))
    assert down == serialise(pb.Down(part=pb.Part(data=second)))
    for found in (decode_up(up), decode_down(down)):
        assert isinstance(found, Part)
        assert bytes(found) == second
    assert decode_up(serialise(pb.Up(part=pb.Part(data=second[:-1])))) == second[:-1]
    with pytest.raises(WireError):
        decode_up(down[:-1])  # a station's part, cut


def test_room_is_made_for_the_expected_model_only() -> None:
    huge = Shapes((("dense.weight", (1 << 20, 1 << 10)),))
    head = pb.Params(tensors=[pb.Tensor(name="dense.weight", shape=(1 << 20, 1 << 10))], dtype=pb.FLOAT32)
    head.size = 4 * huge.size
    update = decode_up(serialise(pb.Up(update=pb.Update(num_samples=1, change=head))))
    assert isinstance(update, pb.Update)
    with pytest.raises(WireError, match="another model: it "):
        Assembly(update.change, SHAPES, pb.FLOAT32)
    with pytest.raises(WireError, match="weights in float32; float16 was agreed"):
        Assembly(update.change, huge, pb.FLOAT16)


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
        (pb.Up(update=pb.Update(num_samples=1, next=pb.Ready(batch_id=1))), "counts of 0 classes"),
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
        (pb.Params(), "0 tensors"),
        (pb.Params(tensors=[pb.Tensor(name="a")]), "number format 0"),
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
        Assembly(weights, Shapes((("a", (1,)),)), pb.FLOAT32)


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


@pytest.mark.parametrize("apart", [-VERSION, -3, -2, -1, 1, 2, 3])
def test_versions_next_to_each_other_work_together_and_others_are_refused(apart: int) -> None:
    """The refusal names both versions, and who is to update."""
    version = VERSION + apart
    for kind, data, decode in (
        (pb.RoundIn, encode_order(order(class_wise=True, clip=2.0)), decode_order),
        (pb.RoundOut, encode_result(result()), decode_result),
    ):
        message = kind.FromString(data)
        assert message.version == VERSION
        message.version = version
        if abs(apart) == 1:
            assert decode(serialise(message)).round == 1
            continue
        ends = ("top server", "station") if kind is pb.RoundIn else ("station", "top server")
        both = f"protocol version {version} of the {ends[0]}, {VERSION} of the {ends[1]}"
        with pytest.raises(WireError, match=rf"{both}.*update fedgs on the {ends[apart > 0]}"):
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
        ({"clip": 1.0}, "clip", math.inf, "clip is inf"),
        ({"clip": 1.0}, "clip", math.nan, "clip is nan"),
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
        ({"task": named_task(spec="{")}, "spec is"),
        ({"task": named_task(class_names=["ok", "dent", "ok"])}, "3 names of classes, 1 of them twice"),
        ({"task": named_task(class_names=["ok\n"])}, "class_names is 'ok"),
        ({"task": named_task(inputs="]")}, "inputs is"),
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
        assert isinstance(message, pb.Hello | pb.Ready | pb.Update | Part)
        if isinstance(message, pb.Update):
            Assembly(message.change, SHAPES, pb.FLOAT32)


@given(st.one_of(st.binary(max_size=200), mutated(DOWNS)))
def test_any_bytes_from_a_station_are_a_message_or_a_wire_error(data: bytes) -> None:
    with suppress(WireError):
        message = decode_down(data)
        assert isinstance(message, pb.Task | pb.Step | pb.Bye | Part)
        if isinstance(message, pb.Step):
            Assembly(message.weights, SHAPES, pb.FLOAT32)


@given(mutated([encode_order(order())]))
def test_any_order_is_one_or_a_wire_error(data: bytes) -> None:
    with suppress(WireError):
        assert decode_order(data).wanted.pick > 0


# --- confidentiality: the schema itself


LEAVES_A_DEVICE = {
    "Hello": {"version", "software"},
    "Ready": {"batch_id", "batch_size", "class_counts", "moments"},
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
    """What a station passes on to the top server is sums and means over devices, never numbers of a device's data."""
    fields = {field.name for field in pb.RoundOut.DESCRIPTOR.fields}
    assert fields == {
        "version", "run", "round", "weights", "iterations", "samples", "loss", "divergence", "devices", "announced",
        "events", "seen", "took_part", "online", "moments", "queues", "turns", "team", "mix", "sent_bytes",
        "received_bytes",
    }  # fmt: skip


TWO = Shapes((("a", (2, 3)), ("b", ())))


def test_weights_become_a_vector_and_come_back() -> None:
    weights = {"a": np.arange(6.0).reshape(2, 3), "b": np.array(9.0)}
    flat = TWO.flatten(weights)
    assert flat.tolist() == [0, 1, 2, 3, 4, 5, 9]
    views = TWO.views(flat)
    assert views["a"].tolist() == [[0, 1, 2], [3, 4, 5]]
    assert views["b"] == 9
    assert Shapes.of(weights) == TWO


def test_bytes_are_little_endian_in_the_order_of_the_vector() -> None:
    flat = np.array([1.0, -2.0], np.float32)
    assert bytes(to_bytes(flat, pb.FLOAT32)) == b"\x00\x00\x80\x3f\x00\x00\x00\xc0"
    assert bytes(to_bytes(flat, pb.BFLOAT16)) == b"\x80\x3f\x00\xc0"
    assert bytes(to_bytes(flat, pb.FLOAT16)) == b"\x00\x3c\x00\xc0"


def test_bfloat16_is_rounded_to_nearest_and_ties_to_even() -> None:
    # 1 + 2^-8 lies between 1 and 1 + 2^-7: the even one is 1; 1 + 3·2^-8 goes up to 1 + 2^-6.
    flat = np.array([1 + 2**-8, 1 + 3 * 2**-8, 1 + 2**-8 + 2**-20], np.float32)
    assert from_bytes(to_bytes(flat, pb.BFLOAT16), pb.BFLOAT16).tolist() == [1.0, 1 + 2**-6, 1 + 2**-7]


finite = st.floats(-(2.0**100), 2.0**100, width=32)


@given(arrays(np.float32, st.integers(1, 40), elements=finite))
def test_half_the_bytes_are_those_of_torch(flat: np.ndarray) -> None:  # type: ignore[type-arg]
    for wire, kind in ((pb.BFLOAT16, torch.bfloat16), (pb.FLOAT16, torch.float16)):
        expected = torch.from_numpy(flat).to(kind).float().numpy()
        np.testing.assert_array_equal(from_bytes(to_bytes(flat, wire), wire), expected)
    np.testing.assert_array_equal(from_bytes(to_bytes(flat, pb.FLOAT32), pb.FLOAT32), flat)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("wire", [pb.FLOAT32, pb.BFLOAT16, pb.FLOAT16])
def test_a_number_that_is_not_finite_is_seen_after_the_journey(bad: float, wire: int) -> None:
    flat = np.ones(1000, np.float32)
    flat[700] = bad
    assert not np.isfinite(norm(from_bytes(to_bytes(flat, wire), wire)))
    assert norm(np.array([3, 4], np.float32)) == 5


def test_models_that_differ_are_told_apart() -> None:
    assert TWO.difference(TWO) == ""
    assert TWO.difference(Shapes((("a", (2, 3)),))) == "lacks 'b'"
    assert "has 'c', which" in TWO.difference(Shapes((*TWO.tensors, ("c", (1,)))))
    assert "of shape (3, 2)" in TWO.difference(Shapes((("a", (3, 2)), ("b", ()))))
    assert TWO.difference(Shapes((("b", ()), ("a", (2, 3))))) == "has its tensors in another order"
