"""How a run goes, for operators: what the top server tells at ``--listen`` (:mod:`fedgs.deploy.top_client` asks).

``Status`` is for operators and top servers, over mTLS; it changes nothing. Stations are asked for their own status
while somebody wants to know, and not more often than every ``FRESH`` seconds, however many want to know.
"""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager
from typing import Any

import grpc
from cryptography import x509
from google.protobuf.message import DecodeError

from fedgs.deploy.connections import Doorkeeper
from fedgs.deploy.guard import Guard, listen
from fedgs.deploy.logs import OnceEach, Recent, recent
from fedgs.deploy.metrics import TopMetrics
from fedgs.deploy.pki import Bundle, hosts_in, read_certificate
from fedgs.deploy.proto import fedgs_wire_pb2 as pb
from fedgs.deploy.revocation import Certificates
from fedgs.deploy.settings import TopSettings
from fedgs.deploy.station_list import StationList
from fedgs.deploy.top_client import SERVICE
from fedgs.deploy.top_state import TopState
from fedgs.deploy.transport import (
    GrpcTransport,
    Transport,
    check_plain,
    server_options,
    split_address,
)
from fedgs.deploy.wire import LARGEST_MESSAGE, STATUS, serialise
from fedgs.errors import FedgsError, IdentityError, PeerError
from fedgs.settings import Settings

FRESH, PATIENCE = 0.4, 3.0
"""Seconds that a station's answer counts, and that it may take."""
IDLE = 4.0
"""Seconds after which a connection that asks a station nothing more is closed, long before the station ends it."""
LAST_LOOK = 2.0
"""Seconds that the end of a run waits for those who look at it."""


class StationLink:
    """How one station is."""

    def __init__(self, transport: Transport, events: Recent) -> None:
        self._transport, self._recent = transport, events
        self._report = pb.StationReport(name=transport.name, fault="no answer yet")
        self._at, self._event = 0.0, 1
        self._asking: asyncio.Task[None] | None = None
        self._open: AsyncExitStack | None = None
        self._closing: asyncio.Task[None] | None = None

    async def report(self) -> pb.StationReport:
        """Return how the station is now, or why it does not say."""
        if time.monotonic() - self._at > FRESH:
            if self._asking is None or self._asking.done():
                self._asking = asyncio.ensure_future(self._ask())
            await asyncio.wait({self._asking}, timeout=PATIENCE)
        return self._report

    async def _ask(self) -> None:
        if self._closing is not None:
            self._closing.cancel()
        known = self._open is not None
        report = await self._answer()
        if report.fault and known:  # the station was started again, or has another certificate
            report = await self._answer()
        self._report, self._at = report, time.monotonic()
        self._closing = asyncio.ensure_future(self._close_later())

    async def _answer(self) -> pb.StationReport:
        name = self._report.name
        try:
            if self._open is None:
                await self._connect()
            if self._server is not None and (fault := self._certificates.fault(self._server)):
                raise IdentityError(fault)
            question = serialise(pb.StatusIn(events=self._event))
            answer = await self._call(question, metadata=self._metadata, timeout=PATIENCE)
            status = pb.StationStatus.FromString(answer)
            self._take(status)
            return pb.StationReport(name=status.name or name, status=status)
        except grpc.aio.AioRpcError as error:
            await self.close()
            return pb.StationReport(name=name, fault=self._dialer.reason(error))
        except (FedgsError, DecodeError) as error:
            await self.close()
            return pb.StationReport(name=name, fault=str(error))

    async def _connect(self) -> None:
        if not isinstance(self._transport, GrpcTransport):
            raise PeerError("not asked: the run does not use gRPC to its stations")
        self._dialer, self._server = self._transport.dialer, None
        pem, bundle = None, self._dialer.bundle
        if bundle is not None:  # the station's certificate may be another one than in the round that is under way
            pem, _ = await self._dialer.look(bundle)
            self._server, self._certificates = x509.load_pem_x509_certificate(pem), Certificates(bundle.folder)
        async with AsyncExitStack() as opening:
            channel = await opening.enter_async_context(self._dialer.channel(pem))
            self._call, self._metadata = channel.unary_unary(STATUS), self._dialer.metadata
            self._open = opening.pop_all()

    async def _close_later(self) -> None:
        await asyncio.sleep(IDLE)
        await self.close()

    def _take(self, status: pb.StationStatus) -> None:
        """Take the events out of a status, into those of the run."""
        for event in status.events:
            self._event = max(self._event, event.number)
            event.process = status.name
            self._recent.add(event)
        del status.events[:]

    async def close(self) -> None:
        """End the connection."""
        if self._closing is not None and self._closing is not asyncio.current_task():
            self._closing.cancel()
        if self._open is not None:
            open_before, self._open = self._open, None
            await open_before.aclose()


class TopView:
    """What operators see of a run."""

    def __init__(self, settings: Settings, options: TopSettings, stations: StationList, metrics: TopMetrics) -> None:
        self.settings, self.options, self._listed, self._metrics = settings, options, stations, metrics
        self.classes: Sequence[str] = ()
        self.score = ""
        """The metric that is shown; "" where the model is not tested."""
        self.state: TopState | None = None
        """After the last round; None before the run has begun."""
        self._links: dict[Transport, StationLink] = {}
        self._once = OnceEach()
        self._asked = 0.0

    async def stations(self) -> list[pb.StationReport]:
        """Return how the stations are."""
        links = [self._links.setdefault(one, StationLink(one, recent)) for one in self._listed.transports]
        return list(await asyncio.gather(*(link.report() for link in links)))

    async def unready(self) -> str:
        """Return why a round cannot be done: too few stations answer."""
        asked = [one for one in self._listed.transports if isinstance(one, GrpcTransport)]
        if not asked:
            return ""
        answering = sum(not report.fault for report in await self.stations())
        needed = self.options.min_stations or len(self._listed.transports)
        return "" if answering >= needed else f"{answering} of {len(asked)} stations answer, {needed} are needed"

    async def status(self, known: pb.TopStatusIn) -> pb.TopStatus:
        """Return how the run goes, for a caller that knows a part of it."""
        stations, state = await self.stations(), self.state
        found = pb.TopStatus(
            rounds=self.settings.training.rounds, solver=self.settings.selection.solver, score=self.score,
            goal=self.settings.eval.target, stations=stations, events=recent.after(max(1, known.events)),
        )  # fmt: skip
        if not known.lines:
            found.classes.extend(self.classes)
        if state is not None:
            found.run, found.round = state.run, state.round
            found.lines.extend(json.dumps(line) for line in state.metrics[known.lines :])
            found.target.extend([] if state.target is None else state.target.tolist())
        return found

    @asynccontextmanager
    async def served(self, address: str | None, bundle: Bundle | None) -> AsyncIterator[str | None]:
        """Answer operators at an address while the block lasts, and give it with its port; None: nobody is answered.

        ``bundle`` None: plain text.
        """
        if address is None:
            yield None
            return
        check_server(address, bundle)
        certificates = Certificates(None if bundle is None else bundle.folder)
        guard = Guard(certificates, Doorkeeper(self._refuse), bundle is None, self._refuse)
        roles = ("top", "operator")

        async def answer(context: Any) -> bytes:
            data = await context.read()
            try:
                known = pb.TopStatusIn.FromString(b"" if data is grpc.aio.EOF else data)
            except DecodeError:
                await context.abort(grpc.StatusCode.INVALID_ARGUMENT, "not a question about the status")
            found = await self.status(known)
            self._asked = time.monotonic()
            return serialise(found)

        async def status(_: Any, context: Any) -> bytes:
            return await guard.checked(context, roles, answer(context))

        server = grpc.aio.server(options=server_options(self.options.keepalive, LARGEST_MESSAGE))
        methods = {"Status": grpc.stream_unary_rpc_method_handler(status)}
        server.add_generic_rpc_handlers(
            (
                grpc.method_handlers_generic_handler(SERVICE, methods),
                guard.health(self.unready, [SERVICE], roles),
            )
        )
        found, watching = listen(server, address, bundle, "--listen"), asyncio.ensure_future(certificates.watch())
        with ExitStack() as guarding:
            try:
                guarding.enter_context(guard.doorkeeper.watching(split_address(found)[1]))
                await server.start()
                yield found
                if time.monotonic() - self._asked < LAST_LOOK:  # let those who look see the last round
                    await asyncio.sleep(LAST_LOOK)
            finally:
                watching.cancel()
                await server.stop(0.5)
                for link in self._links.values():
                    await link.close()

    def _refuse(self, reason: str, address: str) -> None:
        self._metrics.refused.inc()
        self._once.warning("connection refused", reason=reason, address=address)


def check_server(address: str, bundle: Bundle | None) -> None:
    """Refuse plain text anywhere but on the loopback, and a certificate that names no host."""
    if bundle is None:
        check_plain(address)
    elif not hosts_in(read_certificate(bundle.folder / "cert.pem")):
        raise IdentityError(
            f"{bundle.folder / 'cert.pem'}: names no host, so nobody could trust it at {address}; renew it with: fedgs "
            "pki top --renew --host HOST"
        )
