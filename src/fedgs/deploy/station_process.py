"""The process of ``fedgs station``: two servers and a Unix socket, from start to a clean end."""

import asyncio
import contextlib
import signal
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc

from fedgs.deploy.contract import LARGEST_ROUND
from fedgs.deploy.control import Control
from fedgs.deploy.folder import claim, socket_path
from fedgs.deploy.logs import RefusedHandshakes, log, set_up
from fedgs.deploy.metrics import StationMetrics, serve_metrics
from fedgs.deploy.parent import end_with_parent
from fedgs.deploy.settings import StationSettings
from fedgs.deploy.station import Station
from fedgs.deploy.tls import Bundle, check_plain, server_credentials, server_options, split_address, watch_expiry
from fedgs.deploy.wire import LARGEST_MESSAGE
from fedgs.errors import PeerError
from fedgs.files import write_text

ADDRESSES = "addresses.txt"


@dataclass(frozen=True)
class StationProcess:
    """What a station is started with."""

    name: str
    listen: str
    """Where devices dial in."""
    state: Path
    settings: StationSettings
    bundle: Bundle | None
    """None: plain text on the loopback."""
    control: str | None = None
    """Where the top server dials in; None: only through the Unix socket."""
    metrics: str | None = None
    log_level: str = "info"
    log_json: bool = False


def run_station(process: StationProcess) -> None:
    """Serve until told to stop."""
    end_with_parent()
    for address in (process.listen, process.control):
        if address is not None and process.bundle is None:
            check_plain(address)
    socket = socket_path(process.state)
    with claim(process.state, "station"):
        metrics = StationMetrics()
        if process.metrics is not None:
            serve_metrics(metrics.registry, process.metrics)
        station = Station(process.settings, metrics, insecure=process.bundle is None)
        handshakes = RefusedHandshakes(lambda reason: station.refuse(f"TLS: {reason}"))
        set_up(process.log_level, process.log_json, handshakes.stderr)
        try:
            asyncio.run(_serve(process, station, socket))
        finally:
            handshakes.close()
            socket.unlink(missing_ok=True)


async def _serve(process: StationProcess, station: Station, socket: Path) -> None:
    control = Control(process.name, station, process.state)
    keepalive = process.settings.keepalive
    edge = grpc.aio.server(options=server_options(keepalive, LARGEST_MESSAGE))
    attach = grpc.stream_stream_rpc_method_handler(station.attach)
    edge.add_generic_rpc_handlers((_handlers("fedgs.v1.Edge", Attach=attach),))
    inner = grpc.aio.server(options=server_options(keepalive, LARGEST_ROUND))
    run_round, status = map(grpc.stream_unary_rpc_method_handler, (control.run_round, control.status))
    inner.add_generic_rpc_handlers((_handlers("fedgs.v1.StationControl", RunRound=run_round, Status=status),))
    devices = _listen(edge, process.listen, process.bundle, "--listen")
    tops = None if process.control is None else _listen(inner, process.control, process.bundle, "--control")
    try:
        inner.add_insecure_port(f"unix:{socket}")
    except RuntimeError:
        raise PeerError(f"{socket}: cannot be listened on") from None
    warm = asyncio.ensure_future(asyncio.to_thread(_warm_up))
    watching = asyncio.ensure_future(watch_expiry(process.bundle))
    await edge.start()
    await inner.start()
    socket.chmod(0o600)
    write_text(process.state / ADDRESSES, f"devices {devices}\n" + (f"top {tops}\n" if tops else ""))
    log.info("station serves", extra={"station": process.name, "devices": devices, "top": tops, "socket": str(socket)})
    await _told_to_stop()
    log.info("station stops")
    warm.cancel()
    watching.cancel()
    await station.say_goodbye("the station stops")
    await asyncio.gather(edge.stop(0.5), inner.stop(0.5))


def _warm_up() -> None:
    """Load the selection's machine code while devices connect; the first compiles it, which takes a while."""
    import numpy as np

    from fedgs.selection import SelectionProblem
    from fedgs.selection.solve import warm_up

    warm_up("gbp-cs", SelectionProblem(np.eye(3), np.full(3, 1 / 3), 1))


def _handlers(service: str, **methods: grpc.RpcMethodHandler) -> grpc.GenericRpcHandler:
    return grpc.method_handlers_generic_handler(service, methods)


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


async def _told_to_stop() -> None:
    loop, told = asyncio.get_running_loop(), asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        with contextlib.suppress(NotImplementedError):
            loop.add_signal_handler(number, told.set)
    await told.wait()
