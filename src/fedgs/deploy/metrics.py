"""Prometheus metrics of station and top server, each in a registry of its own, and their health over HTTP.

    /metrics   for Prometheus
    /healthz   200 while the process lives
    /readyz    200 while it is ready, else 503 with a line that says why

A station has series of its own for some devices, at most as many as it is told; the others are summed up. They are made
when somebody asks, from what the station knows then: a device that is forgotten has none.
"""

import asyncio
import socket
import sys
import time
from collections import Counter as Tally
from collections.abc import Iterable, Iterator
from concurrent.futures import CancelledError
from contextlib import contextmanager, suppress
from functools import partial
from io import StringIO
from threading import Thread
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, make_server

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, make_wsgi_app
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import ThreadingWSGIServer
from prometheus_client.registry import Collector

from fedgs.deploy.guard import Unready
from fedgs.deploy.logs import log
from fedgs.deploy.membership import Member, Roster
from fedgs.deploy.transport import split_address
from fedgs.errors import PeerError

OTHERS = "(others)"
"""Stands for the devices without series of their own; no device can be called so."""
MOST, WITHIN = 32, 10.0
"""Connections at a time, and seconds that one may take."""
READY_WITHIN = 5.0
"""Seconds in which a process must say whether it is ready."""
_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)
_ROUND_SECONDS = (0.1, 0.5, 1, 5, 10, 30, 60, 300, 600, 1800, 3600)


class StationMetrics:
    """Metrics of a station."""

    def __init__(self, most_devices: int = 200) -> None:
        self.registry, self._most = CollectorRegistry(), most_devices
        counter, gauge, histogram = _makers("station", self.registry, _SECONDS)
        self.updates = counter("updates", "steps of selected devices", ["outcome"])
        self.refused = counter("refused", "refused connections")
        self.iterations = counter("iterations", "internal synchronisations")
        self.rounds = counter("rounds", "rounds carried out")
        self.selecting = histogram("selection_seconds", "time of a selection")
        self.iterating = histogram("iteration_seconds", "time of an iteration")
        self.divergence = gauge("divergence", "of the last team")
        self.loss = gauge("loss", "training loss of the last iteration")
        self.sent = counter("sent_bytes", "to devices")
        self.received = counter("received_bytes", "from devices")
        for outcome in ("used", "late", "gone", "rejected"):
            self.updates.labels(outcome)

    def show(self, roster: Roster) -> None:
        """Show the devices of a station, too."""
        self.registry.register(_Devices(roster, self._most))


class _Devices(Collector):
    """The devices of a station, as they are when somebody asks."""

    STATES = ("ready", "training", "late", "waiting", "quarantined", "offline")

    def __init__(self, roster: Roster, most: int) -> None:
        self._roster, self._most = roster, most

    def collect(self) -> Iterable[Metric]:
        """Yield their metrics."""
        roster, name = self._roster, "fedgs_station_device"
        members = roster.known
        states = [roster.state(member) for member in members]
        tally = Tally(states)
        devices = GaugeMetricFamily(f"{name}s", "devices by state", labels=["state"])
        for state in self.STATES:
            devices.add_metric([state], tally[state])
        devices.add_metric(["online"], len(members) - tally["offline"])
        yield devices
        yield GaugeMetricFamily(
            f"{name}s_left_out", "devices without metrics of their own", max(0, len(members) - self._most)
        )
        current = GaugeMetricFamily(f"{name}_state", "1 for the state a device is in", labels=["device", "state"])
        turns = CounterMetricFamily(f"{name}_turns", "updates that were used", labels=["device"])
        failures = CounterMetricFamily(f"{name}_failures", "updates that were not", labels=["device"])
        seen = GaugeMetricFamily(f"{name}_last_seen_timestamp_seconds", "of its last message", labels=["device"])
        own, others = members[: self._most], members[self._most :]
        since_1970 = time.time() - roster.clock()
        for member, state in zip(own, states, strict=False):
            current.add_metric([member.name, state], 1)
            seen.add_metric([member.name], since_1970 + member.seen)
        groups: list[tuple[str, list[Member]]] = [(member.name, [member]) for member in own]
        for label, group in groups + ([(OTHERS, others)] if others else []):
            turns.add_metric([label], sum(member.turns for member in group))
            failures.add_metric([label], sum(member.all_failures for member in group))
        yield from (current, turns, failures, seen)


class TopMetrics:
    """Metrics of the top server."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        counter, gauge, histogram = _makers("top", self.registry, _ROUND_SECONDS)
        self.round = gauge("round", "rounds done")
        self.stations = gauge("stations", "stations in the last mean")
        self.missing = counter("missing_stations", "stations missing in a round")
        self.discarded = counter("discarded_rounds", "rounds that ruined the model")
        self.refused = counter("refused", "refused operators")
        self.score = gauge("score", "the score on the held-out set")
        self.loss = gauge("loss", "on the held-out set")
        self.divergence = gauge("divergence", "mean over the last round's teams")
        self.duration = histogram("round_seconds", "time of a round")


def _makers(role: str, registry: CollectorRegistry, seconds: tuple[float, ...]) -> tuple[Any, Any, Any]:
    """Return what makes a counter, a gauge and a histogram of a role."""
    own: dict[str, Any] = {"namespace": "fedgs", "subsystem": role, "registry": registry}
    return partial(Counter, **own), partial(Gauge, **own), partial(Histogram, buckets=seconds, **own)


class _Silent(WSGIRequestHandler):
    timeout = WITHIN  # of a peer that says nothing

    def log_message(self, format: str, *_: Any) -> None:
        """Say nothing: health checks come every few seconds."""

    def get_stderr(self) -> Any:
        """Return where wsgiref writes the traceback of an answer that nobody reads: nowhere."""
        return StringIO()


class _Server(ThreadingWSGIServer):
    """A thread a connection, of which there are few, each for a short time."""

    request_queue_size = 128

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self._open: dict[socket.socket, float] = {}
        """Connections, and when they began; the oldest first."""

    def process_request(self, request: Any, client_address: Any) -> None:
        """Serve a connection; where there are too many, the oldest ends."""
        self._open[request] = time.monotonic()
        for old in list(self._open)[:-MOST]:
            self._end(old)
        super().process_request(request, client_address)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """Serve a connection, in its thread."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._open.pop(request, None)

    def service_actions(self) -> None:
        """End connections that take too long, also those that say a letter now and then."""
        for connection, began in list(self._open.items()):
            if time.monotonic() - began > WITHIN:
                self._end(connection)

    def _end(self, connection: socket.socket) -> None:
        self._open.pop(connection, None)
        with suppress(OSError):  # it has ended meanwhile
            connection.shutdown(socket.SHUT_RDWR)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say in a line what is no fault of the peer."""
        error = sys.exception()
        if not isinstance(error, OSError):
            log.error("metrics request failed", address=client_address[0], reason=f"{type(error).__name__}: {error}")


@contextmanager
def served_metrics(registry: CollectorRegistry, address: str | None, unready: Unready) -> Iterator[str | None]:
    """Serve a registry and the health of this process at an address while the block lasts, from a thread of its own.

    Give the address with its port; None: nothing is served.
    """
    if address is None:
        yield None
        return
    (host, port), loop, metrics = split_address(address), asyncio.get_running_loop(), make_wsgi_app(registry)

    def not_ready() -> str:
        try:
            return asyncio.run_coroutine_threadsafe(unready(), loop).result(READY_WITHIN)
        except (TimeoutError, CancelledError, RuntimeError):  # the last: the loop is closed
            return f"no answer within {READY_WITHIN:g} s"

    def answer(environ: Any, start: Any) -> Any:
        path = environ["PATH_INFO"]
        if path not in ("/healthz", "/readyz"):
            return metrics(environ, start)
        reason = not_ready() if path == "/readyz" else ""
        start("503 Service Unavailable" if reason else "200 OK", [("Content-Type", "text/plain; charset=utf-8")])
        return [f"{reason or 'ok'}\n".encode()]

    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        kind: Any = type("Server", (_Server,), {"address_family": family})
        server = make_server(host, port, answer, kind, handler_class=_Silent)
    except OSError as error:
        raise PeerError(f"--metrics {address}: cannot be listened on ({error.strerror})") from None
    Thread(target=server.serve_forever, args=(0.1,), daemon=True, name="metrics").start()
    try:
        yield f"{f'[{host}]' if ':' in host else host}:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
