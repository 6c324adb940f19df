"""The commands of a deployment: ``fedgs device``, ``station`` and ``top``, and ``park up``, all of them on one machine.

Options have the names of the settings in :mod:`fedgs.deploy.settings`, which check them and hold their defaults.
"""

import os
import sys
import time
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedgs.errors import ConfigError, MissingDependencyError

if TYPE_CHECKING:
    from fedgs.deploy.park import LocalPark
    from fedgs.deploy.pki import Bundle
    from fedgs.settings import Settings

park_app = typer.Typer(help="A park of real processes on this machine.", no_args_is_help=True)

Certificates = Annotated[
    Path | None, typer.Option(help="Folder with ca.crt, cert.pem and key.pem (default: pki/ROLE/NAME).")
]
Insecure = Annotated[bool, typer.Option("--insecure", help="Plain text without certificates; on the loopback only.")]
Metrics = Annotated[str | None, typer.Option(help="HOST:PORT for Prometheus, for example 127.0.0.1:9100.")]
LogLevel = Annotated[str, typer.Option(help="debug, info, warning or error.")]
LogJson = Annotated[bool, typer.Option("--log-json", help="Log one JSON object a line.")]
Keepalive = Annotated[float | None, typer.Option(help="Seconds between two pings of a connection (2).")]
Config = Annotated[Path | None, typer.Argument(help="A TOML file of settings, as for fedgs run.")]
Overrides = Annotated[
    list[str] | None, typer.Option("--set", help="key.path=value, for example training.rounds=5; repeatable.")
]
Wire = Annotated[str, typer.Option(help="Number format between stations and devices: float32, bfloat16 or float16.")]

PARK = [
    "data.name=glyphs",
    "task.model=compact",
    "training.rounds=40",
    "training.iterations=25",
    "training.batch_size=32",
    "training.learning_rate=0.2",
    "selection.presample=1",
]
"""A park without a CONFIG: cameras that read labels, a small network, a minute or two."""


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
    _one_thread()
    needs_deploy()
    from fedgs.deploy.agent import run_device
    from fedgs.deploy.settings import DeviceSettings, checked

    settings = checked(DeviceSettings, given)
    run_device(name, station, source, settings, _bundle("device", name, certificates, insecure), seed)


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
    _one_thread()
    needs_deploy(hear_grpc=True)
    from fedgs.deploy.pki import check_name
    from fedgs.deploy.settings import StationSettings, checked
    from fedgs.deploy.station_process import run_station

    settings = checked(StationSettings, given)
    name = check_name("station", state.resolve().name if name is None else name)
    run_station(name, listen, state, settings, _bundle("station", name, certificates, insecure), control)


def top(
    stations: Annotated[
        list[str],
        typer.Option("--stations", help="Control address HOST:PORT of a station; repeatable, or with commas."),
    ],
    state: Annotated[Path, typer.Option(help="Folder of this run: checkpoint, metrics, model. Resumes what it finds.")],
    config: Config = None,
    preset: Annotated[
        str | None,
        typer.Option(help="quick, paper or bearings, under CONFIG (coverage: with selection.coverage.share=turns)."),
    ] = None,
    overrides: Overrides = None,
    held_out: Annotated[
        str | None, typer.Option(help="Data set to test the global model on: a name or a file.")
    ] = None,
    target: Annotated[
        str, typer.Option(help="P_real: estimate (from what devices announce), uniform, or a JSON list of shares.")
    ] = "estimate",
    classes: Annotated[int | None, typer.Option(min=1, help="Classes, without --held-out (62).")] = None,
    image: Annotated[str | None, typer.Option(help="HEIGHTxWIDTH[xCHANNELS], without --held-out (28x28).")] = None,
    wire: Wire = "float32",
    min_stations: Annotated[int | None, typer.Option(help="Answers a round needs (default: all).")] = None,
    linger: Annotated[
        float | None, typer.Option(help="Seconds to wait for the other stations once so many have answered (60).")
    ] = None,
    name: Annotated[str, typer.Option(help="Name in the certificate.")] = "top",
    certificates: Certificates = None,
    insecure: Insecure = False,
    keepalive: Keepalive = None,
    metrics: Metrics = None,
    log_level: LogLevel = "info",
    log_json: LogJson = False,
) -> None:
    """Run rounds over the stations; killed at any moment, the same command resumes the run."""
    given = locals()
    needs_deploy()
    from fedgs.config import load_settings
    from fedgs.deploy.settings import TopSettings, checked
    from fedgs.deploy.top import shown_score
    from fedgs.deploy.top_process import run_top

    options = checked(TopSettings, given)
    settings = load_settings(config, overrides or [], preset)
    addresses = [part.strip() for text in stations for part in text.split(",") if part.strip()]
    try:
        last = run_top(settings, options, addresses, state, _bundle("top", name, certificates, insecure))
    except KeyboardInterrupt:
        typer.echo(f"fedgs: interrupted; the same command resumes the run in {state}", err=True)
        raise typer.Exit(130) from None
    score = shown_score(last.metrics[-1])
    typer.echo(f"{state}: {last.round} rounds done{f', {score}' if score else ''}; model.safetensors")


@park_app.callback()
def _park() -> None:
    """A park of real processes on this machine."""


@park_app.command("up")
def up(
    config: Config = None,
    stations: Annotated[int | None, typer.Option(min=1, help="Base stations (2).")] = None,
    devices: Annotated[int | None, typer.Option(min=1, help="Devices of each station (4).")] = None,
    overrides: Overrides = None,
    out: Annotated[Path | None, typer.Option(help="Folder of the park (default: runs/park-DATE-TIME).")] = None,
    wire: Wire = "float32",
    flower: Annotated[bool, typer.Option("--flower", help="Flower between stations and top server.")] = False,
    no_run: Annotated[
        bool, typer.Option("--no-run", help="With --flower: start all but the run, and wait for your flwr run.")
    ] = False,
) -> None:
    """Start stations, devices and a top server with certificates of their own, and watch them; Ctrl-C ends it all."""
    needs_deploy()
    from fedgs.cli.park_display import watch
    from fedgs.deploy.park import LocalPark, running
    from fedgs.deploy.run_spec import check_deployable
    from fedgs.deploy.settings import TopSettings, checked
    from fedgs.simulation.federations import load_federation

    if no_run and not flower:
        raise ConfigError("--no-run is for --flower: otherwise nobody could start the run; leave it out")
    checked(TopSettings, {"wire": wire})
    settings = _settings(config, stations, devices, overrides or [])
    check_deployable(settings)
    folder = out or Path("runs") / time.strftime("park-%Y%m%d-%H%M%S")
    if flower:
        if find_spec("flwr") is None:
            raise MissingDependencyError(
                "--flower needs Flower, which is not installed; run: pip install 'fedgs[flower]'"
            )
        from fedgs.flower.park import FlowerPark

        park: LocalPark = FlowerPark(folder, settings, load_federation(settings), wire, run=not no_run)
    else:
        park = LocalPark(folder, settings, load_federation(settings), wire)
    began = time.monotonic()
    try:
        with running(park):
            if no_run:
                home = (folder / "flower").resolve()
                typer.echo(f"the park is up; in another terminal: FLWR_HOME={home} flwr run APP park --stream")
            watch(park)
    except KeyboardInterrupt:
        _say(park, began, "stopped")
        raise typer.Exit(130) from None
    _say(park, began, "done")


def _settings(config: Path | None, stations: int | None, devices: int | None, overrides: list[str]) -> "Settings":
    from fedgs.config import load_settings

    wanted = [] if config is not None else list(PARK)
    if config is None or stations is not None or devices is not None:
        stations, devices = stations or 2, devices or 4
        wanted += [f"federation.factories={stations}", f"federation.devices={stations * devices}"]
        if config is None:
            wanted.append(f"selection.pick={(devices + 1) // 2}")
    return load_settings(config, [*wanted, *overrides])


def _say(park: "LocalPark", began: float, how: str) -> None:
    from fedgs.deploy.top import shown_score

    lines = park.lines()
    last = lines[-1] if lines else {"round": 0}
    score = shown_score(last)
    typer.echo(
        f"{park.folder}: {how} after {last['round']} rounds{f', {score}' if score else ''}, "
        f"{time.monotonic() - began:.0f} s; all processes have ended",
        file=sys.stderr if how == "stopped" else sys.stdout,
    )


def needs_deploy(*, hear_grpc: bool = False) -> None:
    """Say what to install where the libraries of a deployment are missing; set gRPC's own log.

    ``hear_grpc``: a station reads what gRPC logs about handshakes; other processes switch it off.
    """
    os.environ.setdefault("GRPC_VERBOSITY", "INFO" if hear_grpc else "NONE")
    for library in ("grpc", "google.protobuf", "cryptography", "prometheus_client"):
        try:
            there = find_spec(library) is not None
        except ModuleNotFoundError:  # not even the package above it
            there = False
        if not there:
            raise MissingDependencyError(
                f"a deployment needs {library}, which is not installed; run: pip install 'fedgs[deploy]'"
            )


def _one_thread() -> None:
    """Let numpy's linear algebra use one thread; it reads these variables when it is first imported.

    Batches and problems are small: more threads would only wait for each other, and for those of other processes.
    """
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ.setdefault(name, "1")


def _bundle(role: str, name: str, certificates: Path | None, insecure: bool) -> "Bundle | None":
    """Return the bundle of certificates to use; None with ``--insecure``."""
    from fedgs.deploy.pki import Bundle

    if insecure:
        if certificates is not None:
            raise ConfigError("--insecure and --certificates exclude each other; leave one out")
        return None
    bundle = Bundle(certificates if certificates is not None else Path("pki") / role / name)
    bundle.check(role)
    return bundle
