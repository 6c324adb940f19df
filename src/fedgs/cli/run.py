"""``fedgs run``, ``resume`` and ``baselines``: simulate, and leave a folder with all that came out."""

import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from fedgs.simulation.history import History
    from fedgs.simulation.launch import PlannedRun

DeviceOption = Annotated[str, typer.Option("--device", help="auto, cpu or cuda.")]


def run(
    config: Annotated[Path | None, typer.Argument(help="A TOML file of settings, or the config.json of a run.")] = None,
    preset: Annotated[
        str | None,
        typer.Option(help="quick (a minute and a half), bearings, paper or coverage; quick without CONFIG."),
    ] = None,
    overrides: Annotated[
        list[str] | None,
        typer.Option(
            "--set", help="key.path=value, for example training.rounds=20 or algorithm.name=fedavg; repeatable."
        ),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="Folder of the run (default: runs/NAME, or runs/NAME-BASELINE with --set).")
    ] = None,
    device: DeviceOption = "auto",
) -> None:
    """Simulate FedGS, or a baseline it is compared with (algorithm.name, see: fedgs baselines).

    Select, train, synchronise, test; write metrics, model and pictures.
    """
    from fedgs.config import load_settings
    from fedgs.simulation.launch import planned_runs

    if config is None and preset is None:
        preset = "quick"
    settings = load_settings(config, overrides or [], preset)
    folder = out or Path("runs") / _name_of(config, str(preset), overrides or [])
    _launch(planned_runs(folder, settings), device, new=True)


def resume(
    folder: Annotated[Path, typer.Argument(metavar="RUN", help="The folder of a run that was interrupted.")],
    device: DeviceOption = "auto",
) -> None:
    """Go on with a run and its baseline from the last checkpoint; draw the pictures that are missing."""
    from fedgs.simulation.folder import read_settings
    from fedgs.simulation.launch import planned_runs

    _launch(planned_runs(folder, read_settings(folder)), device, new=False)


def baselines() -> None:
    """List the baselines FedGS is compared with, and their options."""
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
    from fedgs.simulation.folder import CONFIG, METRICS

    chosen = [str(value) for key, value in map(parse_override, overrides) if key == "algorithm.name"]
    algorithm = chosen[-1].rpartition(":")[2] if chosen and chosen[-1] != "fedgs" else None
    name = preset if config is None else config.stem
    if config is not None and config.name == CONFIG and config.with_name(METRICS).exists():
        name = config.resolve().parent.name
        return f"{name}-{algorithm or 'again'}"
    return name if algorithm is None else f"{name}-{algorithm}"


def _launch(runs: "Sequence[PlannedRun]", device: str, new: bool) -> None:
    from fedgs.cli.compare import compare_folders
    from fedgs.simulation.folder import is_unused
    from fedgs.simulation.launch import FirstRankReports, launch
    from fedgs.simulation.simulator import pick_device

    began = time.perf_counter()
    drawn: list[bool] = []

    def done(run: "PlannedRun", history: "History | None") -> None:
        nonlocal began
        drawn.append(_draw_and_report(run.folder, history, time.perf_counter() - began))
        began = time.perf_counter()

    first = runs[0].folder
    try:
        launch(runs, pick_device(device), new, _callbacks, done)
    except FirstRankReports:
        raise typer.Exit(2) from None
    except KeyboardInterrupt:
        left = "nothing was done yet" if is_unused(first) else f"go on with: fedgs resume {first}"
        typer.echo(f"fedgs: interrupted; {left}", err=True)
        raise typer.Exit(130) from None
    if not drawn:  # the first rank prints
        return
    comparison = first / "comparison.png"
    if len(runs) > 1 and (any(drawn) or not comparison.is_file()):
        compare_folders([run.folder for run in runs], comparison)
    elif not any(drawn):
        typer.echo(f"{first}: is finished, there is nothing left to do")


def _callbacks(run: "PlannedRun") -> list[Any]:
    from fedgs.cli.run_display import RunDisplay

    found: list[Any] = [RunDisplay(run.folder.name, run.settings)]
    if run.settings.tensorboard:
        from fedgs.simulation.callbacks import TensorBoard

        found.append(TensorBoard(run.folder / "tensorboard"))
    return found


def _draw_and_report(folder: Path, history: "History | None", seconds: float) -> bool:
    """Draw the pictures of a run and print its results; of one that was finished before, only what is missing."""
    from fedgs.report.run_figures import RUN_PICTURES, draw_run
    from fedgs.simulation.folder import read_rates
    from fedgs.simulation.history import load_history

    if history is None and all((folder / name).is_file() for name in RUN_PICTURES):
        return False
    pictures = ", ".join(path.name for path in draw_run(folder, load_history(folder), *read_rates(folder)))
    if history is None:  # it may have been killed just before they were drawn
        typer.echo(f"{folder}: is finished; {pictures} drawn")
    else:
        typer.echo(f"{folder}: {_scores(history.summary)}; {seconds:.0f} s; {pictures}")
        typer.echo(f"{folder}: {_simulated(history.summary)}")
    return True


def _scores(summary: dict[str, Any]) -> str:
    from fedgs.report.units import readable_score

    score = summary["score"]["name"]
    found, target = summary[score], summary["target"]
    at = f" in round {found['best_round']}" if "best_round" in found else ""
    best = readable_score(score, found.get("best", found.get("least")), 2)
    line = f"{score} {readable_score(score, found['final'], 2)} (best {best}{at})"
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
