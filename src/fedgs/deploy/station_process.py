"""The process of ``fedgs station``: a server for devices, and the control service for rounds.

``RunRound`` and ``Status`` are served to the top server over mTLS, and to a local bridge (a Flower client, a script)
through the Unix socket ``control.sock`` in the station's state folder. The permissions of that folder are the only
authentication there: it belongs to the station's user alone (0700).

Both calls are served as streams of one message, which look the same on the wire: the caller is checked before its
message is read, so that a device's certificate cannot fill the memory with orders.

The last order and its answer are kept on disk and in memory. The same order again gets the same answer without
training; a damaged file, or an answer that the top server could not decode, is never given. The same order during its
training waits for the one result. A round goes on when its caller disconnects: a restarted top server finds it done.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from hashlib import blake2b
from pathlib import Path
from typing import Any

import grpc

from fedgs.deploy.logs import RefusedHandshakes, log, set_up
from fedgs.deploy.metrics import StationMetrics, serve_metrics
from fedgs.deploy.pki import Bundle
from fedgs.deploy.process import claim, end_with_parent, socket_path, until_stopped
from fedgs.deploy.proto import fedgs_wire_pb2 as pb
from fedgs.deploy.round_messages import LARGEST_ROUND, RoundOrder, decode_order, decode_result, encode_result
from fedgs.deploy.rounds import RoundTrainer, StationOptimizer
from fedgs.deploy.settings import StationSettings
from fedgs.deploy.station import Station
from fedgs.deploy.transport import check_plain, peer_identity, server_credentials, server_options, split_address
from fedgs.deploy.wire import LARGEST_MESSAGE, serialise
from fedgs.errors import FedgsError, IdentityError, OutputError, PeerError, WireError
from fedgs.files import write_bytes, write_text

ADDRESSES = "addresses.txt"
_DIGEST = 16
REMEMBERED = "last-round.bin"


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

    def __init__(self, name: str, station: Station, folder: Path) -> None:
        self.name, self.station, self.folder = name, station, folder
        self.trainer = RoundTrainer(station, optimizer=StationOptimizer(folder))
        self._file = folder / REMEMBERED
        self._running: tuple[bytes, asyncio.Task[bytes]] | None = None
        self._last: tuple[bytes, bytes] | None = None
        """Digest of the order that was carried out last, and its answer."""

    async def run_round(self, _: Any, context: Any) -> bytes:
        """Carry out an order, or give the result of the same order once more."""
        await self._check_caller(context)
        request = await context.read()
        try:
            if request is grpc.aio.EOF:
                raise WireError("no message")
            order = decode_order(request)
        except WireError as error:
            self.station.refuse(f"an invalid order: {error}")
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))
            raise AssertionError from None  # abort never returns
        try:
            return await self.result_of(_digest(request), order)
        except _ReplacedError as error:
            await context.abort(grpc.StatusCode.ABORTED, str(error))
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
        if self._running is not None and not self._running[1].done():
            self._running[1].cancel()  # the top server has given another order
            await asyncio.wait({self._running[1]})
        task = asyncio.ensure_future(self._carry_out(digest, order))
        self._running = digest, task
        return await _finished(task)

    async def _carry_out(self, digest: bytes, order: RoundOrder) -> bytes:
        log.info("round begins", run=order.run, round=order.round, iterations=len(order.rates))
        result = await self.trainer.carry_out(order)
        answer = encode_result(result)
        # An answer that the top server cannot decode is not kept: the same order again may give a better one.
        await asyncio.to_thread(decode_result, answer)
        if result.iterations:  # where no device trained, the same order again may give more
            await asyncio.to_thread(self.trainer.optimizer.save)
            self._last = digest, answer
            try:
                await asyncio.to_thread(write_bytes, self._file, digest + _digest(answer) + answer, durable=True)
            except OutputError as error:
                log.error("the result is not on disk; a restart would train the round again", reason=str(error))
        means = {"loss": round(result.loss, 4), "divergence": round(result.divergence, 4)}
        facts: dict[str, Any] = {"iterations": result.iterations, **means, **result.events}
        log.info("round ends", round=order.round, **facts)
        return answer

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
        await self._check_caller(context)
        return serialise(self.report())

    def report(self) -> pb.StationStatus:
        """Return the progress of the round and the state of every device."""
        roster, status = self.station.roster, pb.StationStatus()
        status.CopyFrom(self.trainer.progress)
        status.name, status.sent_bytes, status.received_bytes = self.name, self.station.sent, self.station.received
        for member in sorted(roster.members.values(), key=lambda member: member.name):
            status.devices.add(
                name=member.name, state=roster.state(member), turns=member.turns, failures=member.all_failures,
                last_failure=member.last_failure[:200],
            )  # fmt: skip
        return status

    async def _check_caller(self, context: Any) -> None:
        if str(context.peer()).startswith("unix:"):
            return
        try:
            peer_identity(context, "top", self.station.insecure)
        except IdentityError as error:
            self.station.refuse(str(error))
            await context.abort(grpc.StatusCode.PERMISSION_DENIED, str(error))


def run_station(
    name: str, listen: str, state: Path, settings: StationSettings, bundle: Bundle | None, control: str | None = None
) -> None:
    """Serve devices at ``listen`` and the top server at ``control`` until told to stop.

    ``bundle`` None: plain text on the loopback. ``control`` None: the Unix socket in ``state`` is the only way.
    """
    end_with_parent()
    for address in (listen, control):
        if address is not None and bundle is None:
            check_plain(address)
    socket_path(state)  # too long a path is refused before anything is written
    with claim(state, "station"):
        metrics = StationMetrics()
        serve_metrics(metrics.registry, settings.metrics)
        station = Station(settings, metrics, insecure=bundle is None)
        handshakes = RefusedHandshakes(lambda reason: station.refuse(f"TLS: {reason}"))
        set_up(settings.log_level, settings.log_json, handshakes.stderr)
        try:
            asyncio.run(until_stopped(_serve(Control(name, station, state), listen, control, bundle), bundle))
        finally:
            handshakes.close()


async def _serve(service: Control, listen: str, control: str | None, bundle: Bundle | None) -> None:
    async with serving(service, listen, control, bundle):
        await asyncio.to_thread(_warm_up)
        await asyncio.Event().wait()  # for ever


@asynccontextmanager
async def serving(
    service: Control, listen: str, control: str | None, bundle: Bundle | None
) -> AsyncIterator[tuple[str, str | None]]:
    """Serve while the block lasts; give the addresses for devices and for the top server, with their ports."""
    station, socket = service.station, socket_path(service.folder)
    keepalive = station.settings.keepalive
    edge = grpc.aio.server(options=server_options(keepalive, LARGEST_MESSAGE))
    attach = grpc.stream_stream_rpc_method_handler(station.attach)
    edge.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("fedgs.v1.Edge", {"Attach": attach}),))
    inner = grpc.aio.server(options=server_options(keepalive, LARGEST_ROUND))
    run_round, status = map(grpc.stream_unary_rpc_method_handler, (service.run_round, service.status))
    methods = {"RunRound": run_round, "Status": status}
    inner.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("fedgs.v1.StationControl", methods),))
    devices = _listen(edge, listen, bundle, "--listen")
    tops = None if control is None else _listen(inner, control, bundle, "--control")
    try:
        inner.add_insecure_port(f"unix:{socket}")
    except RuntimeError:
        raise PeerError(f"{socket}: cannot be listened on") from None
    try:
        await edge.start()
        await inner.start()
        socket.chmod(0o600)
        write_text(service.folder / ADDRESSES, f"devices {devices}\n" + (f"top {tops}\n" if tops else ""))
        log.info("station serves", station=service.name, devices=devices, top=tops, socket=str(socket))
        yield devices, tops
    finally:
        log.info("station stops")
        await station.say_goodbye("the station stops")
        await asyncio.gather(edge.stop(0.5), inner.stop(0.5))
        socket.unlink(missing_ok=True)


def _warm_up() -> None:
    """Load the compiled selection while devices connect; the first time it is compiled, which takes a while."""
    import numpy as np

    from fedgs.selection import SelectionProblem
    from fedgs.selection.solve import warm_up

    warm_up("gbp-cs", SelectionProblem(np.eye(3), np.full(3, 1 / 3), 1))


def _listen(server: Any, address: str, bundle: Bundle | None, option: str) -> str:
    host, _ = split_address(address)
    try:
        if bundle is None:
            port = server.add_insecure_port(address)
        else:
            port = server.add_secure_port(address, server_credentials(bundle))
    except RuntimeError:
        port = 0
    if not port:
        raise PeerError(f"{option} {address}: cannot be listened on; is it in use, or not an address of this machine?")
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
