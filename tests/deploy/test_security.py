"""Who is not let in: refused, counted, and logged once a reason."""

import asyncio
import resource
import shutil
import socket
import ssl
import subprocess
import sys
import time
import urllib.request
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import grpc
import pytest
from prometheus_client.parser import text_string_to_metric_families

from fedgs.deploy import pki
from fedgs.deploy.pki import Bundle, Identity
from fedgs.deploy.proto import fedgs_wire_pb2 as pb
from fedgs.deploy.transport import Dialer, GrpcTransport, client_credentials, server_credentials
from fedgs.deploy.wire import ATTACH, RUN_ROUND, STATUS, serialise
from fedgs.errors import IdentityError, PeerError
from tests.deploy.devices import (
    HELLO,
    Noise,
    agent,
    announcement,
    bundle,
    good_devices,
    run_round,
    run_top,
    running,
)  # fmt: skip
from tests.deploy.processes import Park, StationHandle, order, wait_for


async def attach(station: StationHandle, channel: "grpc.aio.Channel") -> str:
    """Try to attach as a device; return what came of it."""
    async with channel:
        while True:
            try:
                call = channel.stream_stream(ATTACH)(timeout=20)
                await call.write(HELLO)
                await call.read()
            except grpc.aio.AioRpcError as error:
                if error.code() != grpc.StatusCode.INTERNAL:  # else the refusal overtook the Hello; ask again
                    return f"{error.code().name}: {error.details()}"
            except asyncio.InvalidStateError:
                return f"{(await call.code()).name}: {await call.details()}"
            else:
                return "let in"


async def test_strangers_are_refused_and_logged_once(park: Park, tmp_path: Path) -> None:
    pki.create_authority(tmp_path / "other")
    station = park.station("s1")
    stranger = pki.issue(tmp_path / "other", "device", "d1")
    trusting = tmp_path / "trusting"  # of another authority, but it trusts ours
    pki.issue(tmp_path / "other", "device", "d2", out=trusting)
    (trusting / "ca.crt").write_bytes((park.pki / "ca.crt").read_bytes())
    expired = pki.issue(park.pki, "device", "d3", days=-1)
    secure = grpc.aio.secure_channel
    silent = socket.create_connection(("127.0.0.1", int(station.devices.rpartition(":")[2])))
    for attempt in range(2):
        for folder in (stranger, trusting, expired):
            ended = await attach(station, secure(station.devices, client_credentials(Bundle(folder))))
            assert ended.startswith("UNAVAILABLE"), (folder, attempt)
        authority = grpc.ssl_channel_credentials((park.pki / "ca.crt").read_bytes())
        assert (await attach(station, secure(station.devices, authority))).startswith("UNAVAILABLE")
        assert (await attach(station, grpc.aio.insecure_channel(station.devices))).startswith("UNAVAILABLE")
        # Certificates of the park, but for another role.
        for role in ("top", "station"):
            credentials = client_credentials(bundle(park, role, "x"))
            ended = await attach(station, secure(station.devices, credentials))
            assert ended.startswith(f"PERMISSION_DENIED: spiffe://park/{role}/x is a {role}; only a device may")
        device = GrpcTransport(station.top, bundle(park, "device", "d9"), Identity("park", "device", "d9"), 2.0)
        with pytest.raises(PeerError, match="only a top may do this"):
            await device.run_round(order())
    # A device whose certificate is good is let in all the same.
    async with good_devices(park, station, "a"):
        pass
    expected = {
        "TLS: a certificate of another authority",
        "TLS: certificate has expired",
        "TLS: no certificate",
        "TLS: no handshake within 5 s",
        "TLS: plain text, not TLS",
        "spiffe://park/top/x is a top; only a device may do this",
        "spiffe://park/station/x is a station; only a device may do this",
        "spiffe://park/device/d9 is a device; only a top may do this",
    }

    def reasons() -> list[str]:
        return sorted(line["reason"] for line in park.log("s1", "connection refused"))

    wait_for(lambda: set(reasons()) >= expected, 20, f"all reasons: {reasons()}")
    assert set(reasons()) - {"TLS: the peer does not trust our authority"} == expected
    assert len(reasons()) == len(set(reasons()))  # each once, though all came twice
    assert {line["address"] for line in park.log("s1", "connection refused")} == {"127.0.0.1"}
    silent.settimeout(10)
    assert silent.recv(1) == b""
    silent.close()


async def test_a_device_is_refused_at_the_control_port_before_it_has_sent_anything(park: Park) -> None:
    """Or its orders, each as large as a model may be, would lie in the station's memory until they are refused."""
    station = await park.serve("s1")
    credentials = client_credentials(bundle(park, "device", "a"))
    async with grpc.aio.secure_channel(station.top, credentials) as channel:
        for method in (RUN_ROUND, STATUS):
            call = channel.stream_unary(method)(timeout=20)  # opened, and nothing written
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await call
            assert refused.value.code() == grpc.StatusCode.PERMISSION_DENIED


async def test_an_operator_does_not_serve_as_a_station(park: Park) -> None:
    """Its certificate is good, and even names the host; but it is not meant for serving, and devices refuse it."""
    rogue = pki.issue(park.pki, "operator", "rogue", pki.LOOPBACK)
    server = grpc.aio.server()
    port = server.add_secure_port("127.0.0.1:0", server_credentials(Bundle(rogue)))
    await server.start()
    credentials = client_credentials(bundle(park, "device", "a"))
    async with grpc.aio.secure_channel(f"127.0.0.1:{port}", credentials) as channel:
        with pytest.raises(grpc.aio.AioRpcError, match="CERTIFICATE_VERIFY_FAILED"):
            await channel.unary_unary("/any/Thing")(b"", timeout=10)
    await server.stop(0)


@pytest.mark.parametrize("policy", ["replace", "refuse"])
async def test_a_second_connection_of_a_device_replaces_the_first_or_is_refused(park: Park, policy: str) -> None:
    station = await park.serve("s1", duplicates=policy)
    async with good_devices(park, station, "a"):
        credentials = client_credentials(bundle(park, "device", "a"))
        ended = await attach(station, grpc.aio.secure_channel(station.devices, credentials))
        if policy == "refuse":
            assert ended == "ALREADY_EXISTS: device a is connected already"
            assert station.states() == {"a": "waiting"}
            return
        # The second lives until its own time is up, or until the first one comes back.
        lines = [line for line in park.log("s1", "device joined") if line["device"] == "a"]
        assert len(lines) >= 2
        assert all(line["online"] == 1 for line in lines)


def serial(park: Park, address: str) -> int:
    """Return the number of the certificate that a station shows to device a."""
    host, _, port = address.rpartition(":")
    context = ssl.create_default_context(cafile=str(park.pki / "ca.crt"))
    context.load_cert_chain(park.pki / "device" / "a" / "cert.pem", park.pki / "device" / "a" / "key.pem")
    context.set_alpn_protocols(["h2"])
    with (
        socket.create_connection((host, int(port))) as plain,
        context.wrap_socket(plain, server_hostname=host) as secure,
    ):
        return int(str(secure.getpeercert()["serialNumber"]), 16)  # type: ignore[index]


async def test_a_renewed_certificate_needs_no_restart_and_metrics_are_served(park: Park) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    station = park.station("s1", "--metrics", f"127.0.0.1:{port}")
    async with good_devices(park, station, "a", "b", "c"):
        await run_round(station, 1, 4)
    before = serial(park, station.devices)
    pki.issue(park.pki, "station", "s1", pki.LOOPBACK, renew=True)
    assert serial(park, station.devices) != before
    page = urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=5).read().decode()
    values = {
        (sample.name, *sample.labels.values()): sample.value
        for family in text_string_to_metric_families(page)
        for sample in family.samples
    }
    assert values["fedgs_station_iterations_total",] == values["fedgs_station_selection_seconds_count",] == 4
    assert values["fedgs_station_updates_total", "used"] == 12
    assert values["fedgs_station_rounds_total",] == 1
    assert values["fedgs_station_received_bytes_total",] > 12 * 4 * 260


async def offline(station: StationHandle, name: str, seconds: float) -> None:
    await asyncio.to_thread(wait_for, lambda: station.states().get(name) == "offline", seconds, f"{name} to be offline")


async def test_revoked_superseded_and_expired_certificates_end_open_streams_and_open_none(
    park: Park, tmp_path: Path
) -> None:
    """Within five seconds, without a restart; the top server's certificate too."""
    station = park.station("s1")
    pki.issue(park.pki, "device", "short", days=6 / 86400)
    ends = time.monotonic() + 6
    async with good_devices(park, station, "a", "b", "short"):
        shutil.copytree(park.pki / "device" / "b", tmp_path / "old")
        pki.revoke(park.pki, "device/a")
        pki.issue(park.pki, "device", "b", renew=True)
        await offline(station, "a", 5)
        await offline(station, "short", max(0.1, ends + 5 - time.monotonic()))
        await asyncio.to_thread(wait_for, lambda: station.states()["b"] != "offline", 10, "b with its new certificate")
        for folder in (tmp_path / "old", park.pki / "device" / "a"):
            channel = grpc.aio.secure_channel(station.devices, client_credentials(Bundle(folder)))
            ended = await attach(station, channel)
            assert ended == "PERMISSION_DENIED: the certificate is revoked, or superseded by a newer one"
    reasons = [line.get("reason") for line in park.log("s1", "device left") if line["device"] == "short"]
    assert "expired" in reasons[0]
    top = GrpcTransport(station.top, bundle(park, "top", "top"), Identity("park", "top", "top"), 2.0)
    training = asyncio.ensure_future(top.run_round(order(1, 3)))
    pki.revoke(park.pki, "top")
    with pytest.raises(PeerError, match="revoked"):
        await asyncio.wait_for(training, 10)
    other = GrpcTransport(station.top, bundle(park, "top", "other"), Identity("park", "top", "other"), 2.0, epoch=1)
    await other.find()
    async with good_devices(park, station, "c"):
        training = asyncio.ensure_future(other.run_round(order(2, 20_000)))
        pki.revoke(park.pki, "station/s1")  # whoever is connected to it leaves it
        await offline(station, "c", 5)
        with pytest.raises(IdentityError, match="station s1: the certificate is revoked"):
            await asyncio.wait_for(training, 10)
    with pytest.raises(IdentityError, match="no certificate of 'nobody' that is still valid"):
        pki.revoke(park.pki, "nobody")


async def test_a_list_that_the_authority_has_not_signed_or_an_old_one_changes_nothing(
    park: Park, tmp_path: Path
) -> None:
    station = await park.serve("s1")
    own = park.pki / "station" / "s1" / "revoked.pem"
    own.write_text("\n")  # none yet
    async with good_devices(park, station, "a", "b"):
        pki.create_authority(tmp_path / "other")
        pki.issue(tmp_path / "other", "device", "a")
        pki.revoke(tmp_path / "other", "a")
        own.write_bytes((tmp_path / "other" / "revoked.pem").read_bytes())
        await asyncio.to_thread(wait_for, lambda: park.log("s1", "revocation list is not used"), 5, "the line")
        pki.revoke(park.pki, "a")
        first = own.read_bytes()
        await offline(station, "a", 5)
        pki.revoke(park.pki, "b")
        await offline(station, "b", 5)
        own.write_bytes(first)
        await asyncio.to_thread(wait_for, lambda: len(park.log("s1", "revocation list is not used")) == 2, 5, "it")
        assert "older" in park.log("s1", "revocation list is not used")[-1]["reason"]
        assert station.states()["b"] == "offline"


@pytest.mark.parametrize("rest", [300, 1, None])
def test_no_station_starts_with_a_list_that_is_torn_or_another_s(park: Park, tmp_path: Path, rest: int | None) -> None:
    """Or it would let in whoever is revoked."""
    folder = pki.issue(park.pki, "station", "s1", pki.LOOPBACK)
    signer = park.pki if rest else tmp_path / "other"
    if not rest:
        pki.create_authority(signer)
    pki.issue(signer, "device", "a")
    pki.revoke(signer, "a")
    (folder / "revoked.pem").write_bytes((signer / "revoked.pem").read_bytes()[:rest])
    options = ["--listen", "127.0.0.1:0", "--state", "s1", "--certificates", str(folder), "--name", "s1"]
    done = subprocess.run(
        [sys.executable, "-m", "fedgs", "station", *options], cwd=tmp_path, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert "revoked.pem: cannot be used, it is " in done.stderr


async def test_devices_refuse_a_server_of_another_role_and_a_revoked_station(park: Park) -> None:
    """The certificate of a SuperLink may serve, and names the host: gRPC alone would take it."""
    dialer = Dialer("127.0.0.1:1", Identity("park", "device", "a"), bundle(park, "device", "a"), 2.0, 1 << 20)
    other = "only a station of this park may"
    for role, reason in (("superlink", other), ("top", other), ("station", "revoked")):
        server = grpc.aio.server()
        folder = pki.issue(park.pki, role, "rogue", pki.LOOPBACK)
        port = server.add_secure_port("127.0.0.1:0", server_credentials(Bundle(folder)))
        await server.start()
        there = replace(dialer, address=f"127.0.0.1:{port}")
        if role == "station":
            async with there.channel():
                pki.revoke(park.pki, "station/rogue")
        with pytest.raises(IdentityError, match=reason):
            async with there.channel():
                pass
        await server.stop(0)


async def test_a_device_is_active_at_one_station_at_a_time(park: Park) -> None:
    stations = [await park.serve(name, gather=1) for name in ("s1", "s2")]
    copies = [agent(park, station, "copied", Noise(0)).run() for station in stations]
    others = [agent(park, station, f"own-{station.name}", Noise(1)).run() for station in stations]
    options = ["task.model=linear", "training.rounds=4", "training.iterations=3", "training.batch_size=5",
               "federation.factories=2", "federation.devices=4", "selection.pick=2"]  # fmt: skip
    async with running(*copies, *others):
        for station in stations:
            await asyncio.to_thread(station.wait_ready, 2)
        await run_top(park, stations, options, classes=4, image="8x8")
        assert stations[0].states()["copied"] != "offline"
        assert stations[1].states()["copied"] == "offline"
        assert stations[1].states()["own-s2"] != "offline"
    assert park.log("s1", "a device is at two stations; the first one keeps it")
    assert any("active at another station" in line["reason"] for line in park.log("s1", "connection refused"))


async def test_a_station_obeys_one_top_server_and_of_a_run_the_newest_epoch(park: Park) -> None:
    """Over the control port; the lease outlives the station's process."""
    station = park.station("s1", "--gather", "0.1")
    certificate, identity = bundle(park, "top", "top"), Identity("park", "top", "top")

    async def ask(run: str, epoch: int, number: int, rounds: int = 99) -> str:
        try:
            transport = GrpcTransport(station.top, certificate, identity, 2.0, epoch=epoch, rounds=rounds)
            await transport.run_round(order(number, 1, run=run))
        except PeerError as error:
            return str(error)
        return "done"

    assert await ask("first", 10, 1) == "done"
    for _ in range(3):  # who waits asks again and again; the station says so once
        assert "another top server holds the lease, with the run 'first'" in await ask("second", 20, 1)
    (refused,) = park.log("s1", "connection refused")
    assert ("'second'" in refused["reason"], refused["address"]) == (True, "127.0.0.1")
    assert await ask("first", 30, 2) == "done"  # its process was started again
    assert "a newer top server has taken over" in await ask("first", 10, 3)
    station.process.kill()
    station.process.wait()
    station = await asyncio.to_thread(park.station, "s1", "--gather", "0.1")
    assert "holds the lease" in await ask("second", 40, 1)
    assert "a newer top server" in await ask("first", 10, 3)
    assert await ask("first", 30, 3, rounds=3) == "done"  # its last round
    assert await ask("second", 40, 1) == "done"
    assert "holds the lease" in await ask("first", 30, 4)
    assert await ask("second", 40, 2, rounds=2) == "done"
    assert await ask("third", 35, 1) == "done"  # it was started earlier, and has waited for its turn
    assert not park.log("s1", "round failed")


async def test_bare_connections_keep_no_device_out(park: Park) -> None:
    """1,300 of them against 1,024 file descriptors."""
    station = park.station("s1")
    resource.prlimit(station.process.pid, resource.RLIMIT_NOFILE, (1024, 1024))
    host, _, port = station.devices.rpartition(":")
    held: list[socket.socket] = []
    try:
        for _ in range(1300):
            held.append(socket.create_connection((host, int(port)), 5))
        began = time.monotonic()
        async with good_devices(park, station, "a"):
            assert time.monotonic() - began < 15
    finally:
        for one in held:
            one.close()
    lines = [line for line in park.log("s1", "connection refused") if "ask for nothing" in line["reason"]]
    assert [line["address"] for line in lines] == ["127.0.0.1"]


async def test_a_device_that_announces_without_end_is_disconnected(park: Park) -> None:
    station = await park.serve("s1", gather=0.1)
    await run_round(station, 1, 1)  # a task
    credentials = client_credentials(bundle(park, "device", "a"))
    async with grpc.aio.secure_channel(station.devices, credentials) as channel:
        call = channel.stream_stream(ATTACH)(timeout=20)
        await call.write(HELLO)
        await call.read()
        with suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError):  # the station has ended the stream
            for number in range(1, 1000):
                await call.write(serialise(pb.Up(ready=announcement(number).message)))
                await asyncio.sleep(0.001)
        assert number < 500
    (line,) = park.log("s1", "no update")
    assert (line["outcome"], line["address"]) == ("rejected", "127.0.0.1")
    assert "again and again" in line["reason"]
