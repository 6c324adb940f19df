"""Rows that are tuned alike, in full and with the trials behind each choice: bearings, and our best recipe."""

from statistics import fmean
from typing import Any

from reproduction.experiments import bearings, best
from reproduction.experiments.jobs import Result, Results
from reproduction.experiments.runs import RunGroup, by_seed, last_quarter
from reproduction.experiments.tuned import Tuning
from reproduction.figures.tuned import paint_curves, paint_rows
from reproduction.report.markdown import DIVERGED, NOT_RUN, percent, plural, points, rounds, share, table, with_range
from reproduction.report.report_inputs import ReportInputs


def bearings_section(inputs: ReportInputs) -> dict[str, Any]:
    """Return the rows on bearings, and what each has over random selection with the same network."""
    found = _section(inputs, bearings.TUNING)
    if not found:
        return {}
    gains = []
    for condition in ("", *bearings.CONDITIONS):
        groups = bearings.TUNING.outcomes(inputs.results, condition)
        for key, row in groups.items():
            base = groups.get(f"random-{key.rpartition('-')[2]}")
            if base is None or base is row or not (gaps := by_seed(row, base, "late")):
                continue
            each = ", ".join(points(gap) for gap in gaps.values())
            title = bearings.TUNING.rows[key].title + (condition and f", {condition}")
            gains.append([title, with_range(row.late), points(fmean(gaps.values()), 2), each])
    heads = ["", "late tests", "over random selection", "by seed"]
    return found | {"gains": table(heads, gains) if gains else "", "same_rates": _same_rates(inputs.results),
                    "lengths": _lengths(inputs.results), "rate_of_lengths": bearings.RATE_OF_LENGTHS}  # fmt: skip


def _same_rates(results: Results) -> str:
    """Return a line for each selection, the networks and learning rates as columns."""
    found = bearings.at_same_rates(results)
    lines = [
        [title.removeprefix("FedGS, "), *(_with_collapses(groups.get(name)) for groups in found.values())]
        for name, (title, _) in {**bearings.SELECTIONS, **bearings.RIVALS}.items()
        if any(name in groups for groups in found.values())
    ]
    return table(["", *(f"{bearings.NETWORKS[network]}, {rate}" for network, rate in found)], lines) if lines else ""


def _lengths(results: Results) -> str:
    """Return the selections as columns, a line for each T."""
    keys = {key: bearings.SELECTIONS[key.removesuffix("-group")][0] for key in bearings.OF_LENGTHS}
    lines = [
        [str(length), *(_with_collapses(rows.get(key)) for key in keys)]
        for length, rows in bearings.at_lengths(results).items()
    ]
    return table(["T", *(title.removeprefix("FedGS, ") for title in keys.values())], lines) if lines else ""


def _with_collapses(row: RunGroup | None) -> str:
    if row is None or not row.ran:
        return NOT_RUN if row is None else DIVERGED
    return with_range(row.late) + (f", {len(row.failed)} {DIVERGED}" if row.failed else "")


def best_section(inputs: ReportInputs) -> dict[str, Any]:
    """Return the rows of the best recipe."""
    return _section(inputs, best.TUNING)


def _section(inputs: ReportInputs, tuning: Tuning) -> dict[str, Any]:
    runs = inputs.starting_with(tuning.prefix)
    if not runs:
        return {}
    first, groups = next(iter(runs.values())), tuning.outcomes(runs)
    full = [run for row in groups.values() for run in row.runs]
    tried = [run for key in tuning.rows for run in tuning.trials(key, runs).values()]
    name = tuning.prefix.rstrip("-")
    drawn = {key: row for key, row in groups.items() if row.ran}
    heads = ["", "chosen", "accuracy", "late tests", "best", f"rounds to {share(first['settings']['eval']['target'])}"]
    return {
        "size": f"{first['devices']} devices in {plural(first['factories'], 'factory', 'factories')}",
        "rounds": _rounds(full),
        "trial_rounds": _rounds(tried),
        "rows": table(heads, [_line(key, row, tuning, runs) for key, row in groups.items()], left=2) if groups else "",
        "trials": table(["", "late tests of every trial"], _trials(tuning, runs), left=2),
        "figure": inputs.figure(
            name, "Accuracy of every row, minimum to maximum over seeds", (8.0, 1.2 + 0.34 * len(drawn)),
            lambda figure: paint_rows(figure, drawn, tuning)) if len(drawn) > 1 else "",
        "curves": inputs.figure(
            f"{name}-curves", "Accuracy over rounds, first seed", (8.0, 4.0),
            lambda figure: paint_curves(figure, drawn, tuning)) if drawn else "",
        "gains": "",
        "titles": {"section": "", **{key: row.title for key, row in tuning.rows.items()}},
    }  # fmt: skip


def _rounds(runs: list[Result]) -> str:
    """Return how many rounds runs of the same kind have."""
    return plural(runs[0]["settings"]["training"]["rounds"], "round") if runs else ""


def _line(key: str, row: RunGroup, tuning: Tuning, runs: Results) -> list[str]:
    start = [tuning.rows[key].title, _configuration(key, row, tuning, runs)]
    if not row.ran:
        return [*start, DIVERGED, "", "", ""]
    return [*start, with_range(row.final), percent(fmean(row.late)), percent(max(row.best)), rounds(row.rounds)]


def _configuration(key: str, row: RunGroup, tuning: Tuning, runs: Results) -> str:
    """Return what the runs in full were made with; they can be there before all trials are."""
    tried, all_trials = len(tuning.trials(key, runs)), len(tuning.rows[key].trials)
    if tried == all_trials and (chosen := tuning.chosen(key, runs)):
        return chosen
    start = f"{tuning.prefix.rstrip('-')}: {tuning.rows[key].title}, "
    found = row.runs[0]["title"].removeprefix(start).rpartition(", seed ")[0]
    return f"{found} ({tried} of {all_trials} trials)"


def _trials(tuning: Tuning, runs: Results) -> list[list[str]]:
    lines = []
    for key, row in tuning.rows.items():
        chosen, shown = tuning.chosen(key, runs), []
        for name, run in tuning.trials(key, runs).items():
            text = f"{name}: {DIVERGED if run.get('failed') else percent(last_quarter(run))}"
            shown.append(f"**{text}**" if name == chosen else text)
        lines.append([row.title, ", ".join(shown) or NOT_RUN])
    return lines
