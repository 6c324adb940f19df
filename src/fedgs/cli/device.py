"""``fedgs device``: the agent on a device."""

from typing import Annotated

import typer

from fedgs.cli.deploy_options import (
    Certificates,
    Insecure,
    Keepalive,
    LogJson,
    LogLevel,
    bundle_of,
    needs_deploy,
    one_thread,
)


def device(
    station: Annotated[str, typer.Option(help="HOST:PORT of the station.")],
    name: Annotated[str, typer.Option("--id", help="Name of this device.")],
    source: Annotated[str, typer.Option(help="npz:FILE, folder:DIR, glyphs:CAMERA or your own package.module:name.")],
    certificates: Certificates = None,
    insecure: Insecure = False,
    seed: Annotated[int, typer.Option(min=0, help="Of the order in which npz and glyphs sources give samples.")] = 0,
    min_batch: Annotated[
        int | None, typer.Option(help="Take part in no task whose batches are smaller (default: 1).")
    ] = None,
    count_noise: Annotated[
        float | None, typer.Option(help="Standard deviation of noise on the announced class counts.")
    ] = None,
    noise_seed: Annotated[int | None, typer.Option(help="Of that noise; drawn anew at each start by default.")] = None,
    longest_wait: Annotated[float | None, typer.Option(help="The most seconds between two attempts.")] = None,
    keepalive: Keepalive = None,
    log_level: LogLevel = "info",
    log_json: LogJson = False,
) -> None:
    """Serve a station from this device: announce batches, train when selected, reconnect for ever."""
    given = locals()
    one_thread()
    needs_deploy()
    from fedgs.deploy.agent import run_device
    from fedgs.deploy.settings import DeviceSettings, checked

    settings = checked(DeviceSettings, given)
    run_device(name, station, source, settings, bundle_of("device", name, certificates, insecure), seed)
