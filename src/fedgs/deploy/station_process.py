"""The process of ``fedgs station``: two servers and a Unix socket, from start to a clean end."""

import asyncio
from pathlib import Path
from typing import Any

import grpc

from fedgs.deploy.control import Control
from fedgs.deploy.logs import RefusedHandshakes, log, set_up
from fedgs.deploy.metrics import StationMetrics, serve_metrics
from fedgs.deploy.process import claim, end_with_parent, socket_path, stop_signal
from fedgs.deploy.round_messages import LARGEST_ROUND
from fedgs.deploy.settings import StationSettings
from fedgs.deploy.station import Station
from fedgs.deploy.tls import Bundle, check_plain, server_credentials, server_options, split_address, watch_expiry
from fedgs.deploy.wire import LARGEST_MESSAGE
from fedgs.errors import PeerError
from fedgs.files import write_text

ADDRESSES = "addresses.txt"


def run_station(
    name: str, listen: str, state: Path, settings: StationSettings, bundle: Bundle | None, control: str | None = None
) -> None:
    """Serve devices at ``listen`` and the top server at ``control`` until told to stop.

    ``bundle`` None: plain text on the loopback. ``control`` None: the Unix socket in ``state`` is the only way.
    """
    end_with_parent()
    for address in (listen, control):
        if address is not None and bundle is None:
            check_plain(address)
    socket = socket_path(state)
    with claim(state, "station"):
        metrics = StationMetrics()
        serve_metrics(metrics.registry, settings.metrics)
        station = Station(settings, metrics, insecure=bundle is None)
        handshakes = RefusedHandshakes(lambda reason: station.refuse(f"TLS: {reason}"))
        set_up(settings.log_level, settings.log_json, handshakes.stderr)
        try:
            asyncio.run(_serve(Control(name, station, state), listen, control, bundle, socket))
        finally:
            handshakes.close()
            socket.unlink(missing_ok=True)


async def _serve(service: Control, listen: str, control: str | None, bundle: Bundle | None, socket: Path) -> None:
    station = service.station
    keepalive = station.settings.keepalive
    edge = grpc.aio.server(options=server_options(keepalive, LARGEST_MESSAGE))
    attach = grpc.stream_stream_rpc_method_handler(station.attach)
    edge.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("fedgs.v1.Edge", {"Attach": attach}),))
    inner = grpc.aio.server(options=server_options(keepalive, LARGEST_ROUND))
    run_round, status = map(grpc.stream_unary_rpc_method_handler, (service.run_round, service.status))
    methods = {"RunRound": run_round, "Status": status}
    inner.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("fedgs.v1.StationControl", methods),))
    devices = _listen(edge, listen, bundle, "--listen")
    tops = None if control is None else _listen(inner, control, bundle, "--control")
    try:
        inner.add_insecure_port(f"unix:{socket}")
    except RuntimeError:
        raise PeerError(f"{socket}: cannot be listened on") from None
    warm = asyncio.ensure_future(asyncio.to_thread(_warm_up))
    watching = asyncio.ensure_future(watch_expiry(bundle))
    await edge.start()
    await inner.start()
    socket.chmod(0o600)
    write_text(socket.parent / ADDRESSES, f"devices {devices}\n" + (f"top {tops}\n" if tops else ""))
    log.info("station serves", extra={"station": service.name, "devices": devices, "top": tops, "socket": str(socket)})
    await stop_signal()
    log.info("station stops")
    warm.cancel()
    watching.cancel()
    await station.say_goodbye("the station stops")
    await asyncio.gather(edge.stop(0.5), inner.stop(0.5))


def _warm_up() -> None:
    """Load the compiled selection while devices connect; the first time it is compiled, which takes a while."""
    import numpy as np

    from fedgs.selection import SelectionProblem
    from fedgs.selection.solve import warm_up

    warm_up("gbp-cs", SelectionProblem(np.eye(3), np.full(3, 1 / 3), 1))


def _listen(server: Any, address: str, bundle: Bundle | None, option: str) -> str:
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
