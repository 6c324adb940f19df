"""The commands of a deployment: ``fedgs device``, ``station`` and ``top``, and ``park up``, all of them on one machine.

Options have the names of the settings in :mod:`fedgs.deploy.settings`, which check them and hold their defaults.
"""

import os
import shlex
import sys
import time
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedgs.cli import interrupt
from fedgs.errors import ConfigError, MissingDependencyError

if TYPE_CHECKING:
    from fedgs.deploy.park import LocalPark
    from fedgs.deploy.pki import Bundle
    from fedgs.settings import Settings

park_app = typer.Typer(help="Run devices, stations and top server as processes on this machine.", no_args_is_help=True)
stations_app = typer.Typer(help="Change the stations of a park that runs on this machine.", no_args_is_help=True)
park_app.add_typer(stations_app, name="stations")
ParkFolder = Annotated[Path, typer.Argument(help="Folder of the park: --out of fedgs park up.")]

Certificates = Annotated[
    Path | None, typer.Option(help="Folder with ca.crt, cert.pem and key.pem (default: pki/ROLE/NAME).")
]
Insecure = Annotated[bool, typer.Option("--insecure", help="No TLS and no certificates; on the loopback only.")]
OpenKeys = Annotated[bool, typer.Option("--allow-open-keys", help="Use a key that other users can read, too.")]
Metrics = Annotated[
    str | None, typer.Option(help="HOST:PORT for Prometheus and health checks, for example 127.0.0.1:9100.")
]
LogLevel = Annotated[str, typer.Option(help="debug, info, warning or error.")]
LogJson = Annotated[bool, typer.Option("--log-json", help="Log one JSON object per line.")]
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
    station: Annotated[
        str, typer.Option(help="HOST:PORT of its station; with others after it, separated by commas, it fails over.")
    ],
    name: Annotated[str, typer.Option("--id", help="Name of this device.")],
    source: Annotated[str, typer.Option(help="npz:FILE, folder:DIR, glyphs:CAMERA or your own package.module:name.")],
    certificates: Certificates = None,
    insecure: Insecure = False,
    allow_open_keys: OpenKeys = False,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the sample order of npz and glyphs sources.")] = 0,
    min_batch: Annotated[int | None, typer.Option(help="Refuse tasks with smaller batches (default: 1).")] = None,
    count_noise: Annotated[
        float | None, typer.Option(help="Standard deviation of noise on the announced class counts.")
    ] = None,
    noise_seed: Annotated[
        int | None, typer.Option(help="Seed of that noise (default: a new one at each start).")
    ] = None,
    longest_wait: Annotated[
        float | None, typer.Option(help="Longest wait between two connection attempts, in seconds.")
    ] = None,
    failover: Annotated[
        float | None, typer.Option(help="Seconds a lost station is tried before the next one of --station (20).")
    ] = None,
    keepalive: Keepalive = None,
    log_level: LogLevel = "info",
    log_json: LogJson = False,
) -> None:
    """Run a device: connect to its station, announce batches, and train when selected."""
    given = locals()
    _one_thread()
    needs_deploy()
    from fedgs.deploy.agent import run_device
    from fedgs.deploy.settings import DeviceSettings, checked

    settings = checked(DeviceSettings, given)
    run_device(
        name, station, source, settings, make_bundle("device", name, certificates, insecure, allow_open_keys), seed
    )


def station(
    listen: Annotated[str, typer.Option(help="HOST:PORT where devices connect; port 0 takes a free one.")],
    state: Annotated[Path, typer.Option(help="Folder of this station, for its socket and its last round.")],
    control: Annotated[
        str | None, typer.Option(help="HOST:PORT where fedgs top connects (default: only the Unix socket in --state).")
    ] = None,
    name: Annotated[
        str | None, typer.Option(help="Name of this station (default: name of the --state folder).")
    ] = None,
    certificates: Certificates = None,
    insecure: Insecure = False,
    allow_open_keys: OpenKeys = False,
    deadline: Annotated[float | None, typer.Option(help="Longest time for a selected device, in seconds (30).")] = None,
    min_devices: Annotated[
        int | None, typer.Option(help="Devices to wait for before an iteration (default: as many as are selected).")
    ] = None,
    gather: Annotated[float | None, typer.Option(help="Seconds to wait for them (5).")] = None,
    failures: Annotated[
        int | None, typer.Option(help="Failures after which a device is quarantined; two good updates undo one (3).")
    ] = None,
    quarantine: Annotated[float | None, typer.Option(help="Seconds it is quarantined (60).")] = None,
    largest_move: Annotated[
        float | None,
        typer.Option(help="Longest update, as a multiple of the usual norm; longer ones are shortened (6)."),
    ] = None,
    most_turns: Annotated[
        float | None, typer.Option(help="How often a device may train, as a multiple of its fair share (3).")
    ] = None,
    drain: Annotated[float | None, typer.Option(help="Longest time to stop after SIGTERM, in seconds (10).")] = None,
    duplicates: Annotated[
        str | None, typer.Option(help="A second connection of the same device: replace (default) or refuse.")
    ] = None,
    keepalive: Keepalive = None,
    metrics: Metrics = None,
    metrics_devices: Annotated[
        int | None, typer.Option(help="Devices with metrics of their own; the others are summed up (200).")
    ] = None,
    log_level: LogLevel = "info",
    log_json: LogJson = False,
) -> None:
    """Run the base station of a factory: select devices, average their updates, answer the top server."""
    given = locals()
    _one_thread()
    needs_deploy(hear_grpc=True)
    from fedgs.deploy.pki import check_name
    from fedgs.deploy.settings import StationSettings, checked
    from fedgs.deploy.station_process import run_station

    settings = checked(StationSettings, given)
    name = check_name("station", state.resolve().name if name is None else name)
    run_station(
        name, listen, state, settings, make_bundle("station", name, certificates, insecure, allow_open_keys), control
    )


def top(
    stations: Annotated[
        list[str],
        typer.Option(
            "--stations",
            help="Control addresses HOST:PORT, separated by commas or repeated; or a file with one a line, which is "
            "read again on SIGHUP.",
        ),
    ],
    state: Annotated[
        Path, typer.Option(help="Folder of this run: checkpoint, metrics, model. Resumes the run it finds there.")
    ],
    config: Config = None,
    preset: Annotated[
        str | None,
        typer.Option(
            help="quick, paper or bearings; CONFIG overrides it (coverage, own: with selection.coverage.share=turns)."
        ),
    ] = None,
    overrides: Overrides = None,
    held_out: Annotated[
        str | None, typer.Option(help="Data set to test the global model on: a name or a file.")
    ] = None,
    target: Annotated[
        str, typer.Option(help="P_real: estimate (from announced class counts), uniform, or a JSON file with shares.")
    ] = "estimate",
    classes: Annotated[
        str | None,
        typer.Option(help="Names of the classes, separated by commas, or their number; only without --held-out (62)."),
    ] = None,
    image: Annotated[
        str | None, typer.Option(help="HEIGHTxWIDTH or HEIGHTxWIDTHxCHANNELS; only without --held-out (28x28).")
    ] = None,
    wire: Wire = "float32",
    min_stations: Annotated[
        int | None, typer.Option(help="Stations that must answer in a round (default: all).")
    ] = None,
    linger: Annotated[
        float | None,
        typer.Option(help="Seconds to wait for the other stations after --min-stations have answered (60)."),
    ] = None,
    largest_rise: Annotated[
        float | None,
        typer.Option(
            help="Largest loss after a round, as a multiple of the last one; above it the model collapsed (10)."
        ),
    ] = None,
    collapses: Annotated[
        int | None,
        typer.Option(help="Consecutive rounds with a collapsed model before the run ends with exit code 3 (3)."),
    ] = None,
    name: Annotated[str, typer.Option(help="Name in the certificate.")] = "top",
    listen: Annotated[
        str | None, typer.Option(help="HOST:PORT where fedgs status and fedgs ui ask how the run goes.")
    ] = None,
    certificates: Certificates = None,
    insecure: Insecure = False,
    allow_open_keys: OpenKeys = False,
    keepalive: Keepalive = None,
    metrics: Metrics = None,
    log_level: LogLevel = "info",
    log_json: LogJson = False,
) -> None:
    """Run the top server: run rounds, average the stations' models; the same command resumes a run."""
    given = locals()
    needs_deploy()
    from fedgs.config import load_settings
    from fedgs.deploy.settings import TopSettings, checked
    from fedgs.deploy.top_client import shown_score
    from fedgs.deploy.top_process import run_top

    options = checked(TopSettings, given)
    settings = load_settings(config, overrides or [], preset)
    try:
        bundle = make_bundle("top", name, certificates, insecure, allow_open_keys)
        last = run_top(settings, options, stations, state, bundle, listen)
    except KeyboardInterrupt:
        interrupt.last_words = lambda: f"interrupted; the same command resumes the run in {state}"
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
    devices: Annotated[
        int | None, typer.Option(min=1, help="Devices of each station (4, or fewer if the data have fewer).")
    ] = None,
    overrides: Overrides = None,
    out: Annotated[
        Path | None,
        typer.Option(help="Folder of the park (default: runs/park-DATE-TIME). Resumes the park it finds there."),
    ] = None,
    wire: Wire = "float32",
    flower: Annotated[bool, typer.Option("--flower", help="Use Flower between stations and top server.")] = False,
    ui: Annotated[bool, typer.Option("--ui", help="Serve a live page of the park, at an address it prints.")] = False,
    no_run: Annotated[
        bool,
        typer.Option("--no-run", help="With --flower: start everything except the run, and wait for your flwr run."),
    ] = False,
) -> None:
    """Start stations, devices and a top server with new certificates, and show them; Ctrl-C stops all.

    A process that dies is restarted. The same command with the same --out resumes the run.
    """
    needs_deploy()
    from fedgs.cli.park_display import watch
    from fedgs.cli.ui import folder_source
    from fedgs.cli.ui import prepare as serve
    from fedgs.data.dataset import clients_of
    from fedgs.deploy.park import LocalPark, running
    from fedgs.deploy.run_spec import check_deployable
    from fedgs.deploy.settings import TopSettings, checked
    from fedgs.deploy.station_process import warm_up_selection
    from fedgs.simulation.federations import least_samples, load_data, load_federation

    if no_run and not flower:
        raise ConfigError("--no-run is for --flower: otherwise nobody could start the run; leave it out")
    checked(TopSettings, {"wire": wire})
    settings = _settings(config, stations, devices, overrides or [])
    check_deployable(settings)
    data = load_data(settings)
    there = sum(size >= least_samples(settings) for size in clients_of(data).samples.sizes)
    if config is None and devices is None and there < settings.federation.devices:
        settings = _settings(config, stations, max(1, there // settings.federation.factories), overrides or [])
    federation = load_federation(settings, data)
    folder = out or Path("runs") / time.strftime("park-%Y%m%d-%H%M%S")
    if flower:
        if find_spec("flwr") is None:
            raise MissingDependencyError(
                "--flower needs Flower, which is not installed; run: pip install 'fedgs[flower]'"
            )
        from fedgs.flower.park import FlowerPark

        park: LocalPark = FlowerPark(folder, settings, federation, wire, run=not no_run)
    else:
        park = LocalPark(folder, settings, federation, wire)
        park.check_folder()
        if park.finished:
            typer.echo(
                f"{folder}: finished already after {settings.training.rounds} rounds; for more give a higher "
                "--set training.rounds=…"
            )
            return
    warm_up_selection()  # what is not compiled yet is compiled once, here, where it is said
    began, before = time.monotonic(), park.lines()
    try:
        with running(park):
            typer.echo(
                f"{data.name}: {len(federation)} of its {len(data.client_names)} devices, at {federation.factories} "
                "stations; --stations and --devices choose",
                err=True,
            )
            if before:
                typer.echo(f"{folder}: goes on after round {before[-1]['round']}", err=True)
            if ui:
                address, server = serve([folder_source(folder)], "127.0.0.1:0")
                server.start()
                typer.echo(f"live page: {address}", err=True)
            if no_run:
                home = shlex.quote(str((folder / "flower").resolve()))
                typer.echo(f"the park is up; in another terminal: FLWR_HOME={home} flwr run APP park --stream")
            try:
                watch(park, told=len(before))
            except KeyboardInterrupt:
                typer.echo("stops all processes …", err=True)  # stations end their iteration: it takes seconds
                raise
    except KeyboardInterrupt:
        _say(park, began, "done" if park.finished else "stopped")
        interrupt.said.set()
        raise typer.Exit(130) from None
    _say(park, began, "done")


@stations_app.command("add")
def add(folder: ParkFolder) -> None:
    """Start one more station; it gets its share of the devices of the others, and trains from the next round on."""
    needs_deploy()
    from fedgs.deploy.park_stations import add_station

    name, devices = add_station(folder)
    typer.echo(f"{name}: serves; {devices} device{'' if devices == 1 else 's'} of other stations prefer it now")


@stations_app.command("remove")
def remove(
    folder: ParkFolder, name: Annotated[str, typer.Argument(help="Name of the station, for example station-2.")]
) -> None:
    """Stop a station; its devices go to the other stations."""
    needs_deploy()
    from fedgs.deploy.park_stations import remove_station

    remove_station(folder, name)
    typer.echo(f"{name}: removed; its devices go to the other stations")


@park_app.command("data")
def write_data(
    out: Annotated[Path, typer.Option(help="Folder to write to.")],
    config: Config = None,
    overrides: Overrides = None,
) -> None:
    """Write the data of each device as OUT/data/DEVICE.npz, and those to test on; start nothing."""
    needs_deploy()
    from fedgs.deploy.park import LocalPark
    from fedgs.deploy.park_data import SETTINGS, write_files
    from fedgs.simulation.federations import load_federation

    settings = _settings(config, None, None, overrides or [])
    federation = load_federation(settings)
    if (out / SETTINGS).exists():
        LocalPark(out, settings, federation).check_folder()
    write_files(out, settings, federation)
    typer.echo(f"{out / 'data'}: DEVICE.npz for --source, held-out.npz for --held-out, target.json for --target")
    for factory in range(federation.factories):
        names = [federation.device_names[device] for device in federation.devices_of(factory)]
        typer.echo(f"station {factory + 1}: {', '.join(names)}")


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
    from fedgs.deploy.top_client import shown_score

    lines = park.lines()
    last = lines[-1] if lines else {"round": 0}
    score = shown_score(last)
    typer.echo(
        f"{park.folder}: {how} after {last['round']} rounds{f', {score}' if score else ''}, "
        f"{time.monotonic() - began:.0f} s; all processes have ended"
        + (f"; go on with the same command and --out {shlex.quote(str(park.folder))}" if how == "stopped" else ""),
        file=sys.stderr if how == "stopped" else sys.stdout,
    )


def needs_deploy(*, hear_grpc: bool = False) -> None:
    """Say what to install where the libraries of a deployment are missing; set gRPC's own log.

    ``hear_grpc``: a station reads what gRPC logs about handshakes; other processes switch it off.
    """
    os.environ.setdefault("GRPC_VERBOSITY", "INFO" if hear_grpc else "NONE")
    if hear_grpc:
        os.environ.setdefault("GRPC_TRACE", "handshaker")
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


def make_bundle(
    role: str, name: str, certificates: Path | None, insecure: bool, allow_open_keys: bool
) -> "Bundle | None":
    """Return the bundle of certificates to use; None with ``--insecure``."""
    from fedgs.deploy.pki import Bundle

    if insecure:
        if certificates is not None:
            raise ConfigError("--insecure and --certificates exclude each other; leave one out")
        return None
    bundle = Bundle(certificates if certificates is not None else Path("pki") / role / name, allow_open_keys)
    bundle.check(role)
    return bundle
