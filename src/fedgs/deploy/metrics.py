"""Prometheus metrics of station and top server, each in a registry of its own."""

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, start_http_server

from fedgs.deploy.membership import Roster
from fedgs.deploy.tls import split_address
from fedgs.errors import PeerError

_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)
_ROUND_SECONDS = (0.1, 0.5, 1, 5, 10, 30, 60, 300, 600, 1800, 3600)


class StationMetrics:
    """Metrics of a station."""

    def __init__(self) -> None:
        self.registry = registry = CollectorRegistry()
        self._devices = Gauge("fedgs_station_devices", "devices by state", ["state"], registry=registry)
        self.updates = Counter("fedgs_station_updates", "steps of selected devices", ["outcome"], registry=registry)
        self.refused = Counter("fedgs_station_refused", "refused connections", registry=registry)
        self.iterations = Counter("fedgs_station_iterations", "internal synchronisations", registry=registry)
        self.rounds = Counter("fedgs_station_rounds", "rounds carried out", registry=registry)
        self.selecting = Histogram(
            "fedgs_station_selection_seconds", "time of a selection", buckets=_SECONDS, registry=registry
        )
        self.iterating = Histogram(
            "fedgs_station_iteration_seconds", "time of an iteration", buckets=_SECONDS, registry=registry
        )
        self.divergence = Gauge("fedgs_station_divergence", "of the last team", registry=registry)
        self.loss = Gauge("fedgs_station_loss", "training loss of the last iteration", registry=registry)
        self.sent = Counter("fedgs_station_sent_bytes", "to devices", registry=registry)
        self.received = Counter("fedgs_station_received_bytes", "from devices", registry=registry)
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
        self.registry = registry = CollectorRegistry()
        self.round = Gauge("fedgs_top_round", "rounds done", registry=registry)
        self.stations = Gauge("fedgs_top_stations", "stations in the last mean", registry=registry)
        self.missing = Counter("fedgs_top_missing_stations", "stations missing in a round", registry=registry)
        self.score = Gauge("fedgs_top_score", "the score on the held-out set", registry=registry)
        self.loss = Gauge("fedgs_top_loss", "on the held-out set", registry=registry)
        self.divergence = Gauge("fedgs_top_divergence", "mean over the last round's teams", registry=registry)
        self.duration = Histogram(
            "fedgs_top_round_seconds", "time of a round", buckets=_ROUND_SECONDS, registry=registry
        )


def serve_metrics(registry: CollectorRegistry, address: str | None) -> None:
    """Serve a registry at http://ADDRESS/metrics, from a thread of its own; None: do not."""
    if address is None:
        return
    host, port = split_address(address)
    try:
        start_http_server(port, host, registry)
    except OSError as error:
        raise PeerError(f"--metrics {address}: cannot be listened on ({error.strerror})") from None
