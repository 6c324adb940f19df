"""Who is not let in: refused, counted, and logged once a reason."""

import asyncio
import socket
import ssl
import urllib.request
from pathlib import Path

import grpc
import pytest
from prometheus_client.parser import text_string_to_metric_families

from fedgs.deploy import pki
from fedgs.deploy.pki import Bundle, Identity
from fedgs.deploy.transport import GrpcTransport, client_credentials, server_credentials
from fedgs.deploy.wire import ATTACH, RUN_ROUND, STATUS
from fedgs.errors import PeerError
from tests.deploy.devices import HELLO, bundle, good_devices, run_round
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


async def test_a_device_does_not_serve_as_a_station(park: Park) -> None:
    """Its certificate is good, and even names the host; but it is not meant for serving, and devices refuse it."""
    rogue = pki.issue(park.pki, "top", "rogue", pki.LOOPBACK)
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
