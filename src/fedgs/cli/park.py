"""``fedgs park up``: the whole park on this machine, to try it out."""

import importlib.util
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedgs.cli.deploy_options import Config, Overrides, Wire, needs_deploy

if TYPE_CHECKING:
    from fedgs.deploy.park import LocalPark
    from fedgs.settings import Settings

app = typer.Typer(help="A park of real processes on this machine.", no_args_is_help=True)

DEFAULTS = [
    "data.name=glyphs",
    "task.model=compact",
    "training.rounds=40",
    "training.iterations=25",
    "training.batch_size=32",
    "training.learning_rate=0.2",
    "selection.presample=1",
]
"""Without a CONFIG: cameras that read labels, a small network, a minute or two."""


@app.callback()
def _park() -> None:
    """A park of real processes on this machine."""


@app.command("up")
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
    from fedgs.errors import ConfigError, MissingDependencyError
    from fedgs.simulation.federations import load_federation

    if no_run and not flower:
        raise ConfigError("--no-run is for --flower: otherwise nobody could start the run; leave it out")
    checked(TopSettings, {"wire": wire})
    settings = _settings(config, stations, devices, overrides or [])
    check_deployable(settings)
    folder = out or Path("runs") / time.strftime("park-%Y%m%d-%H%M%S")
    if flower:
        if importlib.util.find_spec("flwr") is None:
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

    wanted = [] if config is not None else list(DEFAULTS)
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
