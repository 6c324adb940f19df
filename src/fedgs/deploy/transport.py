"""Connections between the processes of a park, and how ``RunRound`` gets from top server to station over them.

From a bundle of certificates to gRPC credentials, and the one exception: plain text on the loopback. Servers read their
bundle anew for each handshake when its files have changed, clients at each connection: a renewed certificate needs no
restart.

:class:`Transport` is the interface of a round's way, gRPC one implementation. Another one (Flower, for sites across the
Internet) takes the bytes of :func:`fedgs.deploy.round_messages.encode_order` to the station's socket and the answer
back: :func:`call_station`.
"""

import asyncio
import ipaddress
import socket
import ssl
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

import grpc
from cryptography import x509

from fedgs.deploy.connections import HANDSHAKE, PATIENCE
from fedgs.deploy.factory_numbers import FactoryNumbers
from fedgs.deploy.lease import EPOCH, FINAL
from fedgs.deploy.pki import CERTIFICATE, KEY, Bundle, Identity, identity_in, identity_of
from fedgs.deploy.process import socket_path
from fedgs.deploy.proto import fedgs_wire_pb2 as pb
from fedgs.deploy.revocation import EVERY, Certificates
from fedgs.deploy.round_messages import LARGEST_ROUND, RoundOrder, RoundResult, decode_result, encode_order
from fedgs.deploy.wire import RUN_ROUND, STATUS
from fedgs.errors import IdentityError, PeerError, WireError

UNREACHED = "nobody answers, or the certificate was refused"
ANSWERS_WITHIN = 5.0
"""Seconds a server has to show its certificate."""
PLAIN_ID = "fedgs-id"
"""The metadata key under which a participant without a certificate names itself (``--insecure``)."""


def server_credentials(bundle: Bundle) -> grpc.ServerCredentials:
    """Return credentials that ask every client for a certificate of the same authority."""

    def configuration() -> grpc.ServerCertificateConfiguration:
        authority, certificate, key = bundle.read()
        return grpc.ssl_server_certificate_configuration([(key, certificate)], authority)

    seen = [bundle.stamp()]

    def fetch() -> grpc.ServerCertificateConfiguration | None:
        now = bundle.stamp()
        if now == seen[0]:
            return None  # as before
        try:
            fresh = configuration()
        except IdentityError:
            return None  # in the middle of a renewal; the next handshake looks again
        seen[0] = now
        return fresh

    return grpc.dynamic_ssl_server_credentials(configuration(), fetch, require_client_authentication=True)


def client_credentials(bundle: Bundle) -> grpc.ChannelCredentials:
    """Return the credentials of one connection."""
    authority, certificate, key = bundle.read()
    return grpc.ssl_channel_credentials(authority, key, certificate)


@dataclass(frozen=True)
class Dialer:
    """How a process connects to a station: with its certificate, or in plain text on the loopback."""

    address: str
    identity: Identity
    bundle: Bundle | None
    """None: plain text."""
    keepalive: float
    largest_message: int
    server: str = "station"
    """The role that the other end must have."""

    def __post_init__(self) -> None:
        split_address(self.address)
        if self.bundle is None:
            check_plain(self.address)

    @asynccontextmanager
    async def channel(self, server: bytes | None = None) -> AsyncIterator[Any]:
        """Open a channel; it is a new connection, with the certificate of this moment.

        gRPC checks the authority and the host of a server. Who it is, and whether its certificate is revoked, is looked
        up beforehand (``server``: it has been); the connection is then made to the owner of that certificate alone.
        """
        options = client_options(self.keepalive, self.largest_message)
        if self.bundle is None:
            channel = grpc.aio.insecure_channel(self.address, options)
        else:
            server = server or (await self.look(self.bundle))[0]
            _, certificate, key = self.bundle.read()
            channel = grpc.aio.secure_channel(
                self.address, grpc.ssl_channel_credentials(server, key, certificate), options
            )
        async with channel:
            yield channel

    @asynccontextmanager
    async def while_good(self, server: bytes | None) -> AsyncIterator[None]:
        """End the block with an :class:`IdentityError` once the server's certificate is not good any more."""
        if self.bundle is None or server is None:
            yield
            return
        certificates, certificate = Certificates(self.bundle.folder), x509.load_pem_x509_certificate(server)
        faults: list[str] = []

        async def watch() -> None:
            while not faults:
                await asyncio.sleep(EVERY)
                faults.extend(filter(None, [certificates.fault(certificate)]))
            limit.reschedule(asyncio.get_running_loop().time())

        try:
            async with asyncio.timeout(None) as limit:
                watching = asyncio.ensure_future(watch())
                try:
                    yield
                finally:
                    watching.cancel()
        except TimeoutError:
            if not faults:
                raise
            raise IdentityError(f"{identity_in(certificate)}: {faults[0]}") from None

    async def look(self, bundle: Bundle) -> tuple[bytes, Identity]:
        """Return the server's certificate as PEM, and whose it is; refuse one of another role, or that is not good."""
        return await asyncio.to_thread(self.look_now, bundle)

    def look_now(self, bundle: Bundle) -> tuple[bytes, Identity]:
        """Do the same without a loop."""
        host, port = split_address(self.address)
        context = ssl.create_default_context(cadata=bundle.read()[0].decode())
        context.load_cert_chain(bundle.folder / CERTIFICATE, bundle.folder / KEY)
        context.set_alpn_protocols(["h2"])
        try:
            with (
                socket.create_connection((host, port), ANSWERS_WITHIN) as plain,
                context.wrap_socket(plain, server_hostname=host) as secure,
            ):
                found = ssl.DER_cert_to_PEM_cert(secure.getpeercert(binary_form=True) or b"").encode()
        except (OSError, ValueError) as error:
            why = f" ({error.verify_message.lower()})" if isinstance(error, ssl.SSLCertVerificationError) else ""
            raise PeerError(bundle.fault(self.identity.role) or UNREACHED + why) from None
        certificate = x509.load_pem_x509_certificate(found)
        identity = identity_in(certificate)
        fault = Certificates(bundle.folder).fault(certificate)
        if fault:
            raise IdentityError(f"{identity}: {fault}")
        if identity.role != self.server or identity.park != self.identity.park:
            raise IdentityError(f"{identity.uri} serves at {self.address}; only a {self.server} of this park may")
        return found, identity

    @property
    def metadata(self) -> list[tuple[str, str]]:
        """What every call carries: without a certificate, the name."""
        return [(PLAIN_ID, self.identity.uri)] if self.bundle is None else []

    def reason(self, error: Any) -> str:
        """Return why a call failed: a fault of the own certificate comes first."""
        unreached = error.code() == grpc.StatusCode.UNAVAILABLE
        return (self.bundle.fault(self.identity.role) if self.bundle and unreached else "") or call_error(error)


def call_error(error: Any) -> str:
    """Return why a call failed; the same failure always gives the same text."""
    text = str(error.details() or error.code().name.lower().replace("_", " "))
    if error.code() != grpc.StatusCode.UNAVAILABLE:
        return text
    if not text.startswith("failed to connect to all addresses"):
        return "the connection was lost"
    last = text.rpartition("OPENSSL_internal:")[2] if "OPENSSL" in text else ""
    return UNREACHED + (f" ({last.lower()})" if last else "")


def peer_identity(context: Any, roles: Sequence[str], insecure: bool) -> Identity:
    """Return the identity of the caller, from the TLS session; refuse other roles than these."""
    if insecure:
        names = [value for key, value in context.invocation_metadata() or () if key == PLAIN_ID]
        identity = identity_of(names)
    else:
        identity = identity_of(context.auth_context().get("x509_subject_alternative_name", []))
    if identity.role not in roles:
        raise IdentityError(f"{identity.uri} is a {identity.role}; only a {' or '.join(roles)} may do this")
    return identity


def peer_certificate(context: Any) -> list[bytes]:
    """Return the certificate of the caller, as PEM; none in plain text."""
    return list(context.auth_context().get("x509_pem_cert", []))


def split_address(address: str) -> tuple[str, int]:
    """Return host and port of HOST:PORT or [V6]:PORT."""
    host, colon, port = address.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not colon or not host or not port.isdecimal() or int(port) > 65535:
        raise PeerError(f"{address!r} is not an address; expected HOST:PORT, for example 192.168.7.2:7070")
    return host, int(port)


def check_plain(address: str) -> None:
    """Refuse plain text anywhere but on the loopback."""
    host, _ = split_address(address)
    with suppress(ValueError):  # a name
        if host == "localhost" or ipaddress.ip_address(host).is_loopback:
            return
    raise PeerError(
        f"--insecure works on the loopback only, and {host} is reachable from elsewhere; use certificates (fedgs "
        "pki), or 127.0.0.1"
    )


def channel_options(seconds: float, largest_message: int) -> list[tuple[str, int]]:
    """Return what both ends of a connection need: a silent peer is noticed after some ``seconds``."""
    period, patience = int(seconds * 1000), max(1000, int(seconds * 500))
    return [
        ("grpc.keepalive_time_ms", period),  # a silent peer is noticed with all of these five together
        ("grpc.keepalive_timeout_ms", patience),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.max_pings_without_data", 0),
        ("grpc.http2.ping_timeout_ms", patience),
        ("grpc.max_receive_message_length", largest_message),
        ("grpc.max_send_message_length", -1),
    ]


def server_options(seconds: float, largest_message: int) -> list[tuple[str, int]]:
    """Return the options of a server."""
    return [
        *channel_options(seconds, largest_message),
        ("grpc.http2.min_ping_interval_without_data_ms", max(100, int(seconds * 500))),
        ("grpc.max_concurrent_streams", 8),  # of one connection; a device has one, a top server two
        ("grpc.server_handshake_timeout_ms", int(HANDSHAKE * 1000)),
        ("grpc.so_reuseport", 0),  # two stations on one port would share its devices
    ]


def client_options(seconds: float, largest_message: int) -> list[tuple[str, int]]:
    """Return the options of a client."""
    return [
        *channel_options(seconds, largest_message),
        ("grpc.enable_retries", 0),  # the agent itself decides when to come back
        # Or the other end would end it as one that asks for nothing; gRPC takes up to twice as long.
        ("grpc.client_idle_timeout_ms", int(PATIENCE * 250)),
        ("grpc.use_local_subchannel_pool", 1),  # a new channel is a new connection, with today's certificate
    ]


# --- rounds


class Transport(Protocol):
    """The connection to one station."""

    name: str

    async def find(self) -> int:
        """Return which factory the station is; :class:`PeerError` where it cannot be reached."""
        ...

    async def run_round(self, order: RoundOrder) -> RoundResult:
        """Let the station carry out an order; :class:`PeerError` where it could not be reached or refused."""
        ...


class GrpcTransport:
    """Connects to the station's control port for every round: a renewed certificate or a restart needs no care."""

    def __init__(
        self,
        address: str,
        bundle: Bundle | None,
        identity: Identity,
        keepalive: float,
        *,
        numbers: FactoryNumbers | None = None,
        epoch: int = 0,
        rounds: int | None = None,
    ) -> None:
        """``bundle`` None: plain text on the loopback, as ``identity``. After the last of ``rounds`` the lease ends."""
        self.name, self.dialer = address, Dialer(address, identity, bundle, keepalive, LARGEST_ROUND)
        self._numbers, self._epoch, self._rounds = numbers or FactoryNumbers(), epoch, rounds
        self._server: bytes | None = None
        """The certificate that was found last."""

    async def find(self) -> int:
        """Return which factory the station is, by its certificate."""
        if self.dialer.bundle is None:
            return self._numbers.of(self.name, self.name)
        try:
            self._server, station = await self.dialer.look(self.dialer.bundle)
        except PeerError as error:
            raise PeerError(f"station {self.name}: {error}") from None
        return self._numbers.of(self.name, station.name)

    async def run_round(self, order: RoundOrder) -> RoundResult:
        """Let the station that was found last carry out an order, and no other."""
        dialer = self.dialer
        async with dialer.channel(self._server) as channel, dialer.while_good(self._server):
            metadata = [*dialer.metadata, (EPOCH, str(self._epoch))]
            metadata += [(FINAL, "1")] if order.round == self._rounds or order.released else []
            try:
                question = encode_order(order)
                answer = await channel.unary_unary(RUN_ROUND)(question, metadata=metadata)
            except grpc.aio.AioRpcError as error:
                raise PeerError(f"station {self.name}: {dialer.reason(error)}") from None
        result = checked_result(decode_result(answer), order, self.name)
        return replace(result, order_bytes=len(question), answer_bytes=len(answer))


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
    if len(result.moments) not in (0, 3 * order.task.moments):
        return f"answers {len(result.moments)} moments, asked were {3 * order.task.moments}"
    if result.iterations > len(order.rates):
        return f"answers {result.iterations} iterations, asked were {len(order.rates)}"
    most = result.iterations * order.wanted.pick * order.task.batch_size
    if not result.iterations <= result.samples <= most:
        possible = f"there are {result.iterations} to {most}"
        return f"answers {result.samples} samples of {result.iterations} iterations; {possible}"
    if len(result.seen) not in (0, classes):
        return f"counts samples of {len(result.seen)} classes, the task has {classes}"
    if len(result.mix) not in (0, classes):
        return f"tells a mix of {len(result.mix)} classes, the task has {classes}"
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
