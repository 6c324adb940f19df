"""Beyond the paper: FedGS and FedAvg tuned with the same trials, all of them shown."""

from collections.abc import Collection, Mapping
from statistics import fmean
from typing import Any

from reproduction.experiments import beyond
from reproduction.experiments.beyond import FINALS, PREFIX, SIDES, TRIALS, Tried
from reproduction.experiments.jobs import Result
from reproduction.experiments.runs import RunGroup, by_seed
from reproduction.experiments.table2 import outcomes
from reproduction.figures.beyond import paint_tuning
from reproduction.report.markdown import (
    DIVERGED,
    NOT_RUN,
    number,
    percent,
    points,
    rounds,
    share,
    table,
    with_range,
)
from reproduction.report.report_inputs import ReportInputs


def section(inputs: ReportInputs) -> dict[str, Any]:
    """Return the trials of both sides, the full runs of what they chose, and the differences between these."""
    runs = list(inputs.starting_with(PREFIX).values())
    if not runs:
        return {}
    trials = {side: beyond.tried(side, inputs.results) for side in SIDES}
    chosen = {side: beyond.choose(side, inputs.results) for side in SIDES}
    rejected = {side: beyond.rejected(side, inputs.results) for side in SIDES}
    _, others = beyond.final_runs(inputs.results)
    untuned_rates = "untuned" if inputs.quick else "the paper's rates"
    untuned = {key: row for key, row in outcomes(inputs.results).items() if key in SIDES and row.ran}
    finals = beyond.finals(inputs.results)
    lines = [_final_line(f"{SIDES[key]}, {untuned_rates}", row) for key, row in untuned.items()]
    lines += [_final_line(FINALS[key], row) for key, row in finals.items()]
    target = share(runs[0]["settings"]["eval"]["target"])
    heads = ["in full", "accuracy", "last ten", "best", "in round", "loss", "loss in that round", f"rounds to {target}"]
    return {
        "trials": len(TRIALS),
        "rounds": min(run["settings"]["training"]["rounds"] for run in runs),
        "quick": inputs.quick,
        "table": table(["learning rate", *(f"{name}: {what}" for name in SIDES.values() for what in
                                           ("late tests", "last test"))],
                       [_trial_line(key, trials, chosen, rejected) for key in TRIALS]),
        "figure": inputs.figure(
            "beyond", "All trials of both sides, and the full runs of the first seed", (10.5, 4.0),
            lambda figure: paint_tuning(figure, trials, chosen, rejected, _first(finals), _first(untuned),
                                        untuned_rates)) if any(trials.values()) else "",
        "finals": table(heads, lines) if lines else "",
        "differences": _differences(untuned, finals),
        "others": others,
        "titles": {"section": "", **SIDES, "coverage": FINALS["coverage"]},
    }  # fmt: skip


def _first(groups: Mapping[str, RunGroup]) -> dict[str, Result]:
    """Return the run of the smallest seed of each group."""
    return {key: group.runs[0] for key, group in groups.items() if group.ran}


def _trial_line(
    key: str, trials: Mapping[str, Mapping[str, Tried]], chosen: Mapping[str, str | None],
    rejected: Mapping[str, Collection[str]],
) -> list[str]:  # fmt: skip
    line = [TRIALS[key].title]
    for side, made in trials.items():
        trial = made.get(key)
        if trial is None or trial.score is None:
            line += [NOT_RUN if trial is None else DIVERGED, ""]
        else:
            score = percent(trial.score) + (", rejected" if key in rejected[side] else "")
            line += [f"**{score}**" if chosen[side] == key else score, percent(trial.final)]
    return line


def _final_line(title: str, row: RunGroup) -> list[str]:
    if not row.ran:
        return [title, DIVERGED, "", "", "", "", "", ""]
    curves = [run["curve"] for run in row.runs]
    best = [curve["accuracy"].index(max(curve["accuracy"])) for curve in curves]
    return [
        title, with_range(row.final), percent(fmean(row.last_ten)), percent(max(row.best)),
        rounds([curve["round"][at] for curve, at in zip(curves, best, strict=True)]), number(row.mean_loss),
        number(fmean(curve["loss"][at] for curve, at in zip(curves, best, strict=True))), rounds(row.rounds),
    ]  # fmt: skip


def _differences(untuned: Mapping[str, RunGroup], finals: Mapping[str, RunGroup]) -> str:
    """Compare tuned and untuned runs with each other, on the seeds both have."""
    tuned = {key: row for key, row in finals.items() if row.ran}
    pairs = [
        ("FedGS over FedAvg, untuned", untuned.get("fedgs"), untuned.get("fedavg")),
        ("FedGS over FedAvg, both tuned", tuned.get("fedgs"), tuned.get("fedavg")),
        *((f"{name}: tuned over untuned", tuned.get(side), untuned.get(side)) for side, name in SIDES.items()),
        (f"{FINALS['coverage']}, over FedGS tuned", tuned.get("coverage"), tuned.get("fedgs")),
    ]
    lines = []
    for title, one, other in pairs:
        if one is not None and other is not None and (gaps := by_seed(one, other, "final")):
            means = [fmean(by_seed(one, other, what).values()) for what in ("final", "last_ten", "best")]
            lines.append([title, *(points(mean, 2) for mean in means), ", ".join(map(str, gaps))])
    return table(["points", "last round", "last ten", "best test", "seeds"], lines) if lines else ""
