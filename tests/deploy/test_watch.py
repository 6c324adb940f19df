"""What operators see of a park: over HTTP, over gRPC, and who sees nothing."""

import asyncio
import json
import os
import socket
import time
import urllib.request
from contextlib import ExitStack, suppress
from pathlib import Path
from urllib.error import HTTPError

import grpc
import pytest
from prometheus_client.parser import text_string_to_metric_families

from fedgs.config import load_settings
from fedgs.deploy import pki
from fedgs.deploy.connections import Doorkeeper
from fedgs.deploy.metrics import TopMetrics
from fedgs.deploy.pki import Identity
from fedgs.deploy.proto import fedgs_wire_pb2 as pb
from fedgs.deploy.settings import TopSettings
from fedgs.deploy.station_list import StationList
from fedgs.deploy.station_process import Control
from fedgs.deploy.top_client import Followed, TopClient
from fedgs.deploy.top_process import carry_out
from fedgs.deploy.top_service import TopView
from fedgs.deploy.transport import Dialer, GrpcTransport, client_credentials
from fedgs.errors import PeerError
from tests.deploy.devices import bundle, good_devices, run_round, running
from tests.deploy.processes import Park, wait_for

HEALTH = "/grpc.health.v1.Health/Check"
SERVING, NOT_SERVING = b"\x08\x01", b"\x08\x02"
RUN = ["task.model=linear", "training.rounds=100000", "training.iterations=2", "training.batch_size=5",
       "federation.factories=2", "federation.devices=4", "selection.pick=2"]  # fmt: skip


def addresses(folder: Path) -> dict[str, str]:
    return dict(line.split() for line in (folder / "addresses.txt").read_text().splitlines())


async def asked(address: str, path: str) -> tuple[int, str]:
    def ask() -> tuple[int, str]:
        try:
            with urllib.request.urlopen(f"http://{address}{path}", timeout=20) as answer:
                return answer.status, answer.read().decode()
        except HTTPError as error:
            return error.code, error.read().decode()

    return await asyncio.to_thread(ask)


async def scraped(address: str) -> dict[tuple[str, ...], float]:
    _, page = await asked(address, "/metrics")
    families = text_string_to_metric_families(page)
    return {(one.name, *one.labels.values()): one.value for family in families for one in family.samples}


async def health(park: Park, address: str, role: str, service: str = "") -> bytes | grpc.StatusCode:
    async with grpc.aio.secure_channel(address, client_credentials(bundle(park, role, "x"))) as channel:
        try:
            answer: bytes = await channel.unary_unary(HEALTH)(
                pb.HealthIn(service=service).SerializeToString(), timeout=20
            )
        except grpc.aio.AioRpcError as error:
            code: grpc.StatusCode = error.code()
            return code
    return answer


async def test_metrics_of_devices_are_bounded_and_health_is_told(park: Park) -> None:
    station = await park.serve("s1", metrics="127.0.0.1:0", metrics_devices=2, gather=1)
    address = addresses(park.folder / "s1")["metrics"]
    async with good_devices(park, station, "a", "b", "c"):
        await run_round(station, 1, 4)
        assert (await asked(address, "/readyz"))[0] == (await asked(address, "/healthz"))[0] == 200
        found = await scraped(address)
        assert found["fedgs_station_devices", "online"] == 3
        assert found["fedgs_station_devices_left_out",] == 1
        for name in ("a", "b", "(others)"):  # all three trained in each of four iterations
            assert found["fedgs_station_device_turns_total", name] == 4
            assert found["fedgs_station_device_failures_total", name] == 0
        assert found["fedgs_station_device_last_seen_timestamp_seconds", "a"] > 1.7e9
        series = {key[1] for key in found if key[0].startswith("fedgs_station_device_")}
        assert series == {"a", "b", "(others)"}
        assert await health(park, station.devices, "device") == SERVING
        assert await health(park, station.devices, "operator", "fedgs.v1.Edge") == SERVING
        assert await health(park, station.devices, "operator", "nothing") == grpc.StatusCode.NOT_FOUND
        assert await health(park, station.top, "operator") == SERVING
        assert await health(park, station.top, "device") == grpc.StatusCode.PERMISSION_DENIED
    await asyncio.to_thread(wait_for, lambda: set(station.states().values()) == {"offline"}, 10, "devices to leave")
    assert isinstance(station.runs, Control)
    roster, now = station.runs.station.roster, time.monotonic
    roster.clock = lambda: now() + 25 * 3600
    found = await scraped(address)
    assert not [key for key in found if key[0].startswith("fedgs_station_device_")]
    assert found["fedgs_station_devices", "offline"] == found["fedgs_station_devices_left_out",] == 0
    pki.issue(park.pki, "station", "s1", pki.LOOPBACK, days=-1, renew=True)  # devices could not connect any more
    code, reason = await asked(address, "/readyz")
    assert code == 503
    assert "expired" in reason
    assert (await asked(address, "/healthz"))[0] == 200


async def test_whoever_says_nothing_or_little_keeps_nobody_from_the_metrics(
    park: Park, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("fedgs.deploy.metrics.WITHIN", 0.5)
    monkeypatch.setattr("fedgs.deploy.metrics._Silent.timeout", 0.3)
    await park.serve("s1", metrics="127.0.0.1:0")
    address = addresses(park.folder / "s1")["metrics"]
    place = ("127.0.0.1", int(address.rpartition(":")[2]))

    def drip() -> float:
        began = time.monotonic()
        with socket.create_connection(place) as slow, suppress(OSError):
            while time.monotonic() < began + 5:
                slow.sendall(b"G")
                slow.settimeout(0.1)
                with suppress(TimeoutError):
                    if not slow.recv(10):
                        break
        return time.monotonic() - began

    with ExitStack() as opened:
        silent = [opened.enter_context(socket.create_connection(place)) for _ in range(100)]
        assert (await asked(address, "/healthz"))[0] == 200
        for connection in silent:
            connection.settimeout(5)
            with suppress(ConnectionError):
                assert await asyncio.to_thread(connection.recv, 10) == b""
    assert await asyncio.to_thread(drip) < 2
    assert "Traceback" not in capfd.readouterr().err


def test_a_connection_that_asks_again_and_again_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its calls are short: hardly any look of the doorkeeper finds one under way."""
    monkeypatch.setattr("fedgs.deploy.connections.PATIENCE", 1.0)
    ended: list[str] = []
    doorkeeper = Doorkeeper(lambda reason, _: ended.append(reason))
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        with socket.create_connection(("127.0.0.1", port)) as caller, doorkeeper.watching(port):
            peer, _ = server.accept()
            until = time.monotonic() + 2.5
            while time.monotonic() < until:
                with doorkeeper.serving(f"ipv4:127.0.0.1:{caller.getsockname()[1]}"):
                    pass
                time.sleep(0.05)
            assert ended == []
            wait_for(lambda: ended, 10, "the connection to be ended, once it asks nothing")
            peer.close()


def client(park: Park, address: str, role: str = "operator", certificate: pki.Bundle | None = None) -> TopClient:
    given = certificate or bundle(park, role, "x")
    return TopClient(Dialer(address, Identity("park", role, "x"), given, 2.0, 1 << 24, "top"))


async def test_a_top_server_tells_operators_how_the_run_goes_and_nobody_else(park: Park) -> None:
    """One of its two stations is not there."""
    station, dead = await park.serve("s1", gather=1), "127.0.0.1:1"
    certificate, folder = pki.Bundle(pki.issue(park.pki, "top", "top", pki.LOOPBACK)), park.folder / "state"
    stations = StationList(
        [GrpcTransport(address, certificate, Identity("park", "top", "top"), 2.0) for address in (station.top, dead)]
    )
    settings = load_settings(overrides=RUN)
    options = TopSettings(classes=4, image="8x8", metrics="127.0.0.1:0", min_stations=1, linger=0.2)
    run = carry_out(settings, options, folder, stations, listen="127.0.0.1:0", bundle=certificate)
    async with good_devices(park, station, "a", "b"), running(run):
        await asyncio.to_thread(wait_for, (folder / "addresses.txt").exists, 60, "the top server to serve")
        address = addresses(folder)["operators"]
        await asyncio.to_thread(_followed, client(park, address), folder)
        assert await health(park, address, "operator") == SERVING
        assert (await asked(addresses(folder)["metrics"], "/readyz"))[0] == 200
        both = TopView(settings, TopSettings(min_stations=2), stations, TopMetrics())
        assert "1 of 2 stations answer" in await both.unready()
        for role in ("device", "station"):
            with pytest.raises(PeerError, match="only a top or operator"):
                await asyncio.to_thread(client(park, address, role).status)
            assert await health(park, address, role) == grpc.StatusCode.PERMISSION_DENIED
        pki.create_authority(park.folder / "others")
        stranger = pki.issue(park.folder / "others", "operator", "x")
        lost = pki.issue(park.pki, "operator", "lost")
        await asyncio.to_thread(client(park, address, "operator", pki.Bundle(lost)).status)
        pki.revoke(park.pki, "operator/lost")
        for where, given, reason in (
            (address, stranger, "refused"),
            (address, lost, "revoked"),
            (dead, park.pki / "operator/x", f"{dead}: nobody answers"),
            (station.top, park.pki / "operator/x", "only a top of this park may"),
        ):
            with pytest.raises(PeerError, match=reason):
                await asyncio.to_thread(client(park, where, "operator", pki.Bundle(given)).status)


async def test_a_revoked_station_is_no_longer_healthy_and_a_renewed_one_is(
    park: Park, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Asked over a connection that was there before; nobody is told of a connection that is no longer needed."""
    monkeypatch.setattr("fedgs.deploy.top_service.FRESH", 0.0)
    monkeypatch.setattr("fedgs.deploy.top_service.IDLE", 0.2)
    station = await park.serve("s1", gather=1)
    certificate = pki.Bundle(pki.issue(park.pki, "top", "top", pki.LOOPBACK))
    stations = StationList([GrpcTransport(station.top, certificate, Identity("park", "top", "top"), 2.0)])
    view = TopView(load_settings(overrides=RUN), TopSettings(), stations, TopMetrics())
    assert await view.unready() == ""
    pki.issue(park.pki, "station", "s1", pki.LOOPBACK, renew=True)
    assert await view.unready() == ""
    pki.revoke(park.pki, "station/s1")
    assert await view.unready() == "0 of 1 stations answer, 1 are needed"
    (report,) = await view.stations()
    assert "station s1: the certificate is revoked" in report.fault
    assert isinstance(station.runs, Control)
    assert "the certificate is revoked" in await station.runs.unready()
    pki.issue(park.pki, "station", "s1", pki.LOOPBACK, renew=True)
    assert await view.unready() == ""
    port = int(station.top.rpartition(":")[2])
    await asyncio.to_thread(wait_for, lambda: not connections_to(port), 5, "the connection to be closed")


def connections_to(port: int) -> int:
    """Return how many connections of this process go to a port."""
    found = 0
    for number in os.listdir("/proc/self/fd"):
        with suppress(OSError):
            connection = socket.socket(fileno=int(number))
            try:
                found += connection.family == socket.AF_INET and connection.getpeername()[1] == port
            finally:
                connection.detach()
    return found


def _followed(operator: TopClient, folder: Path) -> None:
    """Look at a run until it has had some rounds: every line is told once."""
    run = Followed(operator)
    while len(run.lines) < 4:
        assert not run.look()
    assert run.status.rounds == 100000
    assert run.classes == ["0", "1", "2", "3"]
    assert sum(run.status.target) == pytest.approx(1)
    known = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert run.lines[:3] == known[:3]
    assert [line["round"] for line in run.lines] == list(range(len(run.lines)))
    first, second = run.status.stations
    assert "nobody answers" in second.fault
    assert [one.name for one in first.status.devices] == ["a", "b"]
    assert all(one.turns > 0 for one in first.status.devices)
    weights = 4 * 260  # the bytes of a model, once each way and round
    rounds = len(run.lines) - 1
    assert first.status.top_sent_bytes >= weights * rounds
    assert first.status.top_received_bytes >= weights * rounds
