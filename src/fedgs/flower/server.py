"""The ServerApp: the top server of :mod:`fedgs.deploy`, with SuperNodes for stations.

A restarted SuperLink does not resume its runs. This app keeps a checkpoint of its own in ``top.state``: the same
``flwr run`` once more resumes from there, and a round that a station has already done is not done twice.

In the run config of ``flwr run`` the keys ``top.*`` are how the top server behaves, everything else is a setting of
fedgs. Flower lets a run override only keys that the app's file has; an empty text there stands for "not given".

    [tool.flwr.app.config.training]
    rounds = 20                          # as fedgs run --set training.rounds=20
    [tool.flwr.app.config.top]
    stations = 2

A new SuperNode is asked which factory it is. A SuperNode that reconnects under another node id is found again; the top
server asks until a station answers, as it does over gRPC.
"""

import asyncio
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from flwr.app import ConfigRecord, Context, Message, MessageType, RecordDict
from flwr.serverapp import Grid, ServerApp
from pydantic import ConfigDict, Field, ValidationError

from fedgs.config import assign, checked_settings
from fedgs.deploy.logs import OnceEach, log, set_up
from fedgs.deploy.round_messages import RoundOrder, RoundResult
from fedgs.deploy.settings import TopSettings
from fedgs.deploy.station_list import StationList
from fedgs.deploy.top_client import shown_score
from fedgs.deploy.top_process import carry_out
from fedgs.deploy.top_state import MODEL
from fedgs.deploy.transport import checked_result
from fedgs.errors import ConfigError, FedgsError, PeerError
from fedgs.flower.client import FACTORY, FACTS, order_content, result_of
from fedgs.flower.strategies import flower_rule
from fedgs.settings import Settings

app = ServerApp()
LOOK_EVERY = 1.0
"""Seconds between two looks for a reply; Flower's own loop takes 3."""
INTRODUCES_WITHIN = 60.0
"""Seconds a new SuperNode has to say who it is; its first message makes it install the app."""


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Carry out the run to its last round."""
    set_up()
    try:
        settings, options = options_of(context.run_config)
        set_up(options.log_level, options.log_json, process="top")
        nodes = SuperNodes(grid, options.stations)
        transports = [FlowerTransport(factory, nodes) for factory in range(options.stations)]
        rule = flower_rule(settings.server)
        last = asyncio.run(carry_out(settings, options, Path(options.state), StationList(transports), rule))
    except FedgsError as error:
        log.error(str(error))  # in one line; Flower adds the traceback
        raise
    score = shown_score(last.metrics[-1])
    shown: dict[str, Any] = {"score": score} if score else {}
    log.info("run done", rounds=last.round, **shown, model=Path(options.state) / MODEL)


class TopOptions(TopSettings):
    """The keys ``top.*``, written with a dash where a name here has an underscore."""

    model_config = ConfigDict(alias_generator=lambda name: name.replace("_", "-"))

    stations: int = Field(ge=1, description="SuperNodes of the run (M), whose factories are 0 to M − 1")
    state: str = Field(description="folder of this run: checkpoint, metrics, model; seen from the SuperLink's folder")


def options_of(run_config: Mapping[str, Any]) -> tuple[Settings, TopOptions]:
    """Return the settings of the run and how the top server behaves; what is wrong is one :class:`ConfigError`."""
    values: dict[str, Any] = {}
    for key, value in run_config.items():
        if value != "":
            assign(values, key, value, f"run config: {key}")
    try:
        options = TopOptions.model_validate(values.pop("top", {}))
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        raise ConfigError(f"run config: top.{where}: {first['msg'][0].lower()}{first['msg'][1:]}") from None
    return checked_settings(values, "run config"), options


class SuperNodes:
    """The SuperNodes of a run: who is who, and a way to ask one and wait for its reply."""

    def __init__(self, grid: Grid, factories: int) -> None:
        self._grid, self._all = grid, factories
        self._known: dict[int, int] = {}
        """Node to factory, the newest last."""
        self._grid_free, self._introducing = asyncio.Lock(), asyncio.Lock()
        self._once = OnceEach()

    async def ask(self, message: Message) -> Message:
        """Send a message and wait for its reply, which may be an error."""
        (sent,) = await self._call(self._grid.push_messages, [message])
        if not sent:
            raise PeerError(f"SuperNode {message.metadata.dst_node_id}: the SuperLink did not take a message for it")
        while True:
            for reply in await self._call(self._grid.pull_messages, [sent]):
                return reply
            await asyncio.sleep(LOOK_EVERY)

    async def node_of(self, factory: int) -> int:
        """Return the SuperNode of a factory."""
        found = await self._connected(factory)
        if found is None:
            async with self._introducing:
                await self._introduce()
            found = await self._connected(factory)
        if found is None:
            raise PeerError(f"no SuperNode of factory {factory} is connected")
        return found

    async def _connected(self, factory: int) -> int | None:
        online = set(await self._call(self._grid.get_node_ids))
        self._known = {node: number for node, number in self._known.items() if node in online}
        nodes = [node for node, number in self._known.items() if number == factory]
        if len(nodes) > 1:
            self._once.warning("two SuperNodes of one factory; the newer one is asked", factory=factory)
        return nodes[-1] if nodes else None

    async def _introduce(self) -> None:
        """Ask every SuperNode that is not known yet who it is."""
        strangers = sorted(set(await self._call(self._grid.get_node_ids)) - self._known.keys())
        await asyncio.gather(*(self._ask_name(node) for node in strangers))

    async def _ask_name(self, node: int) -> None:
        try:
            async with asyncio.timeout(INTRODUCES_WITHIN):
                reply = await self.ask(Message(RecordDict(), node, MessageType.QUERY))
        except TimeoutError:
            self._once.warning("a SuperNode does not say which factory it is", node=node)
            return
        if reply.has_error():
            self._once.warning("a SuperNode does not know which factory it is", node=node, reason=reply.error.reason)
            return
        facts = reply.content.get(FACTS)
        factory = facts.get(FACTORY) if isinstance(facts, ConfigRecord) else None
        if not isinstance(factory, int) or not 0 <= factory < self._all:
            self._once.warning("a SuperNode of a factory that is not in the run", node=node, factory=factory)
            return
        log.info("SuperNode joined", node=node, factory=factory)
        self._known[node] = factory

    async def _call(self, function: Callable[..., Any], *arguments: Any) -> Any:
        # The grid is one HTTP client and blocks, for ever where the SuperLink has gone. The loop wakes up meanwhile:
        # Flower ends its processes by a signal from a thread of their own, which a sleeping loop would not notice.
        async with self._grid_free:
            task = asyncio.ensure_future(asyncio.to_thread(function, *arguments))
            while not (await asyncio.wait({task}, timeout=0.5))[0]:
                pass
            return task.result()


class FlowerTransport:
    """The way to one station, through its SuperNode."""

    def __init__(self, factory: int, nodes: SuperNodes) -> None:
        self.name, self._factory, self._nodes = f"factory-{factory}", factory, nodes

    async def find(self) -> int:
        """Return the factory."""
        return self._factory

    async def run_round(self, order: RoundOrder) -> RoundResult:
        """Let the station carry out an order."""
        node = await self._nodes.node_of(self._factory)
        message = Message(order_content(order), node, MessageType.TRAIN, group_id=str(order.round))
        reply = await self._nodes.ask(message)
        if reply.has_error():
            raise PeerError(f"station {self.name}: {reply.error.reason or f'error {reply.error.code}'}")
        return checked_result(result_of(reply.content), order, self.name)
