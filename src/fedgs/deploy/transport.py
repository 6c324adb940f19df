"""How ``RunRound`` gets from top server to station: an interface, and gRPC as one transport.

Another transport (Flower, for sites across the Internet) takes the bytes of
:func:`fedgs.deploy.round_messages.encode_order` to the station's socket and the answer back: :func:`call_station`.
"""

from pathlib import Path
from typing import Protocol

import grpc

from fedgs.deploy.identity import Identity
from fedgs.deploy.process import socket_path
from fedgs.deploy.proto import fedgs_wire_pb2 as pb
from fedgs.deploy.round_messages import LARGEST_ROUND, RoundOrder, RoundResult, decode_result, encode_order
from fedgs.deploy.tls import Bundle, Dialer, call_error
from fedgs.deploy.wire import RUN_ROUND, STATUS
from fedgs.errors import PeerError, WireError


class Transport(Protocol):
    """The connection to one station."""

    name: str

    async def run_round(self, order: RoundOrder) -> RoundResult:
        """Let the station carry out an order; :class:`PeerError` where it could not be reached or refused."""
        ...


class GrpcTransport:
    """Connects to the station's control port for every round: a renewed certificate or a restart needs no care."""

    def __init__(self, address: str, bundle: Bundle | None, identity: Identity, keepalive: float) -> None:
        """``bundle`` None: plain text on the loopback, as ``identity``."""
        self.name, self._dialer = address, Dialer(address, identity, bundle, keepalive, LARGEST_ROUND)

    async def run_round(self, order: RoundOrder) -> RoundResult:
        """Let the station carry out an order."""
        async with self._dialer.channel() as channel:
            try:
                call = channel.unary_unary(RUN_ROUND)
                answer = await call(encode_order(order), metadata=self._dialer.metadata)
            except grpc.aio.AioRpcError as error:
                raise PeerError(f"station {self.name}: {self._dialer.reason(error)}") from None
        return checked_result(decode_result(answer), order, self.name)


def checked_result(result: RoundResult, order: RoundOrder, station: str) -> RoundResult:
    """Return a result that answers the order; another one is refused."""
    fault = _fault(result, order)
    if fault:
        raise WireError(f"station {station}: {fault}")
    return result


def _fault(result: RoundResult, order: RoundOrder) -> str:
    """Return why a result does not answer an order; "" where it does."""
    if (result.run, result.round) != (order.run, order.round):
        asked = f"round {order.round} of {order.run!r}"
        return f"answers round {result.round} of {result.run!r}, asked was {asked}"
    difference = order.shapes.difference(result.shapes)
    if difference:
        return f"answers with another model: it {difference}"
    classes = order.task.classes
    if len(result.announced) not in (0, classes):
        return f"announces {len(result.announced)} classes, the task has {classes}"
    if result.iterations > len(order.rates):
        return f"answers {result.iterations} iterations, asked were {len(order.rates)}"
    most = result.iterations * order.wanted.pick * order.task.batch_size
    if not result.iterations <= result.samples <= most:
        possible = f"there are {result.iterations} to {most}"
        return f"answers {result.samples} samples of {result.iterations} iterations; {possible}"
    if len(result.seen) not in (0, classes):
        return f"counts samples of {len(result.seen)} classes, the task has {classes}"
    if order.class_wise and result.iterations and not len(result.seen):
        return "does not say which classes it trained on, which server.class_wise needs; install the same fedgs there"
    return ""


def call_station(socket: Path, order: bytes, timeout: float | None = None) -> bytes:
    """Send one order to the station on this machine and return its answer; blocks, and needs no torch."""
    return _call(socket, RUN_ROUND, order, timeout)


def call_status(socket: Path, timeout: float = 2.0) -> pb.StationStatus:
    """Ask the station on this machine for its status."""
    status: pb.StationStatus = pb.StationStatus.FromString(_call(socket, STATUS, b"", timeout))
    return status


def _call(socket: Path, method: str, request: bytes, timeout: float | None) -> bytes:
    options = [("grpc.max_receive_message_length", LARGEST_ROUND), ("grpc.max_send_message_length", -1)]
    with grpc.insecure_channel(f"unix:{socket_path(socket.parent)}", options) as channel:
        try:
            answer: bytes = channel.unary_unary(method)(request, timeout=timeout)
        except grpc.RpcError as error:
            raise PeerError(f"{socket}: {call_error(error)}") from None
    return answer
