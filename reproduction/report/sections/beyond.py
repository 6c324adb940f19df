"""Beyond the paper: FedGS and FedAvg tuned alike, all trials shown."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from statistics import fmean

from reproduction.experiments import beyond
from reproduction.experiments.beyond import FINALS, PREFIX, SIDES, TRIALS, Trial, Tried
from reproduction.experiments.measures import fell
from reproduction.experiments.parts import Result
from reproduction.experiments.table2 import Outcome, outcomes, row_of, runs_of
from reproduction.figures.beyond import paint_tuning
from reproduction.report.markdown import bullets, listing, number, percent, plural, points, share, table, with_range
from reproduction.report.report_inputs import Material
from reproduction.report.sections.table2 import listing_of_rounds

NOTHING_LEARNT = 0.1
"""A trial whose late tests are below this has learnt nothing."""
LOST = 0.005
"""From how much less at the end than at its best a run gets a sentence: half a point."""


def write(material: Material) -> list[str]:
    """Write the section."""
    trials = {side: beyond.tried(side, material.results) for side in SIDES}
    runs = list(material.starting_with(PREFIX).values())
    if not runs:
        return []
    chosen = {side: beyond.choose(side, material.results) for side in SIDES}
    aside = {side: beyond.set_aside(side, material.results) for side in SIDES}
    finals = beyond.finals(material.results)
    in_full, others = beyond.final_runs(material.results)
    short = min(run["settings"]["training"]["rounds"] for run in runs)
    target = runs[0]["settings"]["eval"]["target"]
    rates = " Rates are scaled up for this small size; those shown are the full size's." if material.quick else ""
    blocks = [
        "## Beyond the paper: both tuned",
        f"The paper's FedAvg runs at learning rate 0.01. Here FedGS and FedAvg try the same {len(TRIALS)} "
        "configurations: learning rate, momentum of the SGD (of stations in FedGS, of devices in FedAvg), clipped "
        f"gradients, server rule. A trial has {short} rounds and the first seed; chosen is the highest mean accuracy "
        "of the tests in its last quarter, by the same rule for both. The chosen one runs in full; if it goes astray "
        "there or loses half of what it had learnt, it is set aside for the next best trial. The choice looks at the "
        "test data, for both alike; rate schedules and other numbers of epochs or iterations were not tried for "
        f"either. Server rules keep their own defaults.{rates}",
        table(["rate", *(f"{name}: {what}" for name in SIDES.values() for what in ("late tests", "last"))],
              [_trial_line(key, trials, chosen, aside) for key in TRIALS]),
    ]  # fmt: skip
    untuned_rates = "untuned" if material.quick else "the paper's rates"
    firsts = first_runs(in_full, FINALS)
    rows = {side: [run for name, run in runs_of(material.results)[0].items() if row_of(name) == side] for side in SIDES}
    untuned = first_runs(rows, SIDES)
    if any(trials.values()):
        blocks.append(
            material.figure("beyond", "All trials of both sides, and runs in full", (10.5, 4.0),
                            lambda figure: paint_tuning(figure, trials, chosen, aside, firsts, untuned, untuned_rates))
        )  # fmt: skip
    at_papers_rates = {key: row for key, row in outcomes(material.results).items() if key in SIDES and row.ran}
    lines = [_final_line(f"{SIDES[key]}, {untuned_rates}", row) for key, row in at_papers_rates.items()]
    lines += [_final_line(FINALS[key], row) for key, row in finals.items()]
    if lines:
        heads = ["in full", "accuracy", "last ten", "best", "loss", f"rounds to {share(target)}"]
        blocks.append(table(heads, lines))
    ours = beyond.set_aside("coverage", material.results)
    remark = material.remark("beyond").strip()
    told = [
        f"Set aside: {_did_not_hold(SIDES[side], key, runs)}" for side in SIDES for key, runs in aside[side].items()
    ]
    told += [_did_not_hold(FINALS["coverage"], key, runs) for key, runs in ours.items() if key == chosen["fedgs"]]
    told += _sentences(trials, chosen, finals, at_papers_rates, material)
    told += _past_their_best(firsts)
    return [*blocks, bullets([*told, *_of_another_choice(others)]), *([remark] if remark else [])]


def first_runs(runs: Mapping[str, Sequence[Result]], keys: Iterable[str]) -> dict[str, Result]:
    """Return the run of the least seed for each key that has one whole."""
    found = {}
    for key in keys:
        whole = [run for run in runs.get(key, ()) if run.get("summary")]
        if whole:
            found[key] = min(whole, key=lambda run: int(run["settings"]["seed"]))
    return found


def _trial_line(
    key: str, trials: Mapping[str, Mapping[str, Tried]], chosen: Mapping[str, str | None],
    aside: Mapping[str, Collection[str]],
) -> list[str]:  # fmt: skip
    line = [TRIALS[key].title]
    for side, made in trials.items():
        trial = made.get(key)
        if trial is None:
            line += ["not run", ""]
        elif trial.score is None:
            line += ["astray", ""]
        else:
            score = percent(trial.score) + (", set aside" if key in aside[side] else "")
            line += [f"**{score}**" if chosen[side] == key else score, percent(trial.final)]
    return line


def _final_line(title: str, row: Outcome) -> list[str]:
    if not row.ran:
        return [title, "astray", "", "", "", ""]
    return [title, with_range(row.final), percent(fmean(row.last_ten)), percent(max(row.best)), number(row.mean_loss),
            listing_of_rounds(row)]  # fmt: skip


def _sentences(
    trials: dict[str, dict[str, Tried]], chosen: dict[str, str | None], finals: dict[str, Outcome],
    untuned: dict[str, Outcome], material: Material,
) -> list[str]:  # fmt: skip
    sentences = []
    for side, name in SIDES.items():
        missing = len(TRIALS) - len(trials[side])
        key = chosen[side]
        if missing:
            sentences.append(f"{name}: {missing} of {len(TRIALS)} trials not run yet, so nothing is chosen.")
        elif key is None:
            sentences.append(f"{name}: no trial is left that held in full.")
        else:
            sentences.append(f"{name} chose {TRIALS[key].title}.{_edge(key)}" + material.remark("beyond", side))
        sentences += _came_to_nothing(name, trials[side])
    scores = [trials[side][key].score if (key := chosen[side]) is not None else None for side in ("fedgs", "fedavg")]
    if scores[0] is not None and scores[1] is not None:
        sentences.append(
            f"By the late tests of the trials, what FedGS chose is {_beside(scores[0] - scores[1])} what FedAvg chose."
        )
    fedgs, fedavg = finals.get("fedgs"), finals.get("fedavg")
    if fedgs and fedavg and fedgs.ran and fedavg.ran:
        sentences.append(_tuned_alike(fedgs, fedavg, untuned))
    for side, row in finals.items():
        if side in untuned and row.ran:
            gained, at_best = _gap(row, untuned[side]), _gap(row, untuned[side], what="best")
            sentences.append(
                f"Tuning gives {SIDES[side]} {gained} points in the last round, {at_best} in the best test."
            )
    coverage = finals.get("coverage")
    if coverage and fedgs and coverage.ran and fedgs.ran:
        sentences.append(
            "The preset coverage's selection, calibration and averaging in the tuned FedGS: "
            f"{_gap(coverage, fedgs, 2)} points of the last round, {_gap(coverage, fedgs, 2, 'last_ten')} of the last "
            "ten tests."
        )
    waiting = [SIDES[side] for side, key in chosen.items() if key is not None and side not in finals]
    if waiting:
        sentences.append(f"Not run in full yet: what {listing(waiting)} chose.")
    return sentences


def _came_to_nothing(name: str, trials: Mapping[str, Tried]) -> list[str]:
    """Say which trials of a side went astray, and which learnt nothing."""
    astray = [TRIALS[key].title for key, trial in trials.items() if trial.score is None]
    nothing = [
        TRIALS[key].title for key, trial in trials.items() if trial.score is not None and trial.score < NOTHING_LEARNT
    ]
    told = [f"went astray at {listing(astray)}"] if astray else []
    told += [f"learnt nothing (under {share(NOTHING_LEARNT)}) at {listing(nothing)}"] if nothing else []
    return [f"{name} {' and '.join(told)}."] if told else []


def _tuned_alike(fedgs: Outcome, fedavg: Outcome, untuned: Mapping[str, Outcome]) -> str:
    ends, at_best = _difference(fedgs, fedavg), _difference(fedgs, fedavg, "best")
    if ends is None or at_best is None:
        return "FedGS tuned and FedAvg tuned have no seed in common."
    text = f"Tuned alike, FedGS ends {_beside(ends)} FedAvg ({_way(at_best)} in the best test of each)"
    before = _difference(untuned["fedgs"], untuned["fedavg"]) if set(SIDES) <= set(untuned) else None
    return f"{text}." if before is None else f"{text}; untuned it is {_way(before)}."


def _past_their_best(runs: Mapping[str, Result]) -> list[str]:
    """Say which runs in full were better before their end, while their test loss was lower; from the first seed."""
    sentences: dict[str, str] = {}
    for key, run in runs.items():
        curve = run["curve"]
        best = curve["accuracy"].index(max(curve["accuracy"]))
        highest, last = curve["accuracy"][best], curve["accuracy"][-1]
        (low, high), (before, after) = (_of_two(curve.get(of), best) for of in ("loss", "train_loss"))
        if highest - last <= LOST or low is None or high is None or high <= low:
            continue
        where = f"at its best in round {curve['round'][best]} ({percent(highest)}"
        lost = f"loses {100 * (highest - last):.1f} points"
        rises = f"its test loss rises from {number(low)} to {number(high)}"
        if key == "coverage" and "fedgs" in sentences:
            sentences[key] = f"So does {FINALS[key]}, {where}): it {lost}, {rises}."
        elif before is not None and after is not None and after < before:
            falls = f"its train loss falls from {number(before)} to {number(after)}"
            sentences[key] = (
                f"{FINALS[key]} is {where}, first seed) and {lost} until the end, while {falls} and {rises}: it learns "
                "the train images by heart."
            )
        else:
            sentences[key] = f"{FINALS[key]} is {where}, first seed) and {lost} until the end, while {rises}."
    return list(sentences.values())


def _of_two(values: Sequence[float | None] | None, place: int) -> tuple[float | None, float | None]:
    """Return what was measured at a test and at the last one; None: nothing was."""
    return (values[place], values[-1]) if values else (None, None)


def _did_not_hold(who: str, key: str, runs: Sequence[Result]) -> str:
    """Say what became of runs in full that went astray or fell."""
    told = []
    for run in runs:
        accuracy = run["curve"]["accuracy"]
        what, from_there = run.get("failed", "").partition("; ")[0], None
        if not what and (drop := fell(run)) is not None:
            from_there, low, end = percent(drop[0]), percent(drop[1]), percent(accuracy[-1])
            what = f"from {from_there} down to {low}" + ("" if end == low else f", {end} at the end")
        best = percent(max(accuracy)) if accuracy else from_there
        told.append(f"with seed {run['settings']['seed']} {what}" + ("" if best == from_there else f", at best {best}"))
    return f"{who} at {TRIALS[key].title}, which did not hold in full: {'; '.join(told)}."


def _of_another_choice(number: int) -> list[str]:
    return [f"Not shown: {plural(number, 'run')} in full of what other trials had chosen."] if number else []


def _edge(key: str) -> str:
    """Say so if no other rate of the same kind was tried, or no higher one."""
    chosen = TRIALS[key]
    rates = [trial.rate for trial in TRIALS.values() if _kind(trial) == _kind(chosen)]
    if chosen.rate < max(rates):
        return ""
    words = chosen.title.partition(", ")[2]
    kind = f" {words if words in ('', 'clipped') else f'with {words}'}".rstrip()
    if len(rates) == 1:
        return f" It is the only rate tried{kind}."
    return f" It is the highest rate tried{kind}: a higher one might be better still."


def _kind(trial: Trial) -> tuple[float, str | None, bool]:
    return trial.momentum, trial.rule, trial.clip is not None


def _beside(gap: float) -> str:
    """Write where one stands beside another: 4.2 points above, level with."""
    size = f"{abs(100 * gap):.1f}"
    return "level with" if float(size) == 0 else f"{size} points {'above' if gap > 0 else 'below'}"


def _way(gap: float) -> str:
    """Write the same where the unit is known and nobody follows: 4.2 above, level."""
    return _beside(gap).replace(" points", "").replace(" with", "")


def _gap(one: Outcome, other: Outcome, digits: int = 1, what: str = "final") -> str:
    """Write by how much one is better than another, on the seeds both have."""
    gap = _difference(one, other, what)
    return "(no seed in common)" if gap is None else points(gap, digits)


def _difference(one: Outcome, other: Outcome, what: str = "final") -> float | None:
    """Return by how much one is better than another, mean of the seeds both have; None: they have none."""
    ours, theirs = (dict(zip(row.seeds, getattr(row, what), strict=True)) for row in (one, other))
    both = [seed for seed in ours if seed in theirs]
    return fmean(ours[seed] - theirs[seed] for seed in both) if both else None
