"""The selection study: accuracy by federation and policy, the bar, the trade-off behind it, and plain conclusions."""

from collections.abc import Callable
from itertools import pairwise
from statistics import fmean

from fedgs.settings import COVERAGE_WEIGHT
from reproduction.experiments.comparable_runs import network_of
from reproduction.experiments.measures import last_quarter, late_tests, round_of
from reproduction.experiments.parts import Result
from reproduction.experiments.selection_study import DEALS, FEWEST, POLICIES, PREFIX, SELECTIONS, title_of
from reproduction.experiments.study_bar import BETTER_BY, OTHERS, OURS, WITHIN, Verdict, holds, verdicts
from reproduction.experiments.study_results import Cell, Study, read_study, read_unskewed, read_weights, with_all_seeds
from reproduction.figures.study import paint_curves, paint_differences, paint_trade_off, paint_weights, weight_facts
from reproduction.report.markdown import bullets, every, listing, number, percent, plural, points, rounds, share, table
from reproduction.report.report_inputs import Material
from reproduction.report.sections import study_strides, study_unskewed
from reproduction.report.sections.study_conclusions import conclude, conditions, gaps_between
from reproduction.report.sections.study_tables import FEWER, means_table

NOT_TESTED = "At this size, after so few rounds, nothing is concluded: what separates the policies is noise."
FIXED = (0.25, 0.5, 0.75, 1.0)
"""Shares of the rounds at which accuracies are told."""


def write(material: Material) -> list[str]:
    """Write the section."""
    study, astray = read_study(material.starting_with(PREFIX))
    if not study:
        return []
    cells = [cell for by_policy in study.values() for cell in by_policy.values()]
    first = cells[0].runs[0]
    training, network = first["settings"]["training"], network_of(first["settings"])
    long_ones = [next(iter(cells.values())).runs[0] for key, cells in study.items() if "-T" in key]
    tests = [_tests(first), *(f"{_tests(run)} where rounds are long" for run in long_ones[:1])]
    seeds = sorted({seed for cell in cells for seed in cell.seeds})
    decided = verdicts(study)
    unskewed = read_unskewed(material.starting_with(PREFIX))
    reference = study_unskewed.conclude(study, unskewed, decided)
    blocks = [
        "## Does selection earn its keep?",
        f"{len(SELECTIONS)} ways to select devices, and ours as a whole, on "
        f"{len({key.partition('-T')[0] for key in study})} federations "
        "made of the same images, from writers as they are to extreme skew; all else is equal: "
        f"{training['rounds']} rounds of {training['iterations']} iterations, learning rate "
        f"{training['learning_rate']:g}, {network} network; {'seed' if len(seeds) == 1 else 'seeds'} "
        f"{listing([str(seed) for seed in seeds])}. Long rounds (T in the name) are "
        "fewer, the iterations as many. The number that counts is the mean accuracy of the tests in the last quarter "
        f"of the rounds: of {'; of '.join(tests)}.",
        "`coverage` is ours: the selection of `queues`, and two things that are not selection: calibration (the "
        "station's class mix taken out of the loss), and a classifier that the top server averages by who saw a class. "
        "Other ways to select are given these too, to tell what is whose: `calibrated` (random by data) and "
        "`queues-calibrated` have calibration, `by-data-full` and `gbp-cs-full` both.",
        "α is Dirichlet's, for each class over devices. *Factories alike*: devices are dealt to factories at random; "
        "*differ*: classes are dealt to factories first, by Dirichlet's law with α = 1." + _fewer_devices(study),
        "### Conclusions",
        material.remark("study", "short").strip(),
        bullets(
            [NOT_TESTED]
            if material.quick
            else [
                *conclude(study, decided),
                *([f"**Without skew.** {' '.join(reference)}"] if reference else []),
                *study_strides.conclude(material),
            ]
        ),
        *_missing(study, seeds, astray, material.quick),
        "### Accuracy",
        *_accuracy(study),
        *study_unskewed.write(study, unskewed),
        *(_pictures(material, study)),
        "### The bar",
        *([NOT_TESTED] if material.quick else _bar(study, decided, material)),
        "### What is behind it",
        *_facts(study),
        *_weights(material),
        *study_strides.write(material, study),
        "### On the way there",
        *_on_the_way(study),
    ]  # fmt: skip
    remark = material.remark("study").strip()
    return [*blocks, *([remark] if remark else [])]


def _tests(run: Result) -> str:
    """Say how many tests of a run count."""
    return f"{late_tests(run)} tests, one {every(run['settings']['eval']['every'])}"


def _fewer_devices(study: Study) -> str:
    """Say where devices were left out, for the first seed."""
    first = {key: next(iter(cells.values())).runs[0] for key, cells in study.items() if "-T" not in key}
    devices = {key: run.get("devices") for key, run in first.items()}
    most = max((number for number in devices.values() if number), default=0)
    fewer = [f"{number} ({title_of(key)})" for key, number in devices.items() if number and number < most]
    return (
        f" Devices with fewer than {FEWEST} samples are left out: of {most} remain {listing(fewer)}, first seed."
        if fewer
        else ""
    )


def _missing(study: Study, seeds: list[int], astray: list[str], quick: bool) -> list[str]:
    nowhere = [policy for policy in POLICIES if not any(policy in cells for cells in study.values())]
    gone = [f"{policy} (on any federation)" for policy in nowhere]
    for key, cells in study.items():
        lacking = [policy for policy in POLICIES if policy not in cells and policy not in nowhere]
        gone += [f"{title_of(key)} ({listing(lacking)})"] if lacking else []
    present = {key.partition("-T")[0] for key in study}
    gone += [
        f"{deal.title} ({'needs FEMNIST' if deal.attribute and quick else 'all'})"
        for key, deal in DEALS.items()
        if key not in present
    ]
    fewer = [f"{title_of(key)}: {cell.policy}" for key, cells in study.items() for cell in cells.values()
             if len(cell.seeds) < len(seeds)]  # fmt: skip
    lines = []
    if gone:
        lines.append(f"Not run yet: {listing(gone)}.")
    if fewer:
        shown = listing(fewer) if len(fewer) <= 6 else f"{len(fewer)} of {sum(map(len, study.values()))} cells"
        lines.append(f"With fewer seeds than the others: {shown}.")
    lines += [f"Went astray: {text}." for text in astray]
    return [" ".join(lines)] if lines else []


def _accuracy(study: Study) -> list[str]:
    judged, added = (*OTHERS, OURS), tuple(policy for policy in POLICIES if policy not in OTHERS)
    several = any(len(cell.seeds) > 1 for cells in study.values() for cell in cells.values())
    ranges = [[title_of(key), *(_range(cells.get(policy)) for policy in judged)] for key, cells in study.items()]
    fewer = any(policy not in with_all_seeds(cells) for cells in study.values() for policy in cells)
    return [
        "In per cent, mean over seeds; the best of a line in bold."
        + (f" {FEWER}: fewer seeds than the others, not to be set beside them." if fewer else ""),
        means_table(study, judged),
        *(["The least and the most of the seeds:", table(["federation", *judged], ranges)] if several else []),
        "What ours is made of, and what the same additions make of other ways to select:",
        means_table(study, ("random-by-data", *added)),
    ]


def _range(cell: Cell | None) -> str:
    if cell is None:
        return "–"
    if len(cell.late) == 1:
        return "one seed"
    return f"{100 * min(cell.late):.1f}–{100 * max(cell.late):.1f}"


def _pictures(material: Material, study: Study) -> list[str]:
    lines = -(-len(study) // 4)
    comparable = [cells for cells in study.values() if OURS in cells and len(cells) > 1]
    shown = []
    if comparable:
        shown.append(
            material.figure("study-differences", "Ways to select against coverage, federation by federation",
                            (7.6, 0.6 * len(comparable) + 1.3), lambda figure: paint_differences(figure, study))
        )  # fmt: skip
    return [
        *shown,
        material.figure("study-trade-off",
                        "Divergence, evenness of use and accuracy: a point a federation and policy. On the left "
                        "coverage lies on queues, by-data-full on random-by-data: they select alike",
                        (10.5, 3.9), lambda figure: paint_trade_off(figure, study)),
        material.figure("study-curves", "Accuracy over rounds, a panel a federation, mean over seeds",
                        (2.7 * min(len(study), 4) + 0.3, 2.45 * lines + 0.6),
                        lambda figure: paint_curves(figure, study)),
    ]  # fmt: skip


def _bar(study: Study, decided: dict[str, Verdict], material: Material) -> list[str]:
    by_last = verdicts(study, final=True)
    lines = []
    for key, verdict in decided.items():
        last = by_last[key]
        beats = verdict.beats_published
        lines.append([
            title_of(key), verdict.best, points(verdict.to_best, 2), _word(verdict.near_the_best),
            points(verdict.to_published, 2), "not asked" if beats is None else _word(beats),
            points(last.to_best, 3), points(last.to_published, 2),
            f"{sum(gap > 0 for gap in verdict.by_seed)} of {len(verdict.seeds)}",
        ])  # fmt: skip
    asked = (
        f"Asked of `coverage`: within {100 * WITHIN:g} points of the best of "
        f"{listing([f'`{name}`' for name in OTHERS])} on every federation, and at least "
        f"{100 * BETTER_BY:g} points over `gbp-cs` as published where α ≤ 0.1. Differences are in points, on the "
        "seeds both have."
    )
    if not lines:
        return [asked, "Nothing to judge yet: `coverage` and another policy must have run on the same federation."]
    heads = ["federation", "best other", "to it", "within", "over gbp-cs", "enough", "last test: to best",
             "over gbp-cs", "seeds ahead of best"]  # fmt: skip
    near, over = holds(list(decided.values()))
    failing = [title_of(v.key) for v in decided.values() if not v.near_the_best]
    short = [title_of(v.key) for v in decided.values() if v.beats_published is False]
    open_ones = sum(bool({*OTHERS, OURS} - set(cells)) for cells in study.values())
    lacking = f"{plural(open_ones, 'setting')} still without one of these policies or more: this can change."
    return [
        asked,
        table(heads, lines, left=2),
        bullets([
            _condition("first", near, failing), _condition("second", over, short),
            f"By the last test alone, which is noisier, {conditions(by_last)}.",
            *_queues_alone(study),
            *_same_additions(study),
            *[lacking] * bool(open_ones),
        ]),
        *[f"{title_of(key)}:{text}" for key in decided if (text := material.remark("study", key))],
    ]  # fmt: skip


def _queues_alone(study: Study) -> list[str]:
    """Say what the bar comes to for the queues alone."""
    found = verdicts(study, ours="queues")
    if not found:
        return []
    seeds = sorted({seed for verdict in found.values() for seed in verdict.seeds})
    return [f"For the queues alone (`queues`, {plural(len(seeds), 'seed')}) {conditions(found)}."]


def _same_additions(study: Study) -> list[str]:
    """Say where the first condition would fail if the others were given what ours adds to selecting."""
    gaps = {policy: gaps_between(study, OURS, policy) for policy in ("by-data-full", "gbp-cs-full")}
    far = [
        f"`{policy}` ({title_of(key)}, {points(gap, 2)})"
        for policy, found in gaps.items()
        for key, gap in found.items()
        if gap < -WITHIN
    ]
    if not any(gaps.values()):
        return []
    return [
        "Others that are given the same additions are not among those; if they were, the first condition would "
        + (f"not hold: {listing(far)}." if far else "hold all the same.")
    ]


def _condition(which: str, held: bool, failing: list[str]) -> str:
    return (
        f"**The {which} condition holds.**"
        if held
        else f"**The {which} condition does not hold:** not on {listing(failing)}."
    )


def _word(held: bool) -> str:
    return "yes" if held else "**no**"


def _facts(study: Study) -> list[str]:
    kinds: list[tuple[str, Callable[[Cell], str]]] = [
        ("Divergence of an iteration", lambda cell: number(cell.fact("divergence"), 4)),
        ("Divergence of a round, all its samples pooled", lambda cell: number(cell.fact("divergence_of_round"), 4)),
        ("Jain's index of epochs (1: all data used alike)", lambda cell: number(cell.fact("jain_of_epochs"), 3)),
        ("Longest wait for a turn with any seed, iterations", lambda cell: number(_most(cell, "longest_wait"), 0)),
        ("Classes missing in a super node, mean of an iteration", lambda cell: number(cell.fact("missing_classes"), 1)),
    ]
    blocks = []
    for title, show in kinds:
        lines = [
            [title_of(key), *(_shown(show, cells, policy) for policy in SELECTIONS)] for key, cells in study.items()
        ]
        blocks += [f"{title}:", table(["federation", *SELECTIONS], lines)]
    alike = (
        "`coverage` and `queues-calibrated` select as `queues` does, `calibrated` and `by-data-full` as "
        "`random-by-data`, `gbp-cs-full` as `gbp-cs`."
    )
    return [alike, *blocks]


def _shown(show: Callable[[Cell], str], cells: dict[str, Cell], policy: str) -> str:
    if policy not in cells:
        return "–"
    return show(cells[policy]) + ("" if policy in with_all_seeds(cells) else FEWER)


def _most(cell: Cell, key: str) -> float | None:
    known = [value for value in cell.facts(key) if value is not None]
    return max(known) if known else None


def _weights(material: Material) -> list[str]:
    weighed = read_weights(material.starting_with(PREFIX))
    if not weighed:
        return []
    lines = [
        [title_of(key), f"{weight:g}", number(jain, 3), number(divergence, 4), percent(accuracy, 2),
         number(result["summary"]["selection"]["longest_wait"], 0)]
        for key, by_weight in weighed.items()
        for weight, result in by_weight.items()
        for jain, divergence, accuracy in [weight_facts(result)]
    ]  # fmt: skip
    return [
        "### The weight of the queues",
        "What the weight V, which has no unit, trades; one seed, without calibration: 0 is `exact`, "
        f"{COVERAGE_WEIGHT:g} the default.",
        table(["federation", "V", "Jain's index of epochs", "divergence", "accuracy", "longest wait"], lines),
        *_step_by_step(weighed),
        material.figure("study-weights", "Evenness of use, divergence and accuracy as the weight V of the queues grows",
                        (10.5, 3.7), lambda figure: paint_weights(figure, weighed)),
    ]  # fmt: skip


def _step_by_step(weighed: dict[str, dict[float, Result]]) -> list[str]:
    """Say what each larger weight changes in accuracy."""
    told = []
    for key, by_weight in weighed.items():
        steps = [
            f"{points(last_quarter(by_weight[high]) - last_quarter(by_weight[low]), 2)} from {low:g} to {high:g}"
            for low, high in pairwise(by_weight)
        ]
        told.append(f"{title_of(key)}: {', '.join(steps)}")
    return [f"Accuracy as V grows, in points: {'; '.join(told)}."]


def _on_the_way(study: Study) -> list[str]:
    lines = []
    shown = (*SELECTIONS, OURS)
    for key, cells in study.items():
        length = next(iter(cells.values())).runs[0]["settings"]["training"]["rounds"]
        for at in _tested(cells, length):
            found = {policy: cell.at(at) for policy, cell in cells.items()}
            if any(value is not None for value in found.values()):
                lines.append([title_of(key), str(at), *(percent(found.get(policy), 2) for policy in shown)])
    target = next(iter(next(iter(study.values())).values())).runs[0]["settings"]["eval"]["target"]
    reached = [
        [title_of(key), *(_reached(cells[policy], target) if policy in cells else "–" for policy in shown)]
        for key, cells in study.items()
    ]
    return [
        "Accuracy after so many rounds, mean over seeds:",
        table(["federation", "round", *shown], lines),
        f"First tested round at {share(target)}, mean over seeds (×: not with every seed):",
        table(["federation", *shown], reached),
    ]


def _tested(cells: dict[str, Cell], length: int) -> list[int]:
    """Return the rounds with a test at these shares of all, or the last ones before them."""
    tests = next(iter(cells.values())).runs[0]["curve"]["round"]
    found = [max((test for test in tests if test <= round(length * part)), default=length) for part in FIXED]
    return list(dict.fromkeys(found))  # a short run has fewer


def _reached(cell: Cell, target: float) -> str:
    found = [round_of(run, target) for run in cell.runs]
    whole = [number for number in found if number is not None]
    return rounds(round(fmean(whole), 1)) if len(whole) == len(found) else "×"
