"""``fedgs station``: the base station of a factory."""

from pathlib import Path
from typing import Annotated

import typer

from fedgs.cli.deploy_options import (
    Certificates,
    Insecure,
    Keepalive,
    LogJson,
    LogLevel,
    Metrics,
    bundle_of,
    needs_deploy,
    one_thread,
)


def station(
    listen: Annotated[str, typer.Option(help="HOST:PORT where devices connect; port 0 takes a free one.")],
    state: Annotated[Path, typer.Option(help="Folder of this station: its socket, its last round.")],
    control: Annotated[
        str | None, typer.Option(help="HOST:PORT where fedgs top connects (default: only the Unix socket in --state).")
    ] = None,
    name: Annotated[
        str | None, typer.Option(help="Name of this station (default: that of the --state folder).")
    ] = None,
    certificates: Certificates = None,
    insecure: Insecure = False,
    deadline: Annotated[float | None, typer.Option(help="Seconds a selected device has for its step (30).")] = None,
    min_devices: Annotated[
        int | None, typer.Option(help="Devices to wait for before an iteration (as many as are selected).")
    ] = None,
    gather: Annotated[float | None, typer.Option(help="Seconds to wait for them (5).")] = None,
    failures: Annotated[
        int | None, typer.Option(help="Failures in a row after which a device is quarantined (3).")
    ] = None,
    quarantine: Annotated[float | None, typer.Option(help="Seconds it is quarantined (60).")] = None,
    largest_move: Annotated[
        float | None, typer.Option(help="Share of the weights' norm that one step may move them by (1).")
    ] = None,
    duplicates: Annotated[
        str | None, typer.Option(help="A second connection of the same device: replace (default) or refuse.")
    ] = None,
    keepalive: Keepalive = None,
    metrics: Metrics = None,
    log_level: LogLevel = "info",
    log_json: LogJson = False,
) -> None:
    """Serve a factory: keep its devices connected, select, let them train, average, answer the top server."""
    given = locals()
    one_thread()
    needs_deploy(hear_grpc=True)
    from fedgs.deploy.pki import check_name
    from fedgs.deploy.settings import StationSettings, checked
    from fedgs.deploy.station_process import run_station

    settings = checked(StationSettings, given)
    name = check_name("station", state.resolve().name if name is None else name)
    run_station(name, listen, state, settings, bundle_of("station", name, certificates, insecure), control)
