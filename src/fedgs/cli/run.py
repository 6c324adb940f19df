"""``fedgs run`` and ``fedgs resume``: simulate, with a live display, and leave a folder with all that came out."""

import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    import torch

    from fedgs.data import Federation
    from fedgs.settings import Settings
    from fedgs.simulation.process_group import World

    Job = tuple[Path, Settings]

DeviceOption = Annotated[str, typer.Option("--device", help="auto, cpu or cuda.")]


def run(
    config: Annotated[Path | None, typer.Argument(help="A TOML file of settings, or the config.json of a run.")] = None,
    preset: Annotated[
        str | None,
        typer.Option(help="quick (a minute and a half on a laptop), paper or coverage; quick without CONFIG."),
    ] = None,
    overrides: Annotated[
        list[str] | None,
        typer.Option(
            "--set", help="key.path=value, for example training.rounds=20 or algorithm.name=fedavg; repeatable."
        ),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="Folder of the run (default: runs/NAME, or runs/NAME-APPROACH with --set).")
    ] = None,
    device: DeviceOption = "auto",
) -> None:
    """Simulate FedGS, or an approach it is compared with (algorithm.name, see: fedgs approaches).

    Select, train, synchronise, test; write metrics, model and pictures.
    """
    from fedgs.config import load_settings

    if config is None and preset is None:
        preset = "quick"
    settings = load_settings(config, overrides or [], preset)
    settings.clock.links()  # reads the profile, so that nothing is begun without it
    folder = out or Path("runs") / _name_of(config, str(preset), overrides or [])
    _carry_out(_jobs(folder, settings), device, new=True)


def resume(
    folder: Annotated[Path, typer.Argument(metavar="RUN", help="The folder of a run that was interrupted.")],
    device: DeviceOption = "auto",
) -> None:
    """Go on with a run, and the one beside it, from the last checkpoint; draw the pictures that are missing."""
    from fedgs.simulation.runs import read_settings

    _carry_out(_jobs(folder, read_settings(folder)), device, new=False)


def _name_of(config: Path | None, preset: str, overrides: list[str]) -> str:
    """Return the name of a run: of its preset or settings file, and of the approach where --set chooses one.

    Approaches that are run one after the other so have a folder each. The settings of an earlier run give it again.
    """
    from fedgs.simulation.runs import CONFIG, METRICS

    chosen = [value for key, value in map(_key_and_value, overrides) if key == "algorithm.name"]
    approach = chosen[-1] if chosen and chosen[-1] != "fedgs" else None
    name = preset if config is None else config.stem
    if config is not None and config.name == CONFIG and config.with_name(METRICS).exists():
        name = config.resolve().parent.name
        return f"{name}-{approach or 'again'}"
    return name if approach is None else f"{name}-{approach}"


def _key_and_value(override: str) -> tuple[str, str]:
    key, _, value = override.partition("=")
    return key.strip(), value.strip().strip("'\"")


def _jobs(folder: Path, settings: "Settings") -> "list[Job]":
    """Return the run and, where the settings ask for it, the one beside it."""
    jobs = [(folder, settings)]
    if settings.beside:
        jobs.append((_folder_beside(folder, settings.beside), _beside(settings)))
    return jobs


def _beside(settings: "Settings") -> "Settings":
    """Return the settings of the second run."""
    from fedgs.config import apply_overrides
    from fedgs.errors import ConfigError

    base = settings.model_copy(update={"beside": []})
    names = [value for key, value in map(_key_and_value, settings.beside) if key == "algorithm.name"]
    if names and names[-1] != "fedgs":
        base = base.without_fedgs()
    try:
        second = apply_overrides(base, settings.beside)
    except ConfigError as error:
        raise ConfigError(_named_beside(str(error).replace("--set ", "beside "))) from None
    if second.beside:
        raise ConfigError("beside: beside is set in it; a second run has none beside it, take that out")
    return second


def _named_beside(message: str) -> str:
    return message if message.startswith("beside") else f"beside: {message}"


def _folder_beside(folder: Path, overrides: list[str]) -> Path:
    """Return the folder of the second run: it says which approach it is, or else all that differs."""
    changes = [_key_and_value(text) for text in overrides]
    values = [value for key, value in changes if key == "algorithm.name"] or [value for _, value in changes]
    if folder.name in ("", ".."):  # "." has no name to put anything behind
        folder = folder.resolve()
    return folder.with_name("-".join([folder.name, *(value.replace("/", "_") for value in values)]))


def _carry_out(jobs: "list[Job]", device_name: str, new: bool) -> None:
    from fedgs.errors import FedgsError
    from fedgs.simulation.process_group import join_world
    from fedgs.simulation.runs import create_run, discard_if_unused, is_finished
    from fedgs.simulation.simulator import pick_device

    device = pick_device(device_name)
    with join_world(device) as world, _one_voice(world.first), ExitStack() as made:
        # Every rank asks before the first of them has had time to finish anything.
        pending = [new or not is_finished(folder) for folder, _ in jobs]
        failure: FedgsError | None = None
        if world.first:
            try:
                for folder, settings in jobs:
                    if new or not folder.exists():
                        create_run(folder, settings)
                        made.callback(discard_if_unused, folder)
                    else:
                        _check_same(folder, settings)
            except FedgsError as error:
                failure = error
        if world.any(failure is not None):  # nobody waits for a rank that has given up
            raise failure or typer.Exit(2)
        federations = _load_and_check(jobs, pending, device, world)
        drawn: list[Path] = []
        for (folder, settings), federation in zip(jobs, federations, strict=True):
            if federation is not None:
                _simulate(folder, settings, federation, device, world, resume_with=jobs[0][0])
            elif world.first:
                drawn += _draw_missing(folder, settings)
        if world.first:
            _finish(jobs, anew=any(pending), drawn=drawn)


def _check_same(folder: Path, settings: "Settings") -> None:
    """Refuse to go on with a folder in which another run lies than the one that is wanted."""
    from fedgs.errors import OutputError
    from fedgs.simulation.runs import read_settings

    if read_settings(folder) != settings:
        raise OutputError(f"{folder}: holds a run with other settings than beside asks for; move it away")


def _load_and_check(
    jobs: "list[Job]", pending: list[bool], device: "torch.device", world: "World"
) -> "list[Federation | None]":
    """Return the federation of each job that is to be done, before any begins: a second may not fail hours later."""
    from fedgs.errors import FedgsError
    from fedgs.simulation.checkpoint import list_checkpoints
    from fedgs.simulation.runs import CHECKPOINTS
    from fedgs.simulation.simulator import Simulator
    from fedgs.simulation.source import load_federation

    federations: list[Federation | None] = []
    loaded: tuple[Settings, Federation] | None = None
    for number, ((folder, settings), wanted) in enumerate(zip(jobs, pending, strict=True)):
        if not wanted:
            federations.append(None)
            continue
        try:
            if loaded is None or _data(loaded[0]) != _data(settings):
                loaded = settings, load_federation(settings)
            if number > 0:  # the first is checked when it begins
                with Simulator(settings, loaded[1], device, world) as simulator:
                    simulator.method.check(begun=bool(list_checkpoints(folder / CHECKPOINTS)))
        except FedgsError as error:
            if number == 0:
                raise
            raise type(error)(_named_beside(str(error))) from None
        federations.append(loaded[1])
    return federations


def _simulate(
    folder: Path,
    settings: "Settings",
    federation: "Federation",
    device: "torch.device",
    world: "World",
    resume_with: Path,
) -> None:
    from fedgs.cli.run_display import RunDisplay
    from fedgs.simulation.callbacks import Watcher
    from fedgs.simulation.runs import execute, is_unused

    watchers: list[Watcher] = []
    if world.first:
        watchers.append(RunDisplay(folder.name, settings))
        if settings.tensorboard:
            from fedgs.report.tensorboard import TensorBoardWatcher

            watchers.append(TensorBoardWatcher(folder / "tensorboard"))
    began = time.perf_counter()
    try:
        summary = execute(folder, settings, federation, device, world, watchers)
    except KeyboardInterrupt:
        if world.first:
            left = "nothing was done yet" if is_unused(resume_with) else f"go on with: fedgs resume {resume_with}"
            typer.echo(f"fedgs: interrupted; {left}", err=True)
        raise typer.Exit(130) from None
    if world.first:
        _report(folder, settings, summary, time.perf_counter() - began)


def _finish(jobs: "list[Job]", anew: bool, drawn: list[Path]) -> None:
    """Lay two runs beside each other, or say that nothing was left to do."""
    from fedgs.cli.compare import compare_folders

    folder = jobs[0][0]
    comparison = folder / "comparison.png"
    if len(jobs) > 1 and (anew or not comparison.is_file()):
        compare_folders([one for one, _ in jobs], comparison)
    elif not anew and not drawn:
        typer.echo(f"{folder}: is finished, there is nothing left to do")


@contextmanager
def _one_voice(speaks: bool) -> Iterator[None]:
    """Let only one process say what is wrong with the settings or the data: all find the same."""
    from fedgs.errors import FedgsError, WorkerError

    try:
        yield
    except WorkerError:
        raise  # the one that speaks may be the one that was lost
    except FedgsError:
        if speaks:
            raise
        raise typer.Exit(2) from None


def _data(settings: "Settings") -> tuple[Any, ...]:
    return settings.data, settings.federation, settings.seed


def _simulated(summary: dict[str, Any]) -> str:
    """Return what the run would take in a real park, in a line."""
    from fedgs.report.units import readable_bytes, readable_duration

    clock, sent = summary["clock"], summary["traffic"]
    reached = clock["seconds_to_target"]
    inside, top = (
        sent.get(f"{link}_up", 0) + sent.get(f"{link}_down", 0) for link in ("device_station", "station_top")
    )
    return (
        f"simulated {readable_duration(clock['seconds'])}"
        + (f" ({summary['target']['accuracy']:.0%} after {readable_duration(reached)})" if reached is not None else "")
        + f" on {clock['profile']}; device–station {readable_bytes(inside)}, station–top {readable_bytes(top)}"
    )


def _draw_missing(folder: Path, settings: "Settings") -> list[Path]:
    """Draw the pictures of a finished run if one is missing: it may have been killed just before."""
    from fedgs.report.run_figures import RUN_PICTURES

    if all((folder / name).is_file() for name in RUN_PICTURES):
        return []
    pictures = _draw(folder, settings)
    typer.echo(f"{folder}: is finished; {', '.join(path.name for path in pictures)} drawn")
    return pictures


def _draw(folder: Path, settings: "Settings") -> list[Path]:
    import csv

    import numpy as np

    from fedgs.cli.compare import read_lines
    from fedgs.errors import InputFileError
    from fedgs.report.run_figures import draw_run
    from fedgs.simulation.runs import DEVICES

    try:
        with (folder / DEVICES).open(newline="", encoding="utf-8") as file:
            rows = [(float(row["rate"]), row["factory"]) for row in csv.DictReader(file)]
    except (OSError, ValueError, KeyError, TypeError):
        raise InputFileError(f"{folder / DEVICES}: is missing or broken; repeat the run") from None
    rates = np.array([rate for rate, _ in rows])
    names = sorted({name for _, name in rows}, key=lambda name: (len(name), name))  # factory-2 before factory-10
    factories = np.array([names.index(name) for _, name in rows])
    return draw_run(
        folder, folder.resolve().name, read_lines(folder), rates, factories, settings.eval.target,
        flat=settings.algorithm.flat,
    )  # fmt: skip


def _report(folder: Path, settings: "Settings", summary: dict[str, Any], seconds: float) -> None:
    pictures = _draw(folder, settings)
    accuracy, target = summary["accuracy"], summary["target"]
    reached = (
        f"{target['accuracy']:.0%} in round {target['round']}"
        if target["round"] is not None
        else (f"{target['accuracy']:.0%} not reached")
    )
    if target.get("round_with_pretraining") is not None:
        reached += f" ({target['round_with_pretraining']} with pre-training)"
    typer.echo(
        f"{folder}: accuracy {accuracy['final']:.2%} (best {accuracy['best']:.2%} in round {accuracy['best_round']}), "
        f"{reached}; {seconds:.0f} s; {', '.join(path.name for path in pictures)}"
    )
    typer.echo(f"{folder}: {_simulated(summary)}")
