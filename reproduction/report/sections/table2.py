"""Table II and its curves, row by row beside the paper's."""

from typing import Any

from reproduction.experiments.jobs import Results
from reproduction.experiments.resolved import resolved_of
from reproduction.experiments.runs import RunGroup
from reproduction.experiments.table2 import PREFIX, ROWS, outcomes, papers_row, row_of, runs_of
from reproduction.figures.table2 import FAMILIES, far_down, paint_curves, paint_rows
from reproduction.report.markdown import DIVERGED, NOT_RUN, number, percent, points, rounds, share, table, with_range
from reproduction.report.report_inputs import ReportInputs


def table_section(inputs: ReportInputs) -> dict[str, Any]:
    """Return the table, its figure, and what was chosen where the paper is silent."""
    found = outcomes(inputs.results)
    if not found:
        return {}
    known, left_out = runs_of(inputs.results)
    first = next(iter(known.values()))
    target = share(first["settings"]["eval"]["target"])
    compare = inputs.papers_size
    theirs = ["paper"] if compare else []
    heads = ["", "accuracy", *theirs, *(["Δ"] if compare else []), "last ten", "best", "loss", *theirs,
             f"rounds to {target}", *theirs]  # fmt: skip
    tests, accuracy = first.get("test_samples"), first["curve"]["accuracy"][-1]
    return {
        "rounds": first["settings"]["training"]["rounds"],
        "every": first["settings"]["eval"]["every"],
        "target": target,
        "tests": tests,
        "standard_error": points((accuracy * (1 - accuracy) / tests) ** 0.5).lstrip("+") if tests else "",
        "table": table(
            heads, [_line(key, found.get(key), compare) for key in ROWS if ROWS[key].paper or key in found]
        ),
        "figure": inputs.figure(
            "table2", "Accuracy of every row that was run" + (", the paper's beside it" if compare else ""),
            (7.6, 0.3 * len(found) + 1.5), lambda figure: paint_rows(figure, found, compare)),
        "choices": table(["row", "choice", "client learning rate", "server learning rate"], _choices(inputs), left=2),
        "left_out": left_out,
        "titles": {"section": ""} | {key: ROWS[key].title for key in found},
    }  # fmt: skip


def _line(key: str, row: RunGroup | None, compare: bool) -> list[str]:
    theirs = papers_row(key)
    title = ROWS[key].title if ROWS[key].paper else f"*{ROWS[key].title}*"
    shown = ["", "", ""] if theirs is None else [percent(theirs[0]), number(theirs[1]), rounds([theirs[2]])]
    accuracy, loss, to_target = ([text] if compare else [] for text in shown)
    if row is None or not row.ran:
        gone = NOT_RUN if row is None else DIVERGED
        return [title, gone, *accuracy, *([""] if compare else []), "", "", "", *loss, "", *to_target]
    gap = [points(row.mean - theirs[0]) if theirs else ""] if compare else []
    return [
        title, with_range(row.final), *accuracy, *gap, percent(sum(row.last_ten) / len(row.last_ten)),
        percent(max(row.best)), number(row.mean_loss), *loss, rounds(row.rounds), *to_target,
    ]  # fmt: skip


def _choices(inputs: ReportInputs) -> list[list[str]]:
    """Return what was chosen where the paper is silent, what the added rows are, and the rates of FedOpt's rows."""
    lines = []
    for key, row in ROWS.items():
        run = inputs.first(f"{PREFIX}{key}-seed-")
        if run is None or not row.note:
            continue
        used = run.get("resolved") or resolved_of(run["settings"])
        server = used["options"].get("server_lr") if row.family == "FedOpt" else None
        rates = ["", ""] if server is None else [f"{used['learning_rate']:.3g}", f"{server:.3g}"]
        lines.append([row.title, row.note, *rates])
    return lines


def curves_section(inputs: ReportInputs) -> dict[str, Any]:
    """Return the curves of the table's runs, first seed."""
    runs: Results = {}
    known, _ = runs_of(inputs.results)
    for name, result in sorted(known.items(), key=lambda item: item[1]["settings"]["seed"]):
        if len(result["curve"]["round"]) > 1:
            runs.setdefault(row_of(name), result)
    if not runs:
        return {}
    panels = len({ROWS[key].family for key in runs} & set(FAMILIES)) or 1
    size = (2.9 * min(panels, 4) + 0.4, 2.6 * -(-panels // 4) + 0.3)
    compare = inputs.papers_size
    out = far_down({key: run["curve"]["accuracy"][-1] for key, run in runs.items()})
    return {
        "compare": compare,
        "out": ", ".join(ROWS[key].title for key in out),
        "accuracy": inputs.figure("curves-accuracy", "Test accuracy over rounds, one panel per family", size,
                                  lambda figure: paint_curves(figure, runs, "accuracy", compare)),
        "loss": inputs.figure("curves-loss", "Test loss over rounds, one panel per family", size,
                              lambda figure: paint_curves(figure, runs, "loss", compare)),
    }  # fmt: skip
