"""``python -m reproduction bench-selection``: all solvers on the same instances, beside the paper's numbers."""

import csv
import io
import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from fedgs.data import Federation
    from fedgs.settings import Settings
    from reproduction.experiments.samplers import Comparison

COLUMNS = ("solver", "instances", "mean", "median", "std", "max", "min", "gap", "optimal", "proven", "seconds", "note")


def bench_selection(
    config: Annotated[Path | None, typer.Argument(help="A TOML file of settings (default: the paper's).")] = None,
    instances: Annotated[int, typer.Option(min=1, help="How many selection problems.")] = 100,
    seed: Annotated[int | None, typer.Option(min=0, help="Seed of everything (default: the settings').")] = None,
    femnist: Annotated[Path | None, typer.Option(help="FEMNIST, in any of its forms (default: drawn labels).")] = None,
    out: Annotated[Path, typer.Option(help="Folder for tables and figures.")] = Path("runs/bench-selection"),
    overrides: Annotated[
        list[str] | None, typer.Option("--set", help="key.path=value, for example selection.pick=12; repeatable.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
) -> None:
    """Compare every solver on the same instances; write tables and the paper's figures."""
    from fedgs.config import load_settings
    from fedgs.files import finite, make_folder, write_text

    settings = load_settings(config, [*(overrides or []), *([] if seed is None else [f"seed={seed}"])])
    federation = _federation(settings, femnist)
    make_folder(out)
    comparison = _run(federation, settings, instances, quiet=as_json)

    from reproduction.figures.selection import draw_all

    everything = {"settings": settings.model_dump(), **comparison.as_dict()}
    text = json.dumps(finite(everything), indent=1)
    write_text(out / "samplers.json", text)
    write_text(out / "samplers.csv", _csv(comparison))
    figures = draw_all(comparison, out)
    if as_json:
        typer.echo(text)
        return
    _print_table(comparison)
    typer.echo(f"\n{out}/: samplers.csv, samplers.json, " + ", ".join(path.name for path in figures))


def _federation(settings: "Settings", femnist: Path | None) -> "Federation":
    from fedgs.data import build_federation, paper_federation

    wanted = settings.federation
    if femnist is not None:
        from fedgs.data.femnist import load_femnist

        dataset = load_femnist(femnist)
        return paper_federation(dataset, settings.seed, devices=wanted.devices, factories=wanted.factories)
    from reproduction.experiments.femnist_like import femnist_like_labels

    return build_federation(femnist_like_labels(wanted.devices, settings.seed), wanted.factories, seed=settings.seed)


def _run(federation: "Federation", settings: "Settings", instances: int, quiet: bool) -> "Comparison":
    from rich.console import Console
    from rich.progress import Progress

    from reproduction.experiments.samplers import compare_on

    with Progress(console=Console(stderr=True), transient=True, disable=quiet) as bar:
        task = bar.add_task("preparing")

        def show(what: str, done: int, total: int) -> None:
            bar.update(task, description=what, completed=done, total=total)

        return compare_on(federation, settings, instances, progress=show)


def _csv(comparison: "Comparison") -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow([*COLUMNS, "paper_mean", "paper_seconds"])
    for row in comparison.as_dict()["rows"]:
        theirs = row["paper"] or {}
        writer.writerow([*(row[column] for column in COLUMNS), theirs.get("mean", ""), theirs.get("seconds", "")])
    return text.getvalue()


def _print_table(comparison: "Comparison") -> None:
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table

    from fedgs.report.units import readable_time
    from reproduction.experiments import paper

    table = Table(
        title=comparison.source,
        caption=f"{comparison.software}; {comparison.hardware}",
        box=SIMPLE_HEAD,
        padding=(0, 0),
    )
    table.add_column("solver", no_wrap=True)
    for name in ("n", "divergence", "gap", "optimal", "proven", "time", "paper", "its time"):
        table.add_column(name, justify="right", no_wrap=True, min_width=6)
    for row in comparison.rows:
        theirs = paper.sampler(row.solver)
        if row.instances == 0:
            table.add_row(row.solver, "0")
            continue
        table.add_row(
            row.solver,
            str(row.instances),
            f"{row.mean:.4f}",
            f"{row.gap:.1%}",
            f"{row.optimal:.0%}",
            f"{row.proven:.0%}",
            readable_time(row.seconds),
            f"{theirs['mean']:.3f}" if theirs else "",
            readable_time(theirs["seconds"]) if theirs else "",
        )
    Console().print(table)
    for row in comparison.rows:
        if row.instances == 0:
            typer.echo(f"{row.solver} was left out: {row.note}")
    fewer = [row.solver for row in comparison.rows if 0 < row.instances < comparison.instances]
    if fewer:
        typer.echo(f"n: the slow solvers ({', '.join(fewer)}) ran on the first n instances only.")
    typer.echo("gap: mean of divergence/optimum − 1; paper: its mean divergence and time of a selection.")
