"""``fedgs compare``: runs in a table of scores, one of simulated time and bytes, and one picture."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from fedgs.simulation.compare import Comparison

WIDE = 100
"""Columns of a wide terminal."""
NUMBERS, CLOCK_NUMBERS, SHORTEST_NAME = 52, 66, 10
"""Columns that the numbers of the two tables take, and the least that is left for the names of runs."""


def compare(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN...", help="Folders of runs.")],
    out: Annotated[Path, typer.Option(help="The picture to write.")] = Path("runs/comparison.png"),
) -> None:
    """Compare runs: accuracy and loss, simulated time and bytes, one picture."""
    compare_folders(runs, out)


def compare_folders(folders: Sequence[Path], picture: Path) -> None:
    """Print the tables of these runs and draw them into one picture."""
    from rich.console import Console

    from fedgs.errors import OutputError
    from fedgs.files import make_folder
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
    console = Console()
    _print_scores(console, comparison, to_target)
    if any(history.clock for history in histories):
        _print_clocks(console, comparison, to_target or "target")
    make_folder(picture.parent)
    try:
        comparison.plot(picture)
    except OutputError as error:
        raise OutputError(f"{error}; choose another with --out") from None
    except ValueError as error:
        raise OutputError(f"{picture}: cannot be drawn ({error}); give a name that ends in .png") from None
    typer.echo(f"picture: {picture}")


def _print_scores(console: "Console", comparison: "Comparison", to_target: str) -> None:
    """Print accuracies and losses; ``to_target`` heads the rounds to the target, "": runs have targets of their own."""
    from fedgs.report.run_figures import OF_ROUNDS
    from fedgs.report.units import readable_score

    score, rows = comparison.score, comparison.rows
    any_baseline = any(row["solver"] is None for row in rows)
    # What differs between runs: the solver where all are FedGS, else the algorithm.
    methods = [(f"fedgs {row['solver']}" if any_baseline else row["solver"]) if row["solver"] else row["algorithm"]
               for row in rows]  # fmt: skip
    longest = console.width - NUMBERS - max(map(len, (*methods, "baseline")))
    divergence = "divergence_of_round" if any_baseline else "divergence"
    notes = {f"diverg.: {OF_ROUNDS}": None} if any_baseline else {}
    titles = ["run", "baseline" if any_baseline else "solver", "rounds", "final", "best", "last 10", "loss",
              to_target or "to target", "diverg."]  # fmt: skip
    # In 80 columns one space between two of them has to do.
    table = _table(titles, words=2, space=int(console.width >= WIDE))
    for row, method in zip(rows, methods, strict=True):
        if row["final"] is None:
            table.add_row(tail(row["run"], longest), method, "0")
            continue
        never = "–" if row["target"] is None else "×"
        reached = never if row["target_round"] is None else str(row["target_round"])
        if row["pretraining_rounds"]:
            reached += f"+{row['pretraining_rounds']}"
            notes[f"+{row['pretraining_rounds']}: rounds of pre-training"] = None
        if not to_target and row["target"] is not None:
            reached += f" ({readable_score(score, row['target'], 0)})"
        table.add_row(
            tail(row["run"], longest),
            method,
            f"{row['rounds']}" + ("" if row["rounds"] == row["of_rounds"] else f" of {row['of_rounds']}"),
            *(readable_score(score, row[key], 2) for key in ("final", "best", "last_10")),
            f"{row['loss']:.4f}",
            reached,
            f"{row[divergence]:.4f}" if row[divergence] is not None else "–",
        )
    console.print(table)
    for note in notes:
        console.print(note, highlight=False, style="dim")


def _print_clocks(console: "Console", comparison: "Comparison", to_target: str) -> None:
    """Print simulated times and bytes, whole and up to the target, and what the times rest on."""
    from fedgs.report.units import readable_bytes, readable_duration
    from fedgs.simulation.run_clock import elapsed, traffic

    until = f"\n{to_target}"
    table = _table(
        ["simulated\nrun", "time\na round", "\nall", until, "device–\nstation", until, "station–\ntop", until]
    )
    for row, history in zip(comparison.rows, comparison.histories.values(), strict=True):
        name, clock = tail(row["run"], console.width - CLOCK_NUMBERS), [dict(line) for line in history.clock]
        if not clock:
            table.add_row(name, *["–"] * 7)
            continue
        last = clock[-1]["round"]
        # A pre-training stands in the first line: it counts in the whole, not in a round.
        each = (row["simulated_seconds"] - clock[0]["elapsed"]) / last if last else None
        reached = elapsed(clock, row["target_round"])
        cells = [
            "–" if each is None else readable_duration(each),
            readable_duration(row["simulated_seconds"]),
            "×" if reached is None else readable_duration(reached),
        ]
        totals = [traffic(clock, last), traffic(clock, row["target_round"])]
        for link in ("device_station", "station_top"):
            cells += ["×" if sent is None else readable_bytes(sent.get(f"{link}_up", 0) + sent.get(f"{link}_down", 0))
                      for sent in totals]  # fmt: skip
        table.add_row(name, *cells)
    console.print()
    console.print(table)
    for note in _clock_notes(comparison):
        console.print(note, highlight=False, markup=False, style="dim")


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


def _table(titles: Sequence[str], words: int = 1, space: int = 1) -> "Table":
    """Return an empty table; its first columns are ``words``, the others numbers."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    table = Table(box=SIMPLE_HEAD, padding=(0, space, 0, 0), show_edge=False)
    for number, title in enumerate(titles):
        table.add_column(title, justify="left" if number < words else "right", no_wrap=title != "run", overflow="fold")
    return table


def tail(name: str, longest: int) -> str:
    """Return the end of a long name, where the names of compared runs differ."""
    longest = max(longest, SHORTEST_NAME)
    return name if len(name) <= longest else "…" + name[1 - longest :]
