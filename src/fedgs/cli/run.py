"""``fedgs run`` and ``fedgs resume``: simulate, with a live display, and leave a folder with all that came out."""

import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from fedgs.settings import Settings
    from fedgs.simulation.history import History
    from fedgs.simulation.jobs import Job

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
    from fedgs.simulation.jobs import jobs_of

    if config is None and preset is None:
        preset = "quick"
    settings = load_settings(config, overrides or [], preset)
    settings.clock.links()  # reads the profile, so that nothing is begun without it
    folder = out or Path("runs") / _name_of(config, str(preset), overrides or [])
    _carry_out(jobs_of(folder, settings), device, new=True)


def resume(
    folder: Annotated[Path, typer.Argument(metavar="RUN", help="The folder of a run that was interrupted.")],
    device: DeviceOption = "auto",
) -> None:
    """Go on with a run, and the one beside it, from the last checkpoint; draw the pictures that are missing."""
    from fedgs.simulation.folder import read_settings
    from fedgs.simulation.jobs import jobs_of

    _carry_out(jobs_of(folder, read_settings(folder)), device, new=False)


def _name_of(config: Path | None, preset: str, overrides: list[str]) -> str:
    """Return the name of a run: of its preset or settings file, and of the algorithm where --set chooses one.

    Algorithms that are run one after the other so have a folder each. The settings of an earlier run give it again.
    """
    from fedgs.simulation.folder import CONFIG, METRICS
    from fedgs.simulation.jobs import key_and_value

    chosen = [value for key, value in map(key_and_value, overrides) if key == "algorithm.name"]
    algorithm = chosen[-1].rpartition(":")[2] if chosen and chosen[-1] != "fedgs" else None
    name = preset if config is None else config.stem
    if config is not None and config.name == CONFIG and config.with_name(METRICS).exists():
        name = config.resolve().parent.name
        return f"{name}-{algorithm or 'again'}"
    return name if algorithm is None else f"{name}-{algorithm}"


def _carry_out(jobs: "Sequence[Job]", device: str, new: bool) -> None:
    from fedgs.cli.compare import compare_folders
    from fedgs.simulation.folder import is_unused
    from fedgs.simulation.jobs import NotSpeaking, carry_out
    from fedgs.simulation.simulator import pick_device

    began = [time.perf_counter()]
    anew: list[bool] = []

    def done(job: "Job", history: "History | None") -> None:
        if history is None:
            anew.append(_draw_missing(job.folder, job.settings))
            return
        anew.append(True)
        _report(job.folder, job.settings, history.summary, time.perf_counter() - began[0])
        began[0] = time.perf_counter()

    first = jobs[0].folder
    try:
        carry_out(jobs, pick_device(device), new, _callbacks, done)
    except NotSpeaking:
        raise typer.Exit(2) from None
    except KeyboardInterrupt:
        left = "nothing was done yet" if is_unused(first) else f"go on with: fedgs resume {first}"
        typer.echo(f"fedgs: interrupted; {left}", err=True)
        raise typer.Exit(130) from None
    if not anew:  # another process speaks
        return
    comparison = first / "comparison.png"
    if len(jobs) > 1 and (any(anew) or not comparison.is_file()):
        compare_folders([job.folder for job in jobs], comparison)
    elif not any(anew):
        typer.echo(f"{first}: is finished, there is nothing left to do")


def _callbacks(job: "Job") -> list[Any]:
    from fedgs.cli.run_display import RunDisplay

    found: list[Any] = [RunDisplay(job.folder.name, job.settings)]
    if job.settings.tensorboard:
        from fedgs.simulation.tensorboard import TensorBoard

        found.append(TensorBoard(job.folder / "tensorboard"))
    return found


def _simulated(summary: dict[str, Any]) -> str:
    """Return what the run would take in a real park, in a line."""
    from fedgs.cli.run_display import shown_score
    from fedgs.report.units import readable_bytes, readable_duration

    clock, sent, score = summary["clock"], summary["traffic"], summary["score"]["name"]
    reached, target = clock["seconds_to_target"], summary["target"].get(score)
    inside, top = (
        sent.get(f"{link}_up", 0) + sent.get(f"{link}_down", 0) for link in ("device_station", "station_top")
    )
    return (
        f"simulated {readable_duration(clock['seconds'])}"
        + (f" ({shown_score(score, target, 0)} after {readable_duration(reached)})" if reached is not None else "")
        + f" on {clock['profile']}; device–station {readable_bytes(inside)}, station–top {readable_bytes(top)}"
    )


def _draw_missing(folder: Path, settings: "Settings") -> bool:
    """Draw the pictures of a finished run if one is missing: it may have been killed just before."""
    from fedgs.report.run_figures import RUN_PICTURES

    if all((folder / name).is_file() for name in RUN_PICTURES):
        return False
    pictures = _draw(folder, settings)
    typer.echo(f"{folder}: is finished; {', '.join(path.name for path in pictures)} drawn")
    return True


def _draw(folder: Path, settings: "Settings") -> list[Path]:
    import csv

    import numpy as np

    from fedgs.cli.compare import read_lines
    from fedgs.errors import InputFileError
    from fedgs.report.run_figures import draw_run
    from fedgs.simulation.folder import DEVICES, read_task

    try:
        with (folder / DEVICES).open(newline="", encoding="utf-8") as file:
            rows = [(float(row["rate"]), row["factory"]) for row in csv.DictReader(file)]
    except (OSError, ValueError, KeyError, TypeError):
        raise InputFileError(f"{folder / DEVICES}: is missing or broken; repeat the run") from None
    rates = np.array([rate for rate, _ in rows])
    names = sorted({name for _, name in rows}, key=lambda name: (len(name), name))  # factory-2 before factory-10
    factories = np.array([names.index(name) for _, name in rows])
    score = read_task(folder)["score"]
    return draw_run(
        folder, folder.resolve().name, read_lines(folder, score), rates, factories, settings.eval.target,
        flat=settings.algorithm.flat, score=score,
    )  # fmt: skip


def _report(folder: Path, settings: "Settings", summary: dict[str, Any], seconds: float) -> None:
    from fedgs.cli.run_display import shown_score

    pictures = _draw(folder, settings)
    score = summary["score"]["name"]
    found, target = summary[score], summary["target"]
    best = found.get("best", found.get("least"))
    line = f"{folder}: {score} {shown_score(score, found['final'], 2)}"
    at = f" in round {found['best_round']}" if "best_round" in found else ""
    line += f" (best {shown_score(score, best, 2)}{at})"
    if target.get(score) is not None:
        wanted = shown_score(score, target[score], 0)
        line += f", {wanted} not reached" if target["round"] is None else f", {wanted} in round {target['round']}"
        if target.get("round_with_pretraining") is not None:
            line += f" ({target['round_with_pretraining']} with pre-training)"
    typer.echo(f"{line}; {seconds:.0f} s; {', '.join(path.name for path in pictures)}")
    typer.echo(f"{folder}: {_simulated(summary)}")
