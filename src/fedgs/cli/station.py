"""``fedgs station``: the base station of a factory."""

from pathlib import Path
from typing import Annotated

import typer

from fedgs.cli.deploy_options import Certificates, Insecure, Keepalive, LogJson, LogLevel, Metrics


def station(
    listen: Annotated[str, typer.Option(help="HOST:PORT where devices dial in; port 0 takes a free one.")],
    state: Annotated[Path, typer.Option(help="Folder of this station: its socket, its last round.")],
    control: Annotated[
        str | None, typer.Option(help="HOST:PORT where fedgs top dials in (default: only the Unix socket in --state).")
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
    aside: Annotated[float | None, typer.Option(help="Seconds it is quarantined (60).")] = None,
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
    """Serve a factory: keep its devices, select, let train, average, answer the top server."""
    from fedgs.cli.deploy_options import bundle_of, check_level, needs_deploy, one_thread

    one_thread()
    needs_deploy(hear_grpc=True)
    from fedgs.deploy.identity import check_name
    from fedgs.deploy.settings import StationSettings, checked
    from fedgs.deploy.station_process import StationProcess, run_station

    settings = checked(
        StationSettings,
        {
            "deadline": deadline,
            "min_devices": min_devices,
            "gather": gather,
            "failures": failures,
            "aside": aside,
            "largest_move": largest_move,
            "duplicates": duplicates,
            "keepalive": keepalive,
        },
    )
    name = check_name("station", state.resolve().name if name is None else name)
    bundle = bundle_of("station", name, certificates, insecure)
    run_station(
        StationProcess(name, listen, state, settings, bundle, control, metrics, check_level(log_level), log_json)
    )
