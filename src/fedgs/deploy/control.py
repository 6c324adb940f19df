"""The control service of a station: ``RunRound`` and ``Status``, for the top server over mTLS and for a local bridge.

A bridge (a Flower client, a script) calls through the Unix socket ``control.sock`` in the station's state folder. The
permissions of that folder are the only authentication: it belongs to the station's user alone (0700).

Both calls are served as streams of one message, which look the same on the wire: the caller is checked before its
message is read, so that a device's certificate cannot fill the memory with orders.

The last order and its answer are kept on disk and in memory. The same order again gets the same answer without
training; a damaged file, or an answer that the top server could not decode, is never given. The same order during its
training waits for the one result. A round goes on when its caller disconnects: a restarted top server finds it done.
"""

import asyncio
from hashlib import blake2b
from pathlib import Path
from typing import Any

import grpc

from fedgs.deploy.logs import log
from fedgs.deploy.membership import Member, Roster
from fedgs.deploy.proto import fedgs_wire_pb2 as pb
from fedgs.deploy.round_messages import RoundOrder, decode_order, decode_result, encode_result
from fedgs.deploy.rounds import RoundTrainer
from fedgs.deploy.station import Station
from fedgs.deploy.station_state import StationOptimizer
from fedgs.deploy.tls import peer_identity
from fedgs.deploy.wire import message_of, serialise
from fedgs.errors import FedgsError, IdentityError, OutputError, WireError
from fedgs.files import write_bytes

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
        self.name, self.station = name, station
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
            log.error("round failed", extra={"reason": str(error)})
            await context.abort(grpc.StatusCode.FAILED_PRECONDITION, str(error))
        raise AssertionError

    async def result_of(self, digest: bytes, order: RoundOrder) -> bytes:
        """Return the result of an order: remembered, under way, or new."""
        if self._running is not None and self._running[0] == digest and not self._running[1].done():
            return await _finished(self._running[1])
        remembered = self._remembered(digest)
        if remembered is not None:
            log.info("round is repeated from memory", extra={"round": order.round})
            return remembered
        if self._running is not None and not self._running[1].done():
            self._running[1].cancel()  # the top server has given another order
            await asyncio.wait({self._running[1]})
        task = asyncio.ensure_future(self._carry_out(digest, order))
        self._running = digest, task
        return await _finished(task)

    async def _carry_out(self, digest: bytes, order: RoundOrder) -> bytes:
        log.info("round begins", extra={"run": order.run, "round": order.round, "iterations": len(order.rates)})
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
                log.error(
                    "the result is not on disk; a restart would train the round again", extra={"reason": str(error)}
                )
        log.info(
            "round ends",
            extra={
                "round": order.round,
                "iterations": result.iterations,
                "loss": round(result.loss, 4),
                "divergence": round(result.divergence, 4),
                **result.events,
            },
        )
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
        progress, station = self.trainer.progress, self.station
        devices = [
            message_of(
                pb.DeviceStatus,
                member,
                state=_state(member, station.roster),
                failures=member.all_failures,
                last_failure=member.last_failure[:200],
            )
            for member in sorted(station.roster.members.values(), key=lambda member: member.name)
        ]
        status = message_of(
            pb.StationStatus,
            progress,
            name=self.name,
            iterations_per_second=progress.pace,
            devices=devices,
            sent_bytes=station.sent,
            received_bytes=station.received,
        )
        return serialise(status)

    async def _check_caller(self, context: Any) -> None:
        if str(context.peer()).startswith("unix:"):
            return
        try:
            peer_identity(context, "top", self.station.insecure)
        except IdentityError as error:
            self.station.refuse(str(error))
            await context.abort(grpc.StatusCode.PERMISSION_DENIED, str(error))


def _state(member: Member, roster: Roster) -> str:
    if member.link is None:
        return "offline"
    if roster.is_quarantined(member):
        return "quarantined"
    if member.asked is not None:
        return "training"
    return "waiting" if member.ready is None else "ready"
