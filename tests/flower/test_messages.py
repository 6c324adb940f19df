"""A round as a Flower message: nothing is lost, and rubbish is a typed error."""

from dataclasses import replace
from io import BytesIO
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

pytest.importorskip("flwr")

from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict

from fedgs.deploy.round_messages import RoundResult, decode_order, encode_order, encode_result
from fedgs.errors import WireError
from fedgs.flower.messages import ARRAYS, METRICS, order_bytes, order_content, result_content, result_of
from tests.deploy.processes import SHAPES, order

WEIGHTS = np.arange(SHAPES.size, dtype=np.float32) / 7
ORDER = order(number=3, weights=WEIGHTS, calibration=0.5, class_wise=True)


def result(**changes: Any) -> RoundResult:
    values: dict[str, Any] = {
        "run": "test", "round": 3, "shapes": SHAPES, "weights": WEIGHTS, "iterations": 4, "samples": 60, "loss": 1.25,
        "divergence": 0.5, "devices": 6, "announced": np.array([0.25, 0.25, 0.5, 0.0]), "events": {"late": 2},
        "seen": np.array([20, 0, 39, 1]),
    }  # fmt: skip
    return RoundResult(**(values | changes))


def test_an_order_arrives_as_it_was_sent_but_for_the_number_of_the_factory() -> None:
    arrived = order_bytes(order_content(ORDER), factory=5)
    assert arrived == encode_order(replace(ORDER, wanted=replace(ORDER.wanted, factory=5)))
    assert decode_order(arrived).wanted.factory == 5
    assert decode_order(arrived).calibration == 0.5
    assert decode_order(arrived).class_wise


def test_the_weights_are_flowers_arrays_by_name() -> None:
    arrays = order_content(ORDER)[ARRAYS]
    assert list(arrays) == ["dense.weight", "dense.bias"]
    np.testing.assert_array_equal(arrays["dense.weight"].numpy(), WEIGHTS[:256].reshape(4, 64))


def test_a_result_arrives_as_it_was_sent() -> None:
    arrived = result_of(result_content(encode_result(result())))
    assert encode_result(arrived) == encode_result(result())
    assert arrived.seen.tolist() == [20, 0, 39, 1]


def test_the_metrics_count_a_station_once_and_one_that_did_not_train_not_at_all() -> None:
    metrics = dict(result_content(encode_result(result()))[METRICS])
    assert metrics == {
        "weight": 1.0, "num-examples": 60, "train_loss": 1.25, "divergence": 0.5, "devices": 6, "iterations": 4,
    }  # fmt: skip
    assert result_content(encode_result(result(iterations=0)))[METRICS]["weight"] == 0.0


def test_what_a_strategy_has_computed_in_float64_is_sent_on_in_float32() -> None:
    content = order_content(ORDER)
    wide = {name: Array(array.numpy().astype(np.float64)) for name, array in content[ARRAYS].items()}
    content[ARRAYS] = ArrayRecord(wide)
    assert order_bytes(content, 0) == encode_order(ORDER)


def with_arrays(**arrays: Any) -> RecordDict:
    content = result_content(encode_result(result()))
    content[ARRAYS] = ArrayRecord({name: Array(np.asarray(value)) for name, value in arrays.items()})
    return content


GOOD = {"dense.weight": np.zeros((4, 64), np.float32), "dense.bias": np.zeros(4, np.float32)}


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (RecordDict(), "without facts.result"),
        (RecordDict({"facts": ConfigRecord({"result": "text"})}), "without facts.result"),
        (RecordDict({"facts": ConfigRecord({"result": b"\xff\xff"})}), "not a message"),
        (RecordDict({"facts": result_content(encode_result(result()))["facts"]}), "without arrays"),
        (with_arrays(**{"dense.bias": GOOD["dense.bias"]}), "announced were"),
        (with_arrays(**GOOD, extra=np.zeros(1)), "announced were"),
        (with_arrays(**GOOD | {"dense.bias": np.zeros(5, np.float32)}), "shape (5,)"),
        (with_arrays(**GOOD | {"dense.bias": np.zeros(4, np.int64)}), "int64"),
        (with_arrays(**GOOD | {"dense.bias": np.full(4, np.nan, np.float32)}), "not finite"),
        (with_arrays(**GOOD | {"dense.bias": np.full(4, 1e300)}), "not finite"),
    ],
)
def test_rubbish_is_refused(content: RecordDict, reason: str) -> None:
    with pytest.raises(WireError) as caught:
        result_of(content)
    assert reason in str(caught.value)


def as_npy(values: NDArray[Any]) -> bytes:
    file = BytesIO()
    np.save(file, values)
    return file.getvalue()


def archive() -> bytes:
    file = BytesIO()
    np.savez(file, values=GOOD["dense.bias"])
    return file.getvalue()


HEADER = as_npy(GOOD["dense.bias"])


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\x93NUMPY rubbish",
        b"PK\x03\x04 rubbish",
        archive(),
        HEADER.replace(b"(4,)", b"(4, "),
        HEADER.replace(b"'descr'", b"'d\x00scr'"),
        HEADER.replace(b"<f4", b"|O8"),
        HEADER[:-1],
        HEADER + b"x",
        b"\x93NUMPY\x09\x00" + HEADER[8:],
        b"\x93NUMPY\x02\x00\xff\xff\xff\xff" + HEADER[10:],
        as_npy(np.zeros(0, np.float32)).replace(b"(0,), }         ", b"(9999999999,), }"),
    ],
)
def test_an_array_whose_bytes_are_rubbish_is_refused(data: bytes) -> None:
    content = with_arrays(**GOOD)
    content[ARRAYS]["dense.bias"] = Array("float32", (4,), "numpy.ndarray", data)
    with pytest.raises(WireError, match=r"array 'dense.bias' (cannot be read|is )"):
        result_of(content)


def test_an_array_by_columns_arrives_as_it_is() -> None:
    values = WEIGHTS[:256].reshape(4, 64)
    content = with_arrays(**GOOD)
    content[ARRAYS]["dense.weight"] = Array(
        "float32", (4, 64), "numpy.ndarray", as_npy(np.asfortranarray(values))
    )  # fmt: skip
    np.testing.assert_array_equal(result_of(content).weights[:256], WEIGHTS[:256])
