"""The bridge between a SuperNode and a station, a round as a Flower message, and how orders find their way."""

import asyncio
import subprocess
import sys
from collections.abc import Iterable
from dataclasses import replace
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

pytest.importorskip("flwr")

from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Error, Message, RecordDict
from flwr.serverapp import Grid

from fedgs.deploy.round_messages import RoundResult, decode_order, encode_order, encode_result
from fedgs.errors import PeerError, WireError
from fedgs.flower import client, server
from fedgs.flower.client import ARRAYS, METRICS, order_bytes, order_content, result_content, result_of
from fedgs.flower.server import FlowerTransport, SuperNodes
from tests.deploy.processes import CLASSES, SHAPES, Park, order, write_device
from tests.simulation.small import small_federation


def context(**node_config: Any) -> Context:
    return Context(run_id=1, node_id=1, node_config=node_config, state=RecordDict(), run_config={})


def asked(content: RecordDict, kind: str = "train") -> Message:
    return Message(content, dst_node_id=1, message_type=kind)


def test_it_imports_no_torch() -> None:
    code = "import sys, fedgs.flower.client; print(sorted({'torch', 'matplotlib'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_a_round_goes_through_to_the_station_and_back(park: Park, tmp_path: Path) -> None:
    federation = replace(small_federation(3, 1), classes=tuple(map(str, range(CLASSES))))  # the order names no classes
    station = park.station("s1", "--min-devices", "3", "--gather", "30")
    for device, name in enumerate(federation.device_names):
        park.device(name, station, source=f"npz:{write_device(federation, device, tmp_path / f'{name}.npz')}")
    station.wait_ready(3)
    reply = client.app(asked(order_content(order(iterations=3))), context(factory=0, station=str(tmp_path / "s1")))
    assert not reply.has_error(), reply.error
    again = station.round(iterations=3)  # the station gives the same order the same answer
    assert reply.content["metrics"]["iterations"] == 3
    assert reply.content["metrics"]["num-examples"] == 3 * 3 * 5
    np.testing.assert_array_equal(reply.content["arrays"]["dense.bias"].numpy(), again.weights[-4:])
    assert np.abs(again.weights).max() > 0


def test_who_is_this() -> None:
    reply = client.app(asked(RecordDict(), "query"), context(factory=7, station="anywhere"))
    assert reply.content["facts"]["factory"] == 7


@pytest.mark.parametrize(
    "config", [{}, {"factory": 0}, {"factory": "0", "station": "s"}, {"factory": -1, "station": "s"}]
)
def test_a_supernode_without_its_config_says_what_to_do(config: dict[str, Any], capsys: Any) -> None:
    for kind in ("query", "train"):
        reply = client.app(asked(order_content(order()), kind), context(**config))
        assert "--node-config 'factory=0" in reply.error.reason
    assert capsys.readouterr().err.count("fedgs: ") == 2


def test_a_station_that_is_not_there_is_an_error_and_no_crash(tmp_path: Path) -> None:
    reply = client.app(asked(order_content(order())), context(factory=0, station=str(tmp_path)))
    assert "nobody answers" in reply.error.reason
    reply = client.app(asked(RecordDict()), context(factory=0, station=str(tmp_path)))
    assert "without config.order" in reply.error.reason


class Network(Grid):
    """SuperNodes in this process: each has a config, answers at the second look, and can be taken away."""

    def __init__(self, **factories: Any) -> None:
        self.nodes = {int(name[1:]): factory for name, factory in factories.items()}
        self.replies: dict[str, Message] = {}
        self.looks: dict[str, int] = {}
        self.trained: list[int] = []

    def get_node_ids(self) -> Iterable[int]:
        return list(self.nodes)

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        sent = []
        for message in messages:
            node = message.metadata.dst_node_id
            name = f"{len(self.replies)}"
            self.replies[name] = self.answer(node, message)
            sent.append(name)
        return sent

    def answer(self, node: int, message: Message) -> Message:
        if message.metadata.message_type == "query":
            return client.app(message, context(factory=self.nodes[node], station="here"))
        self.trained.append(node)
        if self.nodes[node] == 1:
            return Message(Error(2, "the station is away"), reply_to=message)
        return Message(result_content(encode_result(result())), reply_to=message)

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        (name,) = message_ids
        self.looks[name] = self.looks.get(name, 0) + 1
        return [self.replies[name]] if self.looks[name] > 1 else []

    @property
    def run(self) -> Any:
        raise NotImplementedError

    def set_run(self, run: Any) -> None: ...
    def create_message(self, *arguments: Any, **options: Any) -> Any: ...
    def send_and_receive(self, messages: Any, *, timeout: float | None = None) -> Any: ...


@pytest.fixture(autouse=True)
def _no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "LOOK_EVERY", 0.01)


def told(factory: int = 0, **changes: Any) -> Any:
    one = order(number=3, iterations=4, weights=result().weights)
    return replace(one, wanted=replace(one.wanted, factory=factory), **changes)


def test_orders_find_the_supernode_of_their_factory() -> None:
    network = Network(n11=1, n12=0, n13=9, n14=None)
    nodes = SuperNodes(network, 2)

    async def both() -> list[Any]:
        carriers = [FlowerTransport(factory, nodes) for factory in range(2)]
        return await asyncio.gather(
            *(one.run_round(told(factory)) for factory, one in enumerate(carriers)), return_exceptions=True
        )

    good, bad = asyncio.run(both())
    assert good.iterations == 4
    assert isinstance(bad, PeerError)
    assert str(bad) == "station factory-1: the station is away"
    assert sorted(network.trained) == [11, 12]


def test_a_supernode_that_comes_back_under_another_number_is_found() -> None:
    network = Network(n5=0)
    one = FlowerTransport(0, SuperNodes(network, 1))

    async def restarted() -> None:
        await one.run_round(told())
        network.nodes = {}
        with pytest.raises(PeerError, match="no SuperNode of factory 0 is connected"):
            await one.run_round(told())
        network.nodes = {3: 0}
        await one.run_round(told())
        network.nodes = {3: 0, 2: 0}  # the old one is still said to be online
        nodes = SuperNodes(network, 1)
        assert await nodes.node_of(0) in (2, 3)

    asyncio.run(restarted())
    assert network.trained == [5, 3]


def test_a_result_of_another_round_is_refused() -> None:
    one = FlowerTransport(0, SuperNodes(Network(n5=0), 1))
    with pytest.raises(WireError, match="answers round 3"):
        asyncio.run(one.run_round(told(round=4)))


def test_a_supernode_that_does_not_introduce_itself_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "INTRODUCES_WITHIN", 0.1)
    network = Network(n5=0)
    monkeypatch.setattr(network, "pull_messages", lambda message_ids: [])
    with pytest.raises(PeerError, match="no SuperNode of factory 0"):
        asyncio.run(SuperNodes(network, 1).node_of(0))


def test_a_message_that_the_superlink_does_not_take_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    network = Network(n5=0)
    monkeypatch.setattr(network, "push_messages", lambda messages: [None])
    with pytest.raises(PeerError, match="did not take a message"):
        asyncio.run(SuperNodes(network, 1).ask(asked(RecordDict())))


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
