"""``fedgs sweep``: a run for every combination of some settings and every seed; a table, a heat map, the best."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from fedgs.cli import interrupt
from fedgs.cli.run import DataOption, DeviceOption, name_of_file, settings_and_data
from fedgs.errors import ConfigError


def sweep(
    grid: Annotated[
        list[str],
        typer.Option(help="key.path=value,value,… for example training.learning_rate=0.03,0.1; repeatable."),
    ],
    config: Annotated[Path | None, typer.Argument(help="A TOML file of settings, or the config.json of a run.")] = None,
    data: DataOption = None,
    preset: Annotated[
        str | None,
        typer.Option(help="A preset of fedgs run (default: own with --data, quick without CONFIG)."),
    ] = None,
    overrides: Annotated[
        list[str] | None, typer.Option("--set", help="key.path=value of all runs; repeatable.")
    ] = None,
    seeds: Annotated[int, typer.Option(min=1, help="Number of runs per combination, with the seeds 0, 1, …")] = 1,
    workers: Annotated[int, typer.Option(min=1, help="Number of parallel runs, each in its own process.")] = 1,
    out: Annotated[Path | None, typer.Option(help="Folder of the sweep (default: runs/NAME-sweep).")] = None,
    device: DeviceOption = "auto",
) -> None:
    """Run every combination of a grid with every seed; print a table, draw a heat map.

    The same command resumes an interrupted sweep; finished runs are not repeated.
    """
    from fedgs.report.units import readable_score
    from fedgs.simulation.run import KEYWORDS
    from fedgs.simulation.sweep import sweep_rows

    settings, _, name = settings_and_data(data, config, overrides or [], preset)
    values: dict[str, list[Any]] = {}
    for key, listed in map(_values, grid):
        if KEYWORDS.get(key, key) in values:
            raise ConfigError(f"--grid {key}: is there twice; give all its values once, with commas between them")
        values[KEYWORDS.get(key, key)] = listed
    folder = out or Path("runs") / f"{name if config is None else name_of_file(config)}-sweep"
    found = sweep_rows(
        None, None, values, seeds=seeds, workers=workers, out=folder, settings=settings, device=device
    )  # fmt: skip
    rows: list[dict[str, Any]] = []
    total = seeds * math.prod(map(len, values.values()))
    interrupt.last_words = lambda: f"interrupted; the same command goes on with the sweep in {folder}"
    try:
        for row in found:
            rows.append(row)
            what = " ".join(f"{key}={row[key]}" for key in (*values, "seed"))
            result = row["error"] or f"{row['score']} {readable_score(row['score'], row['final'], 2)}"
            typer.echo(f"{len(rows)}/{total} {what}: {result}")
    except KeyboardInterrupt:
        interrupt.say()
        raise typer.Exit(130) from None
    _report(folder, rows, values)


def _values(text: str) -> tuple[str, list[Any]]:
    """Return key and values of ``key.path=value,value``."""
    import tomllib

    from fedgs.config import parse_override

    key = parse_override(text, "--grid")[0]
    listed = text.partition("=")[2]
    try:
        return key, tomllib.loads(f"values = [{listed}]")["values"]
    except tomllib.TOMLDecodeError:  # bare words
        return key, [parse_override(f"{key}={one}", "--grid")[1] for one in listed.split(",")]


def _report(folder: Path, rows: Sequence[Mapping[str, Any]], grid: Mapping[str, Sequence[Any]]) -> None:
    """Write the table of all runs and the heat map, print the means, and name the best."""
    import csv
    import io

    from rich.console import Console

    from fedgs.cli.compare import table_of
    from fedgs.files import write_text
    from fedgs.report.sweep_figures import draw_sweep
    from fedgs.report.units import readable_score
    from fedgs.simulation.sweep import sweep_means

    means = sweep_means(rows, grid)
    score = next((str(row["score"]) for row in rows if "score" in row), "score")
    text = io.StringIO()
    writer = csv.DictWriter(text, list(dict.fromkeys(key for row in rows for key in row)), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    write_text(folder / "sweep.csv", text.getvalue())
    draw_sweep(folder / "sweep.png", means, grid, score)
    short = [key.rpartition(".")[2] for key in grid]
    titles = short if len(set(short)) == len(short) else list(grid)
    table = table_of([*titles, "seeds", "final", "best", "loss"], words=len(grid))
    for row in means:
        cells = ["–"] * 3
        if row["final"] is not None:
            cells = [readable_score(score, row[key], 2, row[f"{key}_sd"]) for key in ("final", "best")]
            cells.append(readable_score("loss", row["loss"], 2, row["loss_sd"]))
        lost = f"{row['failed']} diverged" if row["failed"] else ""
        seeds = ", ".join(part for part in (str(row["seeds"] or ""), lost) if part)
        table.add_row(*(str(row[key]) for key in grid), seeds, *cells)
    Console().print(table)
    best = means[0]
    if best["final"] is not None:
        shown = readable_score(score, best["final"], 2, best["final_sd"])
        typer.echo(f"best: {' '.join(f'--set {key}={best[key]}' for key in grid)} ({score} {shown})")
    typer.echo(f"picture: {folder / 'sweep.png'}; all runs: {folder / 'sweep.csv'}")
