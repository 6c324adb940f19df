"""Who carries ``RunRound`` from top server to station: an interface, and gRPC as one way to do it.

Another carrier (Flower, for sites across the Internet) needs no more than to bring the bytes of
:func:`fedgs.deploy.contract.encode_order` to the station's socket and those of the answer back: :func:`call_station`.
"""

from pathlib import Path
from typing import Any, Protocol

import grpc

from fedgs.deploy.contract import LARGEST_ROUND, RoundOrder, RoundResult, decode_result, encode_order
from fedgs.deploy.folder import socket_path
from fedgs.deploy.identity import Identity
from fedgs.deploy.tls import PLAIN_ID, Bundle, check_plain, client_credentials, client_options, split_address
from fedgs.deploy.wire import RUN_ROUND, STATUS
from fedgs.errors import PeerError, WireError


class Carrier(Protocol):
    """The way to one station."""

    name: str

    async def run_round(self, order: RoundOrder) -> RoundResult:
        """Let the station carry out an order; :class:`PeerError` where it could not be reached or refused."""
        ...


class GrpcCarrier:
    """Dials the station's control port for every round, so that a renewed certificate or a restart needs no care."""

    def __init__(self, address: str, bundle: Bundle | None, identity: Identity, keepalive: float) -> None:
        """``bundle`` None: plain text on the loopback, as ``identity``."""
        split_address(address)
        if bundle is None:
            check_plain(address)
        self.name, self._bundle, self._identity = address, bundle, identity
        self._options = client_options(keepalive, LARGEST_ROUND)

    async def run_round(self, order: RoundOrder) -> RoundResult:
        """Let the station carry out an order."""
        if self._bundle is None:
            channel: Any = grpc.aio.insecure_channel(self.name, self._options)
        else:
            channel = grpc.aio.secure_channel(self.name, client_credentials(self._bundle), self._options)
        metadata = [(PLAIN_ID, self._identity.uri)] if self._bundle is None else None
        async with channel:
            try:
                answer = await channel.unary_unary(RUN_ROUND)(encode_order(order), metadata=metadata)
            except grpc.aio.AioRpcError as error:
                unreached = error.code() == grpc.StatusCode.UNAVAILABLE
                own = self._bundle.fault(self._identity.role) if self._bundle and unreached else ""
                raise PeerError(f"station {self.name}: {own or _words(error)}") from None
        return checked_result(decode_result(answer), order, self.name)


def checked_result(result: RoundResult, order: RoundOrder, station: str) -> RoundResult:
    """Return a result that answers the order; another one is refused."""
    if (result.run, result.round) != (order.run, order.round):
        raise WireError(
            f"station {station}: answers round {result.round} of {result.run!r}, asked was round {order.round} of "
            f"{order.run!r}"
        )
    difference = order.shapes.difference(result.shapes)
    if difference:
        raise WireError(f"station {station}: answers with another model: it {difference}")
    if len(result.announced) not in (0, order.task.classes):
        raise WireError(
            f"station {station}: announces {len(result.announced)} classes, the task has {order.task.classes}"
        )
    if result.iterations > len(order.rates):
        raise WireError(f"station {station}: answers {result.iterations} iterations, asked were {len(order.rates)}")
    most = result.iterations * order.wanted.pick * order.task.batch_size
    if not result.iterations <= result.samples <= most:
        raise WireError(
            f"station {station}: answers {result.samples} samples of {result.iterations} iterations; there are "
            f"{result.iterations} to {most}"
        )
    if len(result.seen) not in (0, order.task.classes):
        raise WireError(
            f"station {station}: counts samples of {len(result.seen)} classes, the task has {order.task.classes}"
        )
    if order.class_wise and result.iterations and not len(result.seen):
        raise WireError(
            f"station {station}: does not say which classes it trained on, which server.class_wise needs; install the "
            "same fedgs there"
        )
    return result


def call_station(socket: Path, order: bytes, timeout: float | None = None) -> bytes:
    """Carry one order to the station on this machine and return its answer; blocks, and needs no torch."""
    return _call(socket, RUN_ROUND, order, timeout)


def call_status(socket: Path, timeout: float = 2.0) -> bytes:
    """Ask the station on this machine how things stand."""
    return _call(socket, STATUS, b"", timeout)


def _call(socket: Path, method: str, request: bytes, timeout: float | None) -> bytes:
    options = [("grpc.max_receive_message_length", LARGEST_ROUND), ("grpc.max_send_message_length", -1)]
    with grpc.insecure_channel(f"unix:{socket_path(socket.parent)}", options) as channel:
        try:
            answer: bytes = channel.unary_unary(method)(request, timeout=timeout)
        except grpc.RpcError as error:
            raise PeerError(f"{socket}: {_words(error)}") from None
    return answer


def _words(error: Any) -> str:
    if error.code() == grpc.StatusCode.UNAVAILABLE:
        return "nobody answers, or the certificate was refused"
    return str(error.details() or error.code().name.lower().replace("_", " "))
