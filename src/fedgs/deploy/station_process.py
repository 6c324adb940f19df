"""The process of ``fedgs station``: a server for devices, and the control service for rounds.

``RunRound`` and ``Status`` are served to the top server over mTLS, and to a local bridge (a Flower client, a script)
through the Unix socket ``control.sock`` in the station's state folder. The permissions of that folder are the only
authentication there: it belongs to the station's user alone (0700).

The last order and its answer are kept on disk and in memory. The same order again gets the same answer without
training; a damaged file, or an answer that the top server could not decode, is never given. The same order during its
training waits for the one result. A round goes on when its caller disconnects: a restarted top server finds it done.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager, nullcontext, suppress
from hashlib import blake2b
from pathlib import Path
from typing import Any

import grpc
import numpy as np
from google.protobuf.message import DecodeError

from fedgs.deploy.connections import peer_of, raise_limit
from fedgs.deploy.guard import Guard, listen
from fedgs.deploy.handshakes import RefusedHandshakes
from fedgs.deploy.lease import Lease, LeaseError
from fedgs.deploy.logs import log, recent, set_up
from fedgs.deploy.metrics import StationMetrics, served_metrics
from fedgs.deploy.pki import CERTIFICATE, ROLES, Bundle, read_certificate
from fedgs.deploy.process import claim, end_with_parent, note_addresses, socket_path, until_stopped
from fedgs.deploy.proto import fedgs_wire_pb2 as pb
from fedgs.deploy.round_messages import (
    LARGEST_ROUND,
    RoundOrder,
    RoundResult,
    decode_order,
    decode_result,
    encode_result,
)
from fedgs.deploy.round_state import PartialRound, StationOptimizer
from fedgs.deploy.rounds import RoundTrainer
from fedgs.deploy.screening import Screen
from fedgs.deploy.settings import StationSettings
from fedgs.deploy.station import RELEASED, Station
from fedgs.deploy.transport import check_plain, server_options, split_address
from fedgs.deploy.wire import LARGEST_MESSAGE, serialise
from fedgs.errors import FedgsError, OutputError, PeerError, WireError
from fedgs.files import write_bytes

_DIGEST = 16
REMEMBERED, PART = "last-round.bin", "part-round.npz"
GOODBYE = 3.0
"""Seconds of ``--drain`` that it takes to tell devices and close connections."""


class _ReplacedError(FedgsError):
    """Another order has taken the place of this one."""


def _digest(data: bytes) -> bytes:
    return blake2b(data, digest_size=_DIGEST).digest()


async def _finished(task: "asyncio.Task[bytes]") -> bytes:
    """Wait for a round; a caller that stops waiting does not stop it."""
    await asyncio.wait({task})
    if task.cancelled():
        raise _ReplacedError("another order has taken the place of this one")
    return task.result()


class Control:
    """Answers ``RunRound`` and ``Status``."""

    def __init__(self, name: str, station: Station, folder: Path, bundle: Bundle | None = None) -> None:
        self.name, self.station, self.folder = name, station, folder
        self.trainer = RoundTrainer(station, optimizer=StationOptimizer(folder), screen=Screen(folder))
        self.lease = Lease(folder)
        self._file = folder / REMEMBERED
        self._running: tuple[bytes, asyncio.Task[bytes]] | None = None
        self._last: tuple[bytes, bytes] | None = None
        """Digest of the order that was carried out last, and its answer."""
        self.guard = Guard(station.certificates, station.doorkeeper, station.insecure, station.refuse)
        self.serves, self.bundle = False, bundle
        self.sent = self.received = 0
        """Bytes of rounds exchanged with the top server since the start."""

    async def run_round(self, _: Any, context: Any) -> bytes:
        """Carry out an order, or give the result of the same order once more."""
        return await self.guard.checked(context, ["top"], self._answer(context))

    async def _answer(self, context: Any) -> bytes:
        request = await context.read()
        try:
            if request is grpc.aio.EOF:
                raise WireError("no message")
            order = decode_order(request)
        except WireError as error:
            self.station.refuse(f"an invalid order: {error}")
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))
            raise AssertionError from None  # abort never returns
        self.received += len(request)
        local = str(context.peer()).startswith("unix:")  # a bridge: whoever sends orders through it sees to it itself
        try:
            with nullcontext() if local else self.lease.held(order.run, dict(context.invocation_metadata() or ())):
                self.station.released = order.released
                if order.released:
                    return await self.release(order)
                answer = await self.result_of(_digest(request), order)
            self.sent += len(answer)
            return answer
        except _ReplacedError as error:
            await context.abort(grpc.StatusCode.ABORTED, str(error))
        except LeaseError as error:  # whoever waits for the lease asks every few seconds: no round has failed
            self.station.refuse(f"the run {order.run!r}: {error}", peer_of(context.peer())[0])
            await context.abort(grpc.StatusCode.FAILED_PRECONDITION, str(error))
        except FedgsError as error:
            log.error("round failed", reason=str(error))
            await context.abort(grpc.StatusCode.FAILED_PRECONDITION, str(error))
        raise AssertionError

    async def result_of(self, digest: bytes, order: RoundOrder) -> bytes:
        """Return the result of an order: remembered, under way, or new."""
        if self._running is not None and self._running[0] == digest and not self._running[1].done():
            return await _finished(self._running[1])
        remembered = self._remembered(digest)
        if remembered is not None:
            log.info("round is repeated from memory", round=order.round)
            return remembered
        await self._give_up()  # the top server has given another order
        task = asyncio.ensure_future(self._carry_out(digest, order))
        self._running = digest, task
        return await _finished(task)

    async def release(self, order: RoundOrder) -> bytes:
        """Leave the run: end the round that is under way, and send the devices to other stations."""
        log.info("station is released", run=order.run)
        await self._give_up()
        await self.station.say_goodbye(RELEASED)
        nothing = RoundResult(order.run, order.round, order.shapes, order.weights, 0, 0, 0.0, 0.0, 0, np.empty(0))
        return encode_result(nothing)

    async def _give_up(self) -> None:
        if self._running is not None and not self._running[1].done():
            self._running[1].cancel()
            await asyncio.wait({self._running[1]})

    async def _carry_out(self, digest: bytes, order: RoundOrder) -> bytes:
        log.info("round begins", run=order.run, round=order.round, iterations=len(order.rates))
        part = await asyncio.to_thread(PartialRound.load, self.folder / PART, digest)
        if part is not None:
            log.info("round goes on", round=order.round, iteration=part.iteration)
        result = await self.trainer.carry_out(order, part)
        answer = encode_result(result)
        # An answer that the top server cannot decode is not kept: the same order again may give a better one.
        await asyncio.to_thread(decode_result, answer)
        if result.iterations:  # where no device trained, the same order again may give more
            await asyncio.to_thread(self.trainer.optimizer.save)
            self.trainer.screen.save()
            self._last = digest, answer
            try:
                await asyncio.to_thread(write_bytes, self._file, digest + _digest(answer) + answer, durable=True)
            except OutputError as error:
                log.error("the result is not on disk; a restart would train the round again", reason=str(error))
        (self.folder / PART).unlink(missing_ok=True)
        means = {"loss": round(result.loss, 4), "divergence": round(result.divergence, 4)}
        facts: dict[str, Any] = {"iterations": result.iterations, **means, **result.events}
        log.info("round ends", round=order.round, **facts)
        return answer

    async def drain(self) -> None:
        """Let the iteration under way come to its end, or give it up in time; keep what the round has come to."""
        if self._running is None or self._running[1].done():
            return
        digest, task = self._running
        self.trainer.draining = True
        self.station.roster.changed.set()  # whoever waits for devices
        await asyncio.wait({task}, timeout=max(0.0, self.station.settings.drain - GOODBYE))
        task.cancel()
        await asyncio.wait({task}, timeout=1.0)
        part = self.trainer.part
        unfinished = not task.done() or task.cancelled() or task.exception() is not None
        if unfinished and part is not None:
            try:
                self.trainer.screen.save()
                self.trainer.optimizer.save()
                part.save(self.folder / PART, digest)
            except OutputError as error:
                log.error("the round is not on disk; a restart would train it from its beginning", reason=str(error))
            else:
                log.info("round is kept", iteration=part.iteration)

    def _remembered(self, digest: bytes) -> bytes | None:
        if self._last is not None and self._last[0] == digest:
            return self._last[1]
        try:
            content = self._file.read_bytes()
        except OSError:
            return None
        order, check, answer = content[:_DIGEST], content[_DIGEST : 2 * _DIGEST], content[2 * _DIGEST :]
        return answer if order == digest and check == _digest(answer) else None

    async def status(self, _: Any, context: Any) -> bytes:
        """Answer with the progress of the round and the state of every device."""
        return await self.guard.checked(context, ["top"], self._status(context))

    async def _status(self, context: Any) -> bytes:
        data = await context.read()
        try:
            asked = pb.StatusIn.FromString(b"" if data is grpc.aio.EOF else data)
        except DecodeError:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, "not a question about the status")
        return serialise(self.report(asked.events))

    def report(self, events: int = 0) -> pb.StationStatus:
        """Return the progress of the round, the state of every device, and the events after number ``events``."""
        roster, status = self.station.roster, pb.StationStatus()
        status.CopyFrom(self.trainer.progress)
        status.name, status.sent_bytes, status.received_bytes = self.name, self.station.sent, self.station.received
        status.top_sent_bytes, status.top_received_bytes = self.sent, self.received
        status.events.extend(recent.after(events))
        for member in roster.known:
            status.devices.add(
                name=member.name, state=roster.state(member), turns=member.turns, failures=member.all_failures,
                last_failure=member.last_failure[:200],
            )  # fmt: skip
        return status

    async def unready(self) -> str:
        """Return why no device can attach; "" where one can."""
        if not self.serves:
            return "the station does not serve"
        if self.trainer.draining or self.bundle is None:
            return "the station stops" if self.trainer.draining else ""
        certificates, own = self.station.certificates, self.bundle.folder / CERTIFICATE
        return self.bundle.fault("station") or certificates.fault(read_certificate(own))


def run_station(
    name: str, listen: str, state: Path, settings: StationSettings, bundle: Bundle | None, control: str | None = None
) -> None:
    """Serve devices at ``listen`` and the top server at ``control`` until told to stop.

    ``bundle`` None: plain text on the loopback. ``control`` None: the Unix socket in ``state`` is the only way.
    """
    end_with_parent()
    raise_limit()
    for address in (listen, control):
        if address is not None and bundle is None:
            check_plain(address)
    socket_path(state)  # too long a path is refused before anything is written, and so is what is no address
    if settings.metrics is not None:
        split_address(settings.metrics)
    with claim(state, "station"):
        station = Station(settings, StationMetrics(settings.metrics_devices), bundle)
        handshakes = RefusedHandshakes(lambda reason, address: station.refuse(f"TLS: {reason}", address))
        set_up(settings.log_level, settings.log_json, handshakes.stderr, f"station {name}")
        try:
            asyncio.run(until_stopped(_serve(Control(name, station, state, bundle), listen, control, bundle), bundle))
        finally:
            handshakes.close()


async def _serve(service: Control, listen: str, control: str | None, bundle: Bundle | None) -> None:
    async with serving(service, listen, control, bundle):
        try:
            with suppress(OSError):  # no descriptor is free: then the first selection loads it
                await asyncio.to_thread(warm_up_selection)
            await asyncio.Event().wait()  # for ever
        finally:
            await service.drain()


@asynccontextmanager
async def serving(
    service: Control, address: str, control: str | None, bundle: Bundle | None
) -> AsyncIterator[tuple[str, str | None]]:
    """Serve while the block lasts; give the addresses for devices and for the top server, with their ports."""
    station, socket = service.station, socket_path(service.folder)
    keepalive = station.settings.keepalive
    edge = grpc.aio.server(options=server_options(keepalive, LARGEST_MESSAGE))
    attach = grpc.stream_stream_rpc_method_handler(station.attach)
    services = ("fedgs.v1.Edge", "fedgs.v1.StationControl")
    edge.add_generic_rpc_handlers(
        (
            grpc.method_handlers_generic_handler("fedgs.v1.Edge", {"Attach": attach}),
            service.guard.health(service.unready, services, ROLES),
        )
    )
    inner = grpc.aio.server(options=server_options(keepalive, LARGEST_ROUND))
    run_round, status = map(grpc.stream_unary_rpc_method_handler, (service.run_round, service.status))
    methods = {"RunRound": run_round, "Status": status}
    inner.add_generic_rpc_handlers(
        (
            grpc.method_handlers_generic_handler("fedgs.v1.StationControl", methods),
            service.guard.health(service.unready, services, ("top", "operator")),
        )
    )
    devices = listen(edge, address, bundle, "--listen")
    tops = None if control is None else listen(inner, control, bundle, "--control")
    try:
        inner.add_insecure_port(f"unix:{socket}")
    except RuntimeError:
        raise PeerError(f"{socket}: cannot be listened on") from None
    watching = asyncio.ensure_future(station.certificates.watch())
    ports = [split_address(address)[1] for address in (devices, tops) if address is not None]
    guarding = ExitStack()
    try:
        told = station.settings.metrics
        metrics = guarding.enter_context(served_metrics(station.metrics.registry, told, service.unready))
        guarding.enter_context(station.doorkeeper.watching(*ports))
        await edge.start()
        await inner.start()
        socket.chmod(0o600)
        service.serves = True
        note_addresses(service.folder, devices=devices, top=tops, metrics=metrics)
        log.info("station serves", station=service.name, devices=devices, top=tops, metrics=metrics, socket=str(socket))
        yield devices, tops
    finally:
        service.serves = False
        watching.cancel()
        guarding.close()
        log.info("station stops")
        await station.say_goodbye("the station stops")
        await asyncio.gather(edge.stop(0.5), inner.stop(0.5))
        socket.unlink(missing_ok=True)


def warm_up_selection() -> None:
    """Load the compiled selection while devices connect; the first time it is compiled, which takes a while."""
    from fedgs.selection import SelectionProblem
    from fedgs.selection.solve import warm_up

    warm_up("gbp-cs", SelectionProblem(np.eye(3), np.full(3, 1 / 3), 1))
