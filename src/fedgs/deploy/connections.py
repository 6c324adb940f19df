"""No peer keeps others out by opening connections: caps on those that wait and those that are served.

gRPC accepts every connection, and one that says nothing holds a file descriptor. A handshake has ``HANDSHAKE`` seconds
(an option of gRPC). A thread looks through the descriptors of this process every ``EVERY`` seconds: of connections
without a call it ends those that are older than ``PATIENCE`` seconds and, the oldest first, those beyond ``WAITING`` of
one address or a quarter of all descriptors. A call beyond half of the descriptors from one address, or three quarters
from all together, is refused. Without /proc (not on Linux) only the calls are counted.
"""

import ipaddress
import os
import resource
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from urllib.parse import unquote

from fedgs.errors import PeerError

HANDSHAKE, PATIENCE, EVERY = 5.0, 15.0, 0.5
WAITING = 256
Peer = tuple[str, int]
"""Address and port."""
Refused = Callable[[str, str], None]
"""Told why a connection was ended, and its address."""


def raise_limit() -> None:
    """Allow this process as many descriptors as the system lets it have."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        with suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def descriptors() -> int:
    """Return how many descriptors this process may have."""
    return min(resource.getrlimit(resource.RLIMIT_NOFILE)[0], 1 << 20)


def peer_of(text: str) -> Peer:
    """Return address and port of a peer as gRPC names it, such as ipv4:127.0.0.1:80; of others the text."""
    host, _, port = unquote(text).partition(":")[2].rpartition(":")
    return (_address(host.strip("[]")), int(port)) if port.isdecimal() else (text, 0)


def _address(host: str) -> str:
    with suppress(ValueError):
        found = ipaddress.ip_address(host.partition("%")[0])
        return str(getattr(found, "ipv4_mapped", None) or found)
    return host


class Doorkeeper:
    """The connections to some ports of this process."""

    def __init__(self, refused: Refused) -> None:
        self._refused, self._ports = refused, frozenset[int]()
        self._served: Counter[Peer] = Counter()
        self._since: dict[tuple[int, Peer], float] = {}
        self._answered: dict[Peer, float] = {}
        """When the last call of a peer ended: one that asks again and again does not wait."""
        self._ended = threading.Event()
        self._reserve = -1
        """A descriptor that is given up for a moment when all others are in use."""

    @contextmanager
    def serving(self, text: str) -> Iterator[None]:
        """Count a call of a peer while the block lasts; :class:`PeerError` where there are too many."""
        peer = peer_of(text)
        for calls, most in (
            (sum(count for other, count in self._served.items() if other[0] == peer[0]), descriptors() // 2),
            (self._served.total(), descriptors() * 3 // 4),
        ):
            if calls >= most:
                raise PeerError(f"{calls} connections are served; {most} are the most")
        self._served[peer] += 1
        try:
            yield
        finally:
            self._served[peer] -= 1
            self._answered[peer] = time.monotonic()
            if not self._served[peer]:
                del self._served[peer]

    @contextmanager
    def watching(self, *ports: int) -> Iterator[None]:
        """Look after the connections to these ports while the block lasts."""
        self._ports, self._reserve = frozenset(ports), os.open(os.devnull, os.O_RDONLY)
        thread = threading.Thread(target=self._watch, daemon=True, name="connections")
        if os.path.isdir("/proc/self/fd"):
            thread.start()
        try:
            yield
        finally:
            self._ended.set()
            if thread.is_alive():
                thread.join(2)
            if self._reserve >= 0:
                os.close(self._reserve)

    def _watch(self) -> None:
        while not self._ended.wait(EVERY):
            self._look(time.monotonic())

    def _look(self, now: float) -> None:
        """End what has waited too long, or is too much."""
        served = set(self._served)
        connections = self._connections()
        waiting = {key for key in connections if key[1] not in served}
        self._since = {key: max(self._since.get(key, now), self._answered.get(key[1], 0.0)) for key in waiting}
        self._answered = {peer: self._answered[peer] for _, peer in connections if peer in self._answered}
        of_address: Counter[str] = Counter()
        for number, key in enumerate(sorted(waiting, key=lambda one: self._since[one], reverse=True), start=1):
            of_address[key[1][0]] += 1
            if now - self._since[key] > PATIENCE:
                self._end(*key, f"nothing was asked for within {PATIENCE:g} s")
            elif of_address[key[1][0]] > WAITING or number > descriptors() // 4:
                self._end(*key, "too many connections that ask for nothing")

    def _connections(self) -> list[tuple[int, Peer]]:
        """Return descriptor and peer of every connection to the ports."""
        if self._reserve >= 0:
            os.close(self._reserve)
        try:
            numbers = [int(name) for name in os.listdir("/proc/self/fd")]
        except OSError:  # not even one: the next look will do
            numbers = []
        try:
            self._reserve = os.open(os.devnull, os.O_RDONLY)
        except OSError:
            self._reserve = -1
        found = [(number, self._peer(number)) for number in numbers]
        return [(number, peer) for number, peer in found if peer is not None]

    def _peer(self, number: int, end: bool = False) -> Peer | None:
        """Return the peer of a descriptor that is a connection to one of the ports; None of others."""
        try:
            connection = socket.socket(fileno=number)
        except OSError:
            return None
        try:
            if connection.family not in (socket.AF_INET, socket.AF_INET6):
                return None
            if connection.getsockname()[1] not in self._ports:
                return None
            host, port, *_ = connection.getpeername()  # of a listening socket this is an error
            if end:
                connection.shutdown(socket.SHUT_RDWR)
            return _address(host), port
        except OSError:
            return None
        finally:
            connection.detach()  # it is gRPC's, which closes it

    def _end(self, number: int, peer: Peer, reason: str) -> None:
        if self._peer(number) == peer and self._peer(number, end=True) == peer:
            self._refused(reason, peer[0])
