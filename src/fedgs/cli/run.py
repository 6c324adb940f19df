"""``fedgs run``, ``resume`` and ``baselines``: simulate, and leave a folder with all that came out."""

import json
import os
import shlex
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fedgs.cli import interrupt
from fedgs.errors import ConfigError

if TYPE_CHECKING:
    from fedgs.data import Federation
    from fedgs.settings import Settings
    from fedgs.simulation.history import History
    from fedgs.simulation.launch import PlannedRun

PROGRESS_EVERY = 10.0
"""Seconds between two lines of progress where there is no terminal."""
SIZES = {"devices": "federation.devices", "factories": "federation.factories", "pick": "selection.pick"}
"""Options for sizes, and their settings."""
DataOption = Annotated[
    str | None,
    typer.Option(
        "--data",
        metavar="FOLDER|FILE",
        help="Your own data: a folder of photos (device/class/photo.png) or an .npz file. It determines the sizes.",
    ),
]
DeviceOption = Annotated[str, typer.Option("--device", help="auto, cpu or cuda.")]


def run(
    config: Annotated[Path | None, typer.Argument(help="A TOML file of settings, or the config.json of a run.")] = None,
    data: DataOption = None,
    devices: Annotated[int | None, typer.Option(min=1, help="Devices that take part (with --data: all).")] = None,
    factories: Annotated[
        int | None, typer.Option(min=1, help="Factories (with --data: from folders or an attribute, else √devices/2).")
    ] = None,
    pick: Annotated[
        int | None,
        typer.Option(min=1, help="Devices a station selects per iteration (with --data: a fifth, at least 2)."),
    ] = None,
    preset: Annotated[
        str | None,
        typer.Option(help="quick, bearings, paper, coverage, best or own (default: own with --data; else quick)."),
    ] = None,
    overrides: Annotated[
        list[str] | None,
        typer.Option(
            "--set", help="key.path=value, for example training.rounds=20 or algorithm.name=fedavg; repeatable."
        ),
    ] = None,
    init: Annotated[
        str | None,
        typer.Option(help="A trained model to start from: folder of a run, .safetensors or .pt2 file, state_dict."),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(help="Folder of the run (default: runs/NAME, or the next free name: runs/NAME-2, …)."),
    ] = None,
    overwrite: Annotated[
        bool,
        typer.Option(
            "--overwrite",
            help="Replace the run in that folder, and its baseline: all that fedgs wrote there, checkpoints and model "
            "too, is deleted after the first round of the new run; other files stay.",
        ),
    ] = False,
    device: DeviceOption = "auto",
) -> None:
    """Simulate FedGS, or a baseline (--set algorithm.name=…; see: fedgs baselines).

    Writes metrics, model and figures to the folder of the run.
    """
    from fedgs.simulation.launch import free_runs, planned_runs

    sizes = {"devices": devices, "factories": factories, "pick": pick}
    chosen = [*(overrides or []), *_sizes(**sizes)]
    if init is not None:
        chosen.append(f"init={json.dumps(init)}")
    try:
        settings, federation, name = settings_and_data(data, config, chosen, preset)
    except ConfigError as error:
        raise ConfigError(_as_typed(str(error), **sizes)) from None
    folder = out or Path("runs") / (name + ("-init" if init else ""))
    runs = planned_runs(folder, settings) if out or overwrite else free_runs(folder, settings)
    if runs[0].folder != folder and os.environ.get("RANK", "0") == "0":  # of torchrun's processes one speaks
        typer.echo(f"{folder}: exists already; this run goes to {runs[0].folder} (--overwrite replaces a run)")
    _launch(runs, device, new=True, overwrite=overwrite, federation=federation)


def settings_and_data(
    data: str | None, config: Path | None, chosen: list[str], preset: str | None
) -> "tuple[Settings, Federation | None, str]":
    """Return the settings of a run, its data where they are the user's own, and its name."""
    from fedgs.config import load_settings

    federation = None
    if data is not None:
        from fedgs.simulation.own_data import PRESET, own_data

        found = own_data(data, config, chosen, preset or PRESET)
        settings, federation = found.settings, found.federation
        if os.environ.get("RANK", "0") == "0":
            typer.echo("\n".join(found.notes))
        place = Path(data).resolve()
        name = _name_of(config, place.stem if place.is_file() else place.name, chosen)
    else:
        if preset == "own" and config is None and not any(text.startswith("data.name=") for text in chosen):
            raise ConfigError("--preset own: it is for your own data; name them with --data FOLDER")
        if config is None and preset is None:
            preset = "quick"
        settings = load_settings(config, chosen, preset)
        name = _name_of(config, str(preset), chosen)
    return settings, federation, name


def _as_typed(error: str, **sizes: int | None) -> str:
    """Return an error that calls an option for a size as the user typed it: --pick 9, not --set selection.pick=9."""
    for option, value in sizes.items():
        text = f"{SIZES[option]}={value}"
        error = error.replace(f"--set {text}: {text} ", f"--{option} {value} ")
    return error


def _sizes(**sizes: int | None) -> list[str]:
    return [f"{SIZES[option]}={value}" for option, value in sizes.items() if value is not None]


def resume(
    folder: Annotated[Path, typer.Argument(metavar="RUN", help="The folder of a run that was interrupted.")],
    device: DeviceOption = "auto",
) -> None:
    """Resume a run and its baseline from the last checkpoint; draw missing figures."""
    from fedgs.simulation.folder import read_settings
    from fedgs.simulation.launch import planned_runs

    _launch(planned_runs(folder, read_settings(folder)), device, new=False)


def baselines() -> None:
    """List the baselines and their options."""
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table

    from fedgs.algorithms import BASELINES

    table = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0), show_edge=False)
    table.add_column("algorithm.name", no_wrap=True)
    table.add_column("what it does", ratio=2)
    table.add_column("algorithm.options", ratio=3)
    table.add_row("fedgs", "devices selected in factories, the default", "")
    for name, entry in BASELINES.items():
        table.add_row(name, entry.summary, " ".join(_option(*option) for option in entry.options.items()))
    console = Console()
    console.print(table)
    console.print(
        "fedgs run --set algorithm.name=fedprox --set algorithm.options.mu=0.5; docs/reference/baselines.md",
        highlight=False, markup=False, soft_wrap=True,
    )  # fmt: skip


def _option(option: str, default: Any) -> str:
    if default is None:
        return option
    return f"{option}={default:.3g}" if isinstance(default, float) else f"{option}={str(default).lower()}"


def _name_of(config: Path | None, preset: str, overrides: list[str]) -> str:
    """Return the name of a run: of its preset or settings file, and of the algorithm where --set chooses one.

    Algorithms that are run one after the other so have a folder each. The settings of an earlier run give it again.
    """
    from fedgs.config import parse_override

    chosen = [str(value) for key, value in map(parse_override, overrides) if key == "algorithm.name"]
    algorithm = chosen[-1].rpartition(":")[2] if chosen and chosen[-1] != "fedgs" else None
    name = preset if config is None else name_of_file(config)
    if config is not None and _is_of_a_run(config):
        return f"{name}-{algorithm or 'again'}"
    return name if algorithm is None else f"{name}-{algorithm}"


def name_of_file(config: Path) -> str:
    """Return the name of a settings file; the settings of an earlier run have the name of that run."""
    return config.resolve().parent.name if _is_of_a_run(config) else config.stem


def _is_of_a_run(config: Path) -> bool:
    from fedgs.simulation.folder import CONFIG, METRICS

    return config.name == CONFIG and config.with_name(METRICS).exists()


def _launch(
    runs: "Sequence[PlannedRun]",
    device: str,
    new: bool,
    overwrite: bool = False,
    federation: "Federation | None" = None,
) -> None:
    from fedgs.cli.compare import compare_folders
    from fedgs.cli.run_display import ProgressLines, RunDisplay
    from fedgs.simulation.folder import MADE_HERE, settle_run
    from fedgs.simulation.launch import FirstRankReports, launch
    from fedgs.simulation.simulator import pick_device

    began = time.perf_counter()
    drawn: list[bool] = []
    first = runs[0].folder

    def done(run: "PlannedRun", history: "History | None") -> None:
        nonlocal began
        drawn.append(_draw_and_report(run.folder, history, time.perf_counter() - began))
        began = time.perf_counter()

    def last_words() -> str:
        for folder in MADE_HERE:
            settle_run(folder)
        todo = f"go on with: fedgs resume {shlex.quote(str(first))}" if first.exists() else "nothing was done yet"
        return f"interrupted; {todo}"

    def callbacks(run: "PlannedRun") -> list[Any]:
        return [RunDisplay(run.folder.name, run.settings, lines.console, lines)]

    interrupt.last_words = last_words
    with ProgressLines(PROGRESS_EVERY) as lines:
        try:
            launch(runs, pick_device(device), new, callbacks, done, overwrite, federation)
        except FirstRankReports:
            raise typer.Exit(2) from None
        except KeyboardInterrupt:
            interrupt.say()
            raise typer.Exit(130) from None
    if not drawn:  # the first rank prints
        return
    comparison = first / "comparison.png"
    if len(runs) > 1 and (any(drawn) or not comparison.is_file()):
        compare_folders([run.folder for run in runs], comparison)
    elif not any(drawn):
        typer.echo(f"{first}: is finished, there is nothing left to do")


def _draw_and_report(folder: Path, history: "History | None", seconds: float) -> bool:
    """Draw the pictures of a run and print its results; of one that was finished before, only what is missing."""
    from fedgs.report.run_figures import draw_run, pictures_of
    from fedgs.simulation.folder import CONFUSION, SUMMARY, read_rates
    from fedgs.simulation.history import load_history
    from fedgs.simulation.summary import one_class_warning

    read = load_history(folder)
    if not read.confusion and any("predicted_classes" in line for line in read.metrics):
        typer.echo(f"{folder}: {CONFUSION} is missing; to have it again take {SUMMARY} away and resume")
    if history is None and all((folder / name).is_file() for name in pictures_of(read)):
        return False
    pictures = ", ".join(path.name for path in draw_run(folder, read, *read_rates(folder)))
    if history is None:  # it may have been killed just before they were drawn
        typer.echo(f"{folder}: is finished; {pictures} drawn")
    else:
        typer.echo(f"{folder}: {_scores(history.summary)}; {seconds:.0f} s; {pictures}")
        typer.echo(f"{folder}: {_simulated(history.summary)}")
        if history.summary.get("one_class_since") is not None:
            typer.echo(f"{folder}: warning: {one_class_warning(history.settings, history.metrics)}")
    return True


def _scores(summary: dict[str, Any]) -> str:
    from fedgs.report.units import readable_score

    score = summary["score"]["name"]
    found, target = summary[score], summary["target"]
    at = f" in round {found['best_round']}" if "best_round" in found else ""
    best = readable_score(score, found.get("best", found.get("least")), 2)
    line = f"{score} {readable_score(score, found['final'], 2)} (best {best}{at})"
    if "balanced_accuracy" in summary and score == "accuracy":
        line += f", balanced over classes {readable_score(score, summary['balanced_accuracy']['final'], 2)}"
    if target.get(score) is not None:
        wanted = readable_score(score, target[score], 0)
        line += f", {wanted} not reached" if target["round"] is None else f", {wanted} in round {target['round']}"
        if target.get("round_with_pretraining") is not None:
            line += f" ({target['round_with_pretraining']} with pre-training)"
    return line


def _simulated(summary: dict[str, Any]) -> str:
    """Return what the run would take in a real park, in a line."""
    from fedgs.report.units import readable_bytes, readable_duration, readable_score

    clock, sent, score = summary["clock"], summary["traffic"], summary["score"]["name"]
    reached, target = clock["seconds_to_target"], summary["target"].get(score)
    inside, top = (
        sent.get(f"{link}_up", 0) + sent.get(f"{link}_down", 0) for link in ("device_station", "station_top")
    )
    return (
        f"simulated {readable_duration(clock['seconds'])}"
        + (f" ({readable_score(score, target, 0)} after {readable_duration(reached)})" if reached is not None else "")
        + f" on {clock['profile']}; device–station {readable_bytes(inside)}, station–top {readable_bytes(top)}"
    )
