"""From a bundle of certificates to gRPC credentials, and the one exception: plain text on the loopback.

Servers read their bundle anew for each handshake when its files have changed, clients at each connection: a renewed
certificate needs no restart.
"""

import asyncio
import datetime
import ipaddress
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
from cryptography.hazmat.primitives import serialization

from fedgs.deploy.identity import Identity, identity_of
from fedgs.deploy.logs import log
from fedgs.deploy.pki import CA_CERTIFICATE, CERTIFICATE, KEY, identity_in, read_certificate
from fedgs.errors import IdentityError, PeerError

PLAIN_ID = "fedgs-id"
"""The metadata key under which a participant without a certificate names itself (``--insecure``)."""


@dataclass(frozen=True)
class Bundle:
    """A certificate, its key and the authority, as files."""

    folder: Path

    def read(self) -> tuple[bytes, bytes, bytes]:
        """Return authority, certificate and key as PEM."""
        try:
            return (
                (self.folder / CA_CERTIFICATE).read_bytes(),
                (self.folder / CERTIFICATE).read_bytes(),
                (self.folder / KEY).read_bytes(),
            )
        except OSError as error:
            missing = Path(error.filename or self.folder).name
            raise IdentityError(
                f"{self.folder}: {missing} cannot be read ({error.strerror}); make the certificates with: fedgs pki"
            ) from None

    def stamp(self) -> tuple[int, ...]:
        """Return a value that changes when a file does."""
        files = (self.folder / name for name in (CA_CERTIFICATE, CERTIFICATE, KEY))
        return tuple(path.stat().st_mtime_ns for path in files if path.exists())

    def check(self, role: str) -> Identity:
        """Return whose bundle it is; refuse one that is broken, expired or for another role."""
        _, _, key = self.read()
        certificate = read_certificate(self.folder / CERTIFICATE)
        identity = identity_in(certificate)
        if identity.role != role:
            raise IdentityError(
                f"{self.folder / CERTIFICATE}: belongs to a {identity.role}, not to a {role}; make one with: fedgs pki "
                f"{role}"
            )
        if certificate.not_valid_after_utc < datetime.datetime.now(datetime.UTC):
            raise IdentityError(
                f"{self.folder / CERTIFICATE}: expired on {certificate.not_valid_after_utc:%Y-%m-%d %H:%M} UTC; renew "
                "it with: fedgs pki … --renew"
            )
        try:
            own = serialization.load_pem_private_key(key, None).public_key()
        except (ValueError, TypeError) as error:
            raise IdentityError(f"{self.folder / KEY}: cannot be read as a key ({error})") from None
        if own != certificate.public_key():
            raise IdentityError(f"{self.folder / KEY}: is not the key of {CERTIFICATE} beside it")
        return identity

    def fault(self, role: str) -> str:
        """Return what is wrong with the bundle itself, such as that it has expired; empty where nothing is."""
        try:
            self.check(role)
        except IdentityError as error:
            return str(error)
        return ""

    def ending(self) -> str:
        """Return a warning in the last tenth of the certificate's life, the last 3 of 30 days; empty before."""
        certificate = read_certificate(self.folder / CERTIFICATE)
        begins, ends = certificate.not_valid_before_utc, certificate.not_valid_after_utc
        left = ends - datetime.datetime.now(datetime.UTC)
        if left > (ends - begins) / 10:
            return ""
        word = "expires" if left > datetime.timedelta(0) else "expired"
        return f"{self.folder / CERTIFICATE}: {word} on {ends:%Y-%m-%d %H:%M} UTC; renew it with: fedgs pki … --renew"


async def watch_expiry(bundle: Bundle | None, every: float = 3600.0) -> None:
    """Warn in the log, for ever, while a certificate is about to expire."""
    while bundle is not None:
        with suppress(IdentityError):  # unreadable in the middle of a renewal: the next look will do
            reason = bundle.ending()
            if reason:
                log.warning("certificate", extra={"reason": reason})
        await asyncio.sleep(every)


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

    def __post_init__(self) -> None:
        split_address(self.address)
        if self.bundle is None:
            check_plain(self.address)

    def channel(self) -> Any:
        """Return a new channel; it is a new connection, with the certificate of this moment."""
        options = client_options(self.keepalive, self.largest_message)
        if self.bundle is None:
            return grpc.aio.insecure_channel(self.address, options)
        return grpc.aio.secure_channel(self.address, client_credentials(self.bundle), options)

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
    return "nobody answers, or the station refused the certificate" + (f" ({last.lower()})" if last else "")


def peer_identity(context: Any, role: str, insecure: bool) -> Identity:
    """Return the identity of the caller, from the TLS session; refuse another role than ``role``."""
    if insecure:
        names = [value for key, value in context.invocation_metadata() or () if key == PLAIN_ID]
        identity = identity_of(names)
    else:
        identity = identity_of(context.auth_context().get("x509_subject_alternative_name", []))
    if identity.role != role:
        raise IdentityError(f"{identity.uri} is a {identity.role}; only a {role} may do this")
    return identity


def split_address(address: str) -> tuple[str, int]:
    """Return host and port of HOST:PORT or [V6]:PORT."""
    host, colon, port = address.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not colon or not host or not port.isdecimal() or int(port) > 65535:
        raise PeerError(f"{address!r} is not an address; expected HOST:PORT, for example 192.168.7.2:7070")
    return host, int(port)


def is_loopback(host: str) -> bool:
    """Whether an address never leaves this machine."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def check_plain(address: str) -> None:
    """Refuse plain text anywhere but on the loopback."""
    host, _ = split_address(address)
    if not is_loopback(host):
        raise PeerError(
            f"--insecure works on the loopback only, and {host} is reachable from elsewhere; use certificates (fedgs "
            "pki), or 127.0.0.1"
        )


def keepalive_options(seconds: float) -> list[tuple[str, int]]:
    """Return the channel options with which a silent peer is noticed; all of them are needed together."""
    period, patience = int(seconds * 1000), max(1000, int(seconds * 500))
    return [
        ("grpc.keepalive_time_ms", period),
        ("grpc.keepalive_timeout_ms", patience),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.max_pings_without_data", 0),
        ("grpc.http2.ping_timeout_ms", patience),
    ]


def server_options(seconds: float, largest_message: int) -> list[tuple[str, int]]:
    """Return the options of a server."""
    return [
        *keepalive_options(seconds),
        ("grpc.http2.min_ping_interval_without_data_ms", max(100, int(seconds * 500))),
        ("grpc.max_receive_message_length", largest_message),
        ("grpc.max_send_message_length", -1),
        ("grpc.max_concurrent_streams", 8),  # of one connection; a device has one, a top server two
        ("grpc.so_reuseport", 0),  # two stations on one port would share its devices
    ]


def client_options(seconds: float, largest_message: int) -> list[tuple[str, int]]:
    """Return the options of a client."""
    return [
        *keepalive_options(seconds),
        ("grpc.max_receive_message_length", largest_message),
        ("grpc.max_send_message_length", -1),
        ("grpc.enable_retries", 0),  # the agent itself decides when to come back
        ("grpc.use_local_subchannel_pool", 1),  # a new channel is a new connection, with today's certificate
    ]
