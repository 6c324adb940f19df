"""How an operator asks a top server how its run goes; needs no torch."""

import json
from collections.abc import Mapping
from typing import Any

import grpc
from google.protobuf.message import DecodeError

from fedgs.deploy.proto import fedgs_wire_pb2 as pb
from fedgs.deploy.transport import Dialer, client_options
from fedgs.deploy.wire import serialise
from fedgs.errors import IdentityError, PeerError

SERVICE = "fedgs.v1.TopControl"
STATUS = f"/{SERVICE}/Status"
LARGEST_STATUS = 1 << 28
"""Bytes: a run of many rounds, with the lines of all of them."""
WITHIN = 12.0
"""Seconds that an answer may take."""


def shown_score(line: Mapping[str, Any]) -> str:
    """Return the score of a round's line as people read it; "" where the model was not tested."""
    if "loss" not in line:
        return ""
    name, value = next((key, value) for key, value in line.items() if key != "round")  # the score comes first
    return f"{name} {value:.2%}" if name == "accuracy" else f"{name} {value:.4g}"


class TopClient:
    """Asks a top server how its run goes, over one connection; may be used by several threads."""

    def __init__(self, dialer: Dialer) -> None:
        self._dialer = dialer
        self._channel: Any = None

    @property
    def address(self) -> str:
        """Where the top server is."""
        return self._dialer.address

    def status(self, lines: int = 0, events: int = 0) -> pb.TopStatus:
        """Return how the run goes, beyond what the caller knows; :class:`PeerError` where it is not told."""
        question, dialer = serialise(pb.TopStatusIn(lines=lines, events=events)), self._dialer
        try:
            channel = self._channel = self._channel or self._connected()
            answer = channel.unary_unary(STATUS)(question, metadata=dialer.metadata, timeout=WITHIN)
            found: pb.TopStatus = pb.TopStatus.FromString(answer)
        except grpc.RpcError as error:
            self._channel = None
            raise PeerError(f"top server {self.address}: {dialer.reason(error)}") from None
        except (PeerError, IdentityError) as error:
            raise PeerError(f"top server {self.address}: {error}") from None
        except DecodeError:
            raise PeerError(f"top server {self.address}: its answer cannot be read; install the same fedgs") from None
        return found

    def _connected(self) -> Any:
        dialer, options = self._dialer, client_options(self._dialer.keepalive, self._dialer.largest_message)
        if dialer.bundle is None:
            return grpc.insecure_channel(dialer.address, options)
        server, _ = dialer.look_now(dialer.bundle)
        _, certificate, key = dialer.bundle.read()
        return grpc.secure_channel(dialer.address, grpc.ssl_channel_credentials(server, key, certificate), options)


class Followed:
    """A run as its top server tells it: what was told before is kept."""

    def __init__(self, client: TopClient) -> None:
        """Look for the first time."""
        self._client, self._event = client, 0
        self.lines: list[dict[str, Any]] = []
        """Metrics of the rounds so far."""
        self.classes: list[str] = []
        self.status = pb.TopStatus()
        self.look()

    def look(self) -> bool:
        """Ask what is new; :class:`PeerError` where there is no answer. True: the lines begin anew."""
        found = self._client.status(len(self.lines), self._event)
        before = self.status
        anew = bool(self.lines) and (found.run != before.run or found.round + 1 < len(self.lines))
        if anew:  # another run, or one that was resumed from an earlier round
            self.lines.clear()
            found = self._client.status(0, self._event)
        self.lines += [json.loads(line) for line in found.lines]
        self.classes = list(found.classes) or self.classes
        self._event = max([self._event, *(event.number for event in found.events)])
        self.status = found
        return anew

    @property
    def done(self) -> bool:
        """Whether the last round is done."""
        return bool(self.lines) and self.status.round >= self.status.rounds
