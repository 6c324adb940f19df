"""``fedgs device``: the agent on a device."""

from typing import Annotated

import typer

from fedgs.cli.deploy_options import Certificates, Insecure, Keepalive, LogJson, LogLevel


def device(
    station: Annotated[str, typer.Option(help="HOST:PORT of the station to dial.")],
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
    """Serve a station from this device: announce batches, train when selected, come back for ever."""
    from fedgs.cli.deploy_options import bundle_of, check_level, needs_deploy, one_thread

    one_thread()
    needs_deploy()
    from fedgs.deploy.device_process import DeviceProcess, run_device
    from fedgs.deploy.settings import DeviceSettings, checked

    settings = checked(
        DeviceSettings,
        {
            "min_batch": min_batch,
            "count_noise": count_noise,
            "noise_seed": noise_seed,
            "longest_wait": longest_wait,
            "keepalive": keepalive,
        },
    )
    bundle = bundle_of("device", name, certificates, insecure)
    run_device(DeviceProcess(name, station, source, settings, bundle, seed, check_level(log_level), log_json))
