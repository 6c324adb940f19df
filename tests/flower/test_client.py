"""The bridge between a SuperNode and a station, and how the top server finds its way over it."""

import asyncio
import subprocess
import sys
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("flwr")

from flwr.app import Context, Error, Message, RecordDict
from flwr.serverapp import Grid

from fedgs.deploy.round_messages import encode_result
from fedgs.errors import PeerError, WireError
from fedgs.flower import client, transport
from fedgs.flower.messages import order_content, result_content
from fedgs.flower.transport import FlowerTransport, SuperNodes
from tests.deploy.processes import Park, order, write_device
from tests.flower.test_messages import result
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
    federation = small_federation(3, 1)
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
    monkeypatch.setattr(transport, "LOOK_EVERY", 0.01)


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
    monkeypatch.setattr(transport, "INTRODUCES_WITHIN", 0.1)
    network = Network(n5=0)
    monkeypatch.setattr(network, "pull_messages", lambda message_ids: [])
    with pytest.raises(PeerError, match="no SuperNode of factory 0"):
        asyncio.run(SuperNodes(network, 1).node_of(0))


def test_a_message_that_the_superlink_does_not_take_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    network = Network(n5=0)
    monkeypatch.setattr(network, "push_messages", lambda messages: [None])
    with pytest.raises(PeerError, match="did not take a message"):
        asyncio.run(SuperNodes(network, 1).ask(asked(RecordDict())))
