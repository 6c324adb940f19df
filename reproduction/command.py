"""``python -m reproduction``: the paper's figures and tables, and what goes beyond it, by one command each."""

from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from reproduction.experiments.catalogue import EXPERIMENTS

if TYPE_CHECKING:
    from reproduction.experiments.jobs import Results
    from reproduction.experiments.reproduction import Reproduction

WHAT = (*EXPERIMENTS, "all", "report")
MOST_SEEDS = 100
HELP = "\n".join([
    "Reproduce the paper, experiment by experiment; write JSON, figures and a report.", "",
    *(f"- {name}: {experiment.summary}" for name, experiment in EXPERIMENTS.items()),
    "- all: every one of them",
    "- report: the report alone, from what is there",
])  # fmt: skip
"""Of the command; its list is that of the catalogue."""


def reproduce(
    context: typer.Context,
    what: Annotated[str, typer.Argument(help="An experiment, all, or report.", metavar="WHAT")],
    femnist: Annotated[
        Path | None, typer.Option(help="FEMNIST, in any of its forms; without it glyphs at a small size.")
    ] = None,
    rounds: Annotated[int | None, typer.Option(min=1, help="Rounds of every run (default: the experiment's).")] = None,
    seeds: Annotated[str | None, typer.Option(help="Seeds, separated by commas (default: the experiment's).")] = None,
    device: Annotated[str, typer.Option(help="auto, cpu or cuda.")] = "auto",
    out: Annotated[
        Path | None,
        typer.Option(help="Folder of results; jobs that are there are not run again (default: results/NAME)."),
    ] = None,
    preset: Annotated[
        str | None, typer.Option(help="quick: glyphs at a small size, minutes on two cores; so without --femnist.")
    ] = None,
    stop_after: Annotated[
        float | None, typer.Option(min=0, help="Begin no job later than so many seconds from the start.")
    ] = None,
    jobs: Annotated[
        int, typer.Option(min=1, help="Jobs at a time, each in its own process; one seldom fills a GPU.")
    ] = 1,
    again: Annotated[
        bool, typer.Option("--again", help="Replace results that were made with other settings; else they are refused.")
    ] = False,
    report: Annotated[bool, typer.Option("--report/--no-report", help="Write the report at the end.")] = True,
    further: Annotated[
        list[Path] | None, typer.Option("--with", help="A further folder whose results the report shows; repeatable.")
    ] = None,
    overrides: Annotated[
        list[str] | None, typer.Option("--set", help="key.path=value for every run; repeatable.")
    ] = None,
) -> None:
    """Reproduce the paper, experiment by experiment; write JSON, figures and a report."""
    from fedgs.errors import ConfigError, suggestion

    if what not in WHAT:
        raise ConfigError(f"reproduce {what}: there is no such experiment; {suggestion(what, WHAT)}")
    if preset not in (None, "quick"):
        raise ConfigError(f"--preset {preset}: reproduce knows quick alone; for the paper's size give --femnist FILE")
    if preset == "quick" and femnist is not None:
        raise ConfigError("--preset quick uses the embedded glyphs; leave --femnist or --preset out")
    numbers = None if seeds is None else _numbers(seeds)
    given = {
        "--rounds": rounds,
        "--seeds": seeds,
        "--set": overrides[0] if overrides else None,
        "--stop-after": stop_after,
        "--jobs": _given(context, "jobs"),
        "--device": _given(context, "device"),
        "--again": again or None,
    }
    _check_used(what, given, numbers)
    if not report and (what == "report" or further):
        hint = "leave --no-report out" if what == "report" else "leave --with or --no-report out"
        raise ConfigError(f"--no-report: nothing would come of {'it' if what == 'report' else '--with'}; {hint}")
    for place in further or []:
        from reproduction.report.report_inputs import read_folder

        read_folder(place, "--with")  # before hours of work
    if what == "bearings" and femnist is not None:
        raise ConfigError("bearings has its own data, which is generated; leave --femnist out")
    usual = what if what == "bearings" else "quick"
    folder = out or Path("results") / (usual if femnist is None else femnist.stem.replace("_", "-"))
    found = what == "report"
    if what != "report":
        from fedgs.simulation.simulator import pick_device
        from reproduction.experiments.bearings import Bearings
        from reproduction.experiments.reproduction import Reproduction

        kind = Bearings if what == "bearings" else Reproduction
        reproduction = kind(femnist, numbers, rounds, overrides or [])
        pick_device(device)  # what is wrong with it is told before anything is loaded
        new = _not_there(folder)
        try:
            results, total = _run(what, reproduction, device, folder, stop_after, jobs, again)
        except KeyboardInterrupt:
            typer.echo("fedgs: interrupted; the same command goes on from here", err=True)
            raise typer.Exit(130) from None
        finally:
            for place in new:  # those that have stayed empty
                with suppress(OSError):
                    place.rmdir()
        failed = sum("failed" in result for result in results.values())
        typer.echo(
            f"{folder}: {len(results)} of {total} jobs"
            + (f", {failed} of them diverged" if failed else "")
            + ("" if len(results) == total else "; the same command goes on with the others")
        )
        found = bool(results)
    if report and found:
        _report(folder, further or [])


def _not_there(folder: Path) -> list[Path]:
    """Return the folders that results would make, innermost first."""
    from reproduction.experiments.jobs import FOLDER

    return [place for place in (folder / FOLDER, folder, *folder.parents) if not place.exists()]


def _check_used(what: str, given: "dict[str, object]", seeds: list[int] | None) -> None:
    """Refuse what would have no effect: nobody should take the numbers for others than they are."""
    from fedgs.errors import ConfigError

    for option, value in given.items():
        if what == "report" and value is not None:
            given_as = option if value is True else f"{option} {value}"
            raise ConfigError(f"{given_as}: report runs nothing, it shows what is there; leave {option} out")
    if what not in EXPERIMENTS:
        return
    if not EXPERIMENTS[what].trains and given["--rounds"] is not None:
        raise ConfigError(f"--rounds {given['--rounds']}: {what} trains nothing; leave --rounds out")
    if EXPERIMENTS[what].one_seed and seeds is not None and len(seeds) > 1:
        raise ConfigError(f"--seeds {given['--seeds']}: {what} has one seed; give one, as in --seeds {seeds[0]}")


def _given(context: typer.Context, name: str) -> object:
    """Return the value of an option that has a default; None: it was not given."""
    source = context.get_parameter_source(name)
    return context.params[name] if source is not None and source.name == "COMMANDLINE" else None


def _run(
    what: str,
    reproduction: "Reproduction",
    device: str,
    folder: Path,
    stop_after: float | None,
    workers: int,
    again: bool,
) -> "tuple[Results, int]":
    import time

    from fedgs.simulation.simulator import pick_device
    from reproduction.display import JobsDisplay
    from reproduction.experiments.catalogue import stages_of
    from reproduction.experiments.jobs import run_jobs

    began = time.perf_counter()
    results: Results = {}
    names: set[str] = set()
    digest = None
    for stage in stages_of(what):
        while jobs := [job for job in stage(reproduction, results) if job.name not in names]:
            digest = digest or reproduction.digest()
            left = None if stop_after is None else max(0.0, stop_after - (time.perf_counter() - began))
            names |= {job.name for job in jobs}
            results |= run_jobs(
                jobs, folder, reproduction.federation, digest, pick_device(device), JobsDisplay(), left, workers, again
            )
    return results, len(names)


def _report(folder: Path, further: list[Path]) -> None:
    from reproduction.report.write import write_report

    paths, unused = write_report(folder, further)
    for place in unused:
        typer.echo(f"fedgs: note: remarks.toml: {place} is not in the report, nothing is said there", err=True)
    typer.echo(f"report: {', '.join(str(path) for path in paths)}")


def _numbers(text: str) -> list[int]:
    from fedgs.errors import ConfigError

    try:
        numbers = [int(seed) for seed in text.split(",")]
    except ValueError:
        numbers = [-1]
    if min(numbers) < 0 or len(set(numbers)) < len(numbers) or len(numbers) > MOST_SEEDS:
        raise ConfigError(f"--seeds {text}: give different whole numbers from 0 on, separated by commas, as in 0,1,2")
    return numbers
