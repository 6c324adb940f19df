"""``fedgs compare``: runs in a table of scores, one of simulated time and bytes, and one picture."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from fedgs.simulation.compare import Comparison
    from fedgs.simulation.history import History

WIDE = 100
"""Columns of a wide terminal."""
CLOCK_NUMBERS, SHORTEST_NAME = 66, 10
"""Columns that the numbers of the second table take; the least of a name."""


def compare(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN...", help="Folders of runs.")],
    out: Annotated[Path, typer.Option(help="The figure to write.")] = Path("runs/comparison.png"),
) -> None:
    """Compare runs in a table and a figure: accuracy, loss, simulated time, bytes.

    Runs that differ only in their seed are one row: mean ± standard deviation.
    """
    compare_folders(runs, out)


def compare_folders(folders: Sequence[Path], picture: Path) -> None:
    """Draw these runs into one picture and print their tables."""
    from rich.console import Console

    from fedgs.errors import OutputError
    from fedgs.report.units import readable_score
    from fedgs.simulation.compare import compare as compare_histories
    from fedgs.simulation.history import load_history

    histories = [load_history(folder) for folder in folders]
    short = [folder.resolve().name for folder in folders]
    names = short if len(set(short)) == len(short) else [str(folder) for folder in folders]
    comparison = compare_histories(*histories, names=names)
    targets = {history.settings.eval.target for history in histories}
    target = targets.pop() if len(targets) == 1 else None
    to_target = "" if target is None else f"to {readable_score(comparison.score, target, 0)}"
    try:
        comparison.plot(picture)  # first: whoever reads the tables in a pipe may close it early
    except OutputError as error:
        raise OutputError(f"--out: {error}") from None
    console = Console()
    _print_scores(console, comparison, to_target)
    if any(history.clock for history in histories):
        _print_clocks(console, comparison, to_target or "target")
    typer.echo(f"picture: {picture}")


def _print_scores(console: "Console", comparison: "Comparison", to_target: str) -> None:
    """Print accuracies and losses; ``to_target`` heads the rounds to the target, "": runs have targets of their own."""
    from fedgs.report.run_figures import OF_TEAMS
    from fedgs.report.units import readable_score

    score, rows = comparison.score, comparison.means
    any_baseline = any(row["solver"] is None for row in rows)
    seeds = max(row["seeds"] for row in rows)
    # What differs between runs: the solver where all are FedGS, else the algorithm.
    methods = [(f"fedgs {row['solver']}" if any_baseline else row["solver"]) if row["solver"] else row["algorithm"]
               for row in rows]  # fmt: skip
    notes = {f"diverg.: {OF_TEAMS}": None} if comparison.mixed else {}
    if seeds > 1:
        notes["×N: mean ± standard deviation of N seeds"] = None
    # In 80 columns one space between two of them has to do; with deviations there is room for one score.
    scores = {"final": "final", "best": "best", "last_10": "last 10"}
    if seeds > 1 and console.width < WIDE:
        scores = {"final": "final"}
    titles = ["run", "baseline" if any_baseline else "solver", "rounds", *scores.values(), "loss",
              to_target or "to target", "diverg."]  # fmt: skip
    cells: list[list[str]] = []
    for row, method in zip(rows, methods, strict=True):
        if row["final"] is None:
            cells.append([method, "0", *[""] * (len(titles) - 3)])
            continue
        if row["pretraining_rounds"]:
            notes[f"+{row['pretraining_rounds']}: rounds of pre-training"] = None
        loss, around = row["loss"], row["loss_sd"]
        divergence = None if comparison.mixed and not row["solver"] else row["divergence"]
        cells.append([
            method,
            f"{row['rounds']}"
            + ("" if row["rounds"] == row["of_rounds"] else f" of {row['of_rounds']}")
            + (f" ×{row['seeds']}" if row["seeds"] > 1 else ""),
            *(readable_score(score, row[key], 2, row[f"{key}_sd"]) for key in scores),
            f"{loss:.4f}" if around is None else f"{loss:.3f}±{around:.3f}",
            _reached(row, score, not to_target),
            f"{divergence:.4f}" if divergence is not None else "–",
        ])  # fmt: skip
    space = int(console.width >= WIDE)
    table = table_of(titles, words=2, space=space)
    widths = [max(map(len, column)) + space + 1 for column in zip(titles[1:], *cells, strict=True)]
    names = _short_names([row["run"] for row in rows], console.width - sum(widths))
    for name, line in zip(names, cells, strict=True):
        table.add_row(name, *line)
    console.print(table)
    for note in notes:
        console.print(note, highlight=False, style="dim")


def _reached(row: "Mapping[str, Any]", score: str, name_target: bool) -> str:
    """Return the round of the target; ``name_target``: runs have targets of their own."""
    from fedgs.report.units import readable_score

    if row["target"] is None:
        return "–"
    found = "×" if row["target_round"] is None else f"{row['target_round']:.4g}"
    if row["target_round_sd"] is not None:
        found += f"±{row['target_round_sd']:.2g}"
    if 0 < row["reached"] < row["seeds"]:
        found += f" ({row['reached']}/{row['seeds']})"
    if row["pretraining_rounds"]:
        found += f"+{row['pretraining_rounds']}"
    return f"{found} ({readable_score(score, row['target'], 0)})" if name_target else found


def _print_clocks(console: "Console", comparison: "Comparison", to_target: str) -> None:
    """Print simulated times and bytes, whole and up to the target, and what the times rest on."""
    from fedgs.report.units import readable_bytes, readable_duration

    until = f"\n{to_target}"
    table = table_of(
        ["simulated\nrun", "time\na round", "\nall", until, "device–\nstation", until, "station–\ntop", until]
    )
    names = _short_names(list(comparison.groups), console.width - CLOCK_NUMBERS)
    for name, group in zip(names, comparison.groups.values(), strict=True):
        # Of several seeds the mean; not reached by one of them is not reached.
        numbers = [_clock_numbers(history) for history in group if history.clock]
        means = [None if None in column else sum(column) / len(column) for column in zip(*numbers, strict=True)]
        never = ["–", "–", *["×"] * 5]
        cells = [
            none if mean is None else (readable_duration if place < 3 else readable_bytes)(mean)
            for place, (mean, none) in enumerate(zip(means, never, strict=False))
        ]
        table.add_row(name, *(cells or ["–"] * 7))
    console.print()
    console.print(table)
    for note in _clock_notes(comparison):
        console.print(note, highlight=False, markup=False, style="dim")


def _short_names(names: Sequence[str], room: int) -> list[str]:
    """Return the ends of names that fit; names that would look alike are whole, over several lines."""
    short = [tail(name, room) for name in names]
    return [one if short.count(one) == 1 else name for one, name in zip(short, names, strict=True)]


def _clock_numbers(history: "History") -> list[float | None]:
    """Return seconds of a round, of all, up to the target; bytes of both links, of all and up to the target."""
    from fedgs.simulation.compare import row_of
    from fedgs.simulation.run_clock import elapsed, traffic

    row, clock = row_of("", history), [dict(line) for line in history.clock]
    last, reached = clock[-1]["round"], row["target_round"]
    # A pre-training stands in the first line: it counts in the whole, not in a round.
    each = (row["simulated_seconds"] - clock[0]["elapsed"]) / last if last else None
    totals = [traffic(clock, last), traffic(clock, reached)]
    return [each, row["simulated_seconds"], elapsed(clock, reached)] + [
        None if sent is None else sent.get(f"{link}_up", 0) + sent.get(f"{link}_down", 0)
        for link in ("device_station", "station_top")
        for sent in totals
    ]


def _clock_notes(comparison: "Comparison") -> list[str]:
    """Return what the times rest on, and a warning where the runs' clocks are not the same."""
    from fedgs.report.units import readable_duration

    there = {name: history for name, history in comparison.histories.items() if history.clock}
    notes = [f"{name}: has no clock.jsonl" for name in comparison.histories if name not in there]
    clocks = {name: history.settings.clock for name, history in there.items()}
    if len(set(clocks.values())) > 1:
        each = ", ".join(f"{name}: {clock.profile}" for name, clock in clocks.items())
        return [*notes, f"the settings of the clocks differ ({each}): compare their times with care"]
    steps = sorted(float(history.clock[0]["step_seconds"]) for history in there.values())
    step = " to ".join(dict.fromkeys(readable_duration(seconds) for seconds in (steps[0], steps[-1])))
    clock = next(iter(clocks.values()))
    measured = [word for word in ("step", "selection") if getattr(clock, f"{word}_seconds") == "measured"]
    rest = f"; measured: {' and '.join(measured)}" if measured else ""
    return [*notes, f"clock: {clock.profile}, a local step takes {step}{rest}"]


def table_of(titles: Sequence[str], words: int = 1, space: int = 1) -> "Table":
    """Return an empty table; its first columns are ``words``, the others numbers."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    table = Table(box=SIMPLE_HEAD, padding=(0, space, 0, 0), show_edge=False)
    for number, title in enumerate(titles):
        table.add_column(
            title, justify="left" if number < words else "right", no_wrap=not title.endswith("run"), overflow="fold"
        )
    return table


def tail(name: str, longest: int) -> str:
    """Return the end of a long name, where the names of compared runs differ."""
    longest = max(longest, SHORTEST_NAME)
    return name if len(name) <= longest else "…" + name[1 - longest :]
