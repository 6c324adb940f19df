"""What could explain the gaps of Table II: every change, and what it gains over the row it changes."""

from typing import Any

from reproduction.experiments.gaps import CHANGES, PREFIX, usual_score
from reproduction.experiments.runs import last_quarter
from reproduction.experiments.table2 import ROWS
from reproduction.report.markdown import DIVERGED, NOT_RUN, percent, points, table
from reproduction.report.report_inputs import ReportInputs


def section(inputs: ReportInputs) -> dict[str, Any]:
    """Return a line for every change, after one for the row of Table II in the same rounds."""
    runs = list(inputs.starting_with(PREFIX).values())
    if not runs:
        return {}
    lines = []
    for row, changes in CHANGES.items():
        made = {name: run for name in changes for run in runs if run["part"].startswith(f"{PREFIX}{row}-{name}-seed-")}
        if not made:
            continue
        usual = usual_score(next(iter(made.values())), inputs.results)
        lines.append([f"{ROWS[row].title} as in Table II", NOT_RUN if usual is None else percent(usual), ""])
        for name, change in changes.items():
            run = made.get(name)
            score = None if run is None or run.get("failed") else last_quarter(run)
            shown = percent(score) if score is not None else NOT_RUN if run is None else DIVERGED
            gain = "" if score is None or usual is None else points(score - usual)
            lines.append([f"{ROWS[row].title}: {change.title}", shown, gain])
    return {
        "rounds": runs[0]["settings"]["training"]["rounds"],
        "seed": runs[0]["settings"]["seed"],
        "table": table(["", "late tests", "Δ"], lines),
        "titles": {"section": ""} | {row: ROWS[row].title for row in CHANGES},
    }
