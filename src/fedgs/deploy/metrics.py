"""Prometheus metrics of station and top server, each in a registry of its own."""

from functools import partial
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, start_http_server

from fedgs.deploy.membership import Roster
from fedgs.deploy.transport import split_address
from fedgs.errors import PeerError

_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)
_ROUND_SECONDS = (0.1, 0.5, 1, 5, 10, 30, 60, 300, 600, 1800, 3600)


class StationMetrics:
    """Metrics of a station."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        counter, gauge, histogram = _makers("station", self.registry, _SECONDS)
        self._devices = gauge("devices", "devices by state", ["state"])
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

    def devices(self, roster: Roster) -> None:
        """Count the devices anew."""
        online = roster.online
        self._devices.labels("online").set(len(online))
        self._devices.labels("quarantined").set(sum(map(roster.is_quarantined, online)))


class TopMetrics:
    """Metrics of the top server."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        counter, gauge, histogram = _makers("top", self.registry, _ROUND_SECONDS)
        self.round = gauge("round", "rounds done")
        self.stations = gauge("stations", "stations in the last mean")
        self.missing = counter("missing_stations", "stations missing in a round")
        self.score = gauge("score", "the score on the held-out set")
        self.loss = gauge("loss", "on the held-out set")
        self.divergence = gauge("divergence", "mean over the last round's teams")
        self.duration = histogram("round_seconds", "time of a round")


def _makers(role: str, registry: CollectorRegistry, seconds: tuple[float, ...]) -> tuple[Any, Any, Any]:
    """Return what makes a counter, a gauge and a histogram of a role."""
    own: dict[str, Any] = {"namespace": "fedgs", "subsystem": role, "registry": registry}
    return partial(Counter, **own), partial(Gauge, **own), partial(Histogram, buckets=seconds, **own)


def serve_metrics(registry: CollectorRegistry, address: str | None) -> None:
    """Serve a registry at http://ADDRESS/metrics, from a thread of its own; None: do not."""
    if address is None:
        return
    host, port = split_address(address)
    try:
        start_http_server(port, host, registry)
    except OSError as error:
        raise PeerError(f"--metrics {address}: cannot be listened on ({error.strerror})") from None
