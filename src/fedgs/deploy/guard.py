"""What the servers of a park have in common: their port, who may call, and their health.

Callers are checked before their message is read: calls are served as streams of one message, which look the same on the
wire, so that a certificate of the wrong role cannot fill the memory.

Health is ``grpc.health.v1`` (``Check``): SERVING where the server is ready, NOT_SERVING where it is not.
"""

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import Any

import grpc
from google.protobuf.message import DecodeError

from fedgs.deploy.connections import Doorkeeper, peer_of
from fedgs.deploy.pki import Bundle
from fedgs.deploy.proto import fedgs_wire_pb2 as pb
from fedgs.deploy.revocation import Certificates
from fedgs.deploy.transport import peer_certificate, peer_identity, server_credentials, split_address
from fedgs.deploy.wire import serialise
from fedgs.errors import IdentityError, PeerError

HEALTH = "grpc.health.v1.Health"
SERVING, NOT_SERVING = 1, 2
Unready = Callable[[], Coroutine[Any, Any, str]]
"""Why a server is not ready; "" where it is."""


@dataclass(frozen=True)
class Guard:
    """Who may call a server."""

    certificates: Certificates
    doorkeeper: Doorkeeper
    insecure: bool
    refuse: Callable[[str, str], None]
    """Told why a caller was refused, and its address."""

    async def checked(self, context: Any, roles: Sequence[str], work: Coroutine[Any, Any, bytes]) -> bytes:
        """Do some work for a caller of these roles, as long as its certificate is good; no role: for everybody.

        Whoever comes through a Unix socket is not asked: the permissions of its folder are the check.
        """
        if str(context.peer()).startswith("unix:"):
            return await work
        doing = asyncio.ensure_future(work)
        reasons: list[str] = []

        def end(reason: str) -> None:
            reasons.append(reason)
            doing.cancel()

        try:
            if roles:
                peer_identity(context, roles, self.insecure)
            with (
                self.doorkeeper.serving(context.peer()),
                self.certificates.watched(peer_certificate(context), end),
            ):
                return await doing
        except (IdentityError, PeerError) as error:
            end(str(error))
        except asyncio.CancelledError:
            if not reasons:
                raise
        self.refuse(reasons[0], peer_of(context.peer())[0])
        await context.abort(grpc.StatusCode.PERMISSION_DENIED, reasons[0])
        raise AssertionError  # abort never returns

    def health(self, unready: Unready, services: Sequence[str], roles: Sequence[str]) -> Any:
        """Return the handler of ``grpc.health.v1`` for these services; in plain text it answers everybody."""

        async def answer(context: Any) -> bytes:
            data = await context.read()
            try:
                asked = pb.HealthIn.FromString(b"" if data is grpc.aio.EOF else data).service
            except DecodeError:
                await context.abort(grpc.StatusCode.INVALID_ARGUMENT, "not a health check")
            if asked and asked not in services:
                await context.abort(grpc.StatusCode.NOT_FOUND, "no such service")
            return serialise(pb.HealthOut(status=NOT_SERVING if await unready() else SERVING))

        async def check(_: Any, context: Any) -> bytes:
            return await self.checked(context, () if self.insecure else roles, answer(context))

        return grpc.method_handlers_generic_handler(HEALTH, {"Check": grpc.stream_unary_rpc_method_handler(check)})


def listen(server: Any, address: str, bundle: Bundle | None, option: str) -> str:
    """Let a server listen, in plain text where there is no bundle; return the address with its port."""
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
