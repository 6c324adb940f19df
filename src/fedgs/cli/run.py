"""``fedgs run`` and ``fedgs resume``: simulate, with a live display, and leave a folder with all that came out."""

import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from fedgs.config import Settings
    from fedgs.data import Federation

DeviceOption = Annotated[str, typer.Option("--device", help="auto, cpu or cuda.")]


def run(
    config: Annotated[Path | None, typer.Argument(help="A TOML file of settings, or the config.json of a run.")] = None,
    preset: Annotated[
        str | None, typer.Option(help="quick (two minutes on a laptop) or paper; quick when there is no CONFIG.")
    ] = None,
    overrides: Annotated[
        list[str] | None, typer.Option("--set", help="key.path=value, for example training.rounds=20; repeatable.")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Folder of the run (default: runs/NAME).")] = None,
    device: DeviceOption = "auto",
) -> None:
    """Simulate FedGS: select, train, synchronise, test; write metrics, model and pictures."""
    from fedgs.config import load_settings

    if config is None and preset is None:
        preset = "quick"
    settings = load_settings(config, overrides or [], preset)
    name = preset if config is None else config.stem if config.stem != "config" else config.parent.name + "-again"
    folder = out or Path("runs") / str(name)
    jobs = [(folder, settings)]
    if settings.beside:
        jobs.append((_folder_beside(folder, settings.beside), _beside(settings)))
    _carry_out(jobs, device, new=True)


def resume(
    folder: Annotated[Path, typer.Argument(metavar="RUN", help="The folder of a run that was interrupted.")],
    device: DeviceOption = "auto",
) -> None:
    """Go on with a run from its last checkpoint."""
    from fedgs.simulation.runs import is_finished, read_settings

    settings = read_settings(folder)
    if is_finished(folder):
        typer.echo(f"{folder}: is finished, there is nothing left to do")
        return
    _carry_out([(folder, settings)], device, new=False)


def _beside(settings: "Settings") -> "Settings":
    """Return the settings of the second run."""
    from fedgs.config import apply_overrides

    return apply_overrides(settings.model_copy(update={"beside": []}), settings.beside)


def _folder_beside(folder: Path, overrides: list[str]) -> Path:
    values = [text.partition("=")[2].strip().strip("'\"") for text in overrides]
    return folder.with_name("-".join([folder.name, *(value.replace("/", "_") for value in values)]))


def _carry_out(jobs: "list[tuple[Path, Settings]]", device_name: str, new: bool) -> None:
    from fedgs.cli.run_display import RunDisplay
    from fedgs.errors import FedgsError
    from fedgs.simulation.runs import create_run, discard_if_unused, execute
    from fedgs.simulation.simulator import pick_device
    from fedgs.simulation.source import load_federation
    from fedgs.simulation.watch import Watcher
    from fedgs.simulation.world import join_world

    device = pick_device(device_name)
    with join_world(device) as world, _one_voice(world.first), ExitStack() as made:
        federation: Federation | None = None
        failure: FedgsError | None = None
        if new and world.first:
            try:
                for folder, settings in jobs:
                    create_run(folder, settings)
                    made.callback(discard_if_unused, folder)
            except FedgsError as error:
                failure = error
        if world.any(failure is not None):  # nobody waits for a rank that has given up
            raise failure or typer.Exit(2)
        loaded: Settings | None = None
        for folder, settings in jobs:
            if federation is None or loaded is None or _data(loaded) != _data(settings):
                federation, loaded = load_federation(settings), settings
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
                    typer.echo(f"fedgs: interrupted; go on with: fedgs resume {folder}", err=True)
                raise typer.Exit(130) from None
            if world.first:
                _report(folder, settings, federation, summary, time.perf_counter() - began)
        if len(jobs) > 1 and world.first:
            from fedgs.cli.compare import compare_folders

            compare_folders([folder for folder, _ in jobs], jobs[0][0] / "comparison.png")


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


def _report(
    folder: Path, settings: "Settings", federation: "Federation", summary: dict[str, Any], seconds: float
) -> None:
    import csv

    import numpy as np

    from fedgs.report.run_figures import draw_run
    from fedgs.simulation.runs import DEVICES, read_metrics

    with (folder / DEVICES).open(newline="", encoding="utf-8") as file:
        rates = np.array([float(row["rate"]) for row in csv.DictReader(file)])
    pictures = draw_run(folder, folder.name, read_metrics(folder), rates, federation.factory_of, settings.eval.target)
    accuracy, target = summary["accuracy"], summary["target"]
    reached = (
        f"{target['accuracy']:.0%} in round {target['round']}"
        if target["round"] is not None
        else (f"{target['accuracy']:.0%} not reached")
    )
    typer.echo(
        f"{folder}: accuracy {accuracy['final']:.2%} (best {accuracy['best']:.2%} in round {accuracy['best_round']}), "
        f"{reached}; {seconds:.0f} s; {', '.join(path.name for path in pictures)}"
    )
