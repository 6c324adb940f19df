"""The selection study: accuracy by federation and policy, policies against each other, the targets, and what lies
behind it. The same tables follow for the 4× learning rate."""

from collections.abc import Callable, Collection, Mapping, Sequence
from statistics import fmean
from typing import Any

import numpy as np

from fedgs.selection.solve import RIVALS
from fedgs.settings import COVERAGE_WEIGHT
from reproduction.experiments.jobs import Results
from reproduction.experiments.runs import RunGroup, by_seed, late_tests, network_of, round_of
from reproduction.experiments.selection_study import (
    DEALS,
    FEWEST,
    MILD_TO_SKEWED,
    POLICIES,
    PREFIX,
    SELECTIONS,
    VARIANTS,
    title_of,
)
from reproduction.experiments.study_results import (
    BETTER_BY,
    OTHERS,
    OURS,
    PUBLISHED,
    WITHIN,
    Study,
    Verdict,
    in_variant,
    met,
    read_study,
    read_unskewed,
    read_weights,
    verdicts,
    with_all_seeds,
)
from reproduction.figures.study import (
    paint_curves,
    paint_differences,
    paint_pays,
    paint_trade_off,
    paint_weights,
    weight_facts,
)
from reproduction.report.markdown import NOT_RUN, number, percent, points, rounds, share, signed, table
from reproduction.report.report_inputs import ReportInputs

FEWER = "†"
"""Marks a mean of fewer seeds than others of its line have."""
PAIRS = (
    (PUBLISHED, "random"), ("exact", PUBLISHED), ("queues", "random-by-data"), ("queues-calibrated", "calibrated"),
    (OURS, "by-data-full"), (OURS, "gbp-cs-full"), (OURS, PUBLISHED), (OURS, "random-by-data"),
    ("calibrated", "random-by-data"), ("queues-calibrated", "queues"), ("by-data-full", "calibrated"),
    (OURS, "queues-calibrated"), *((name, "random-by-data") for name in RIVALS),
)  # fmt: skip
"""The policies that are compared: selections, then ours, then what each addition is worth, then other papers'."""
ADDED = tuple(name for name in POLICIES if name not in (*OTHERS, *RIVALS))
"""Ours, and what measures it piece by piece."""
GAINS = {f"{PUBLISHED} over random": (PUBLISHED, "random"), f"{OURS} over random-by-data": (OURS, "random-by-data")}
"""Pairs that tell whether selection pays: the paper's alone, and our preset as a whole."""
Gains = Mapping[str, Mapping[str, Mapping[str, float]]]
"""By learning rate, pair and federation."""
FRACTIONS = (0.25, 0.5, 0.75, 1.0)
"""Of the rounds, at which accuracies are shown."""
FACTS: dict[str, Callable[[RunGroup], str]] = {
    "Divergence of an iteration": lambda cell: number(cell.fact("divergence"), 4),
    "Divergence of a round, all its samples pooled": lambda cell: number(cell.fact("divergence_of_round"), 4),
    "Jain's index of epochs (1: all data used equally often)": lambda cell: number(cell.fact("jain_of_epochs"), 3),
    "Longest wait of a device for its next selection with any seed, iterations": lambda cell: number(
        max((value for value in cell.facts("longest_wait") if value is not None), default=None), 0
    ),
    "Classes missing in a super node, mean of an iteration": lambda cell: number(cell.fact("missing_classes"), 1),
}


def section(inputs: ReportInputs) -> dict[str, Any]:
    """Return the tables and figures of the study and of its variants."""
    results = inputs.starting_with(PREFIX)
    study, left_out = read_study(results)
    if not study:
        return {}
    cells = [cell for by_policy in study.values() for cell in by_policy.values()]
    first = cells[0].runs[0]
    long_run = next((next(iter(own.values())).runs[0] for key, own in study.items() if "-T" in key), None)
    shown = (*OTHERS, OURS)
    return {
        "quick": inputs.quick,
        "selections": len(SELECTIONS),
        "federations": len({key.partition("-T")[0] for key in study}),
        "training": first["settings"]["training"],
        "network": network_of(first["settings"]),
        "seeds": ", ".join(map(str, sorted({seed for cell in cells for seed in cell.seeds}))),
        "tests": late_tests(first),
        "long_tests": late_tests(long_run) if long_run else 0,
        "fewest": FEWEST,
        "devices": _devices(study),
        "fewer_mark": FEWER,
        "accuracy": means_table(study, shown),
        "ranges": _by_policy(study, shown, _range),
        "additions": means_table(study, ("random-by-data", *ADDED)),
        "rivals": _rivals(study),
        "skew": skew_table(study, read_unskewed(results)),
        "pays": _pays(inputs, study, results),
        "figures": _figures(inputs, study),
        "pairs": pairs_table(study),
        "measures": _measures(study),
        "within": f"{100 * WITHIN:g}",
        "better_by": f"{100 * BETTER_BY:g}",
        "others": ", ".join(f"`{name}`" for name in OTHERS),
        "targets": _targets(study),
        "met": met_table({
            "mean of the late tests": verdicts(study),
            "last test alone": verdicts(study, final=True),
            "`queues` in the place of `coverage`": verdicts(study, ours="queues"),
        }),
        "facts": {title: _by_policy(study, SELECTIONS, show) for title, show in FACTS.items()},
        "weights": _weights(inputs),
        "default_weight": f"{COVERAGE_WEIGHT:g}",
        "variants": [found for name in VARIANTS if (found := _variant(inputs, study, name))],
        "curve": _curve_table(study, (*SELECTIONS, OURS)),
        "target": share(first["settings"]["eval"]["target"]),
        "reached": _by_policy(study, (*SELECTIONS, OURS), _reached),
        "left_out": left_out,
        "titles": {key: title_of(key) for key in study},
    }  # fmt: skip


def _rivals(study: Study) -> dict[str, str]:
    """Return accuracy, evenness and divergence of the policies of other papers; nothing where none has run."""
    ran = [name for name in RIVALS if any(name in cells for cells in study.values())]
    if not ran:
        return {}
    there = {key: cells for key, cells in study.items() if any(name in cells for name in ran)}
    titles = ("Divergence of an iteration", "Jain's index of epochs (1: all data used equally often)")
    return {
        "Accuracy in per cent": means_table(study, ("random-by-data", PUBLISHED, *ran, OURS)),
        **{title: _by_policy(there, ("random-by-data", *ran), FACTS[title]) for title in titles},
    }


def _devices(study: Study) -> str:
    """Return how many devices remain where some have too few samples, of the first seed."""
    first = {key: next(iter(cells.values())).runs[0] for key, cells in study.items() if "-T" not in key}
    devices = {key: run["devices"] for key, run in first.items() if run.get("devices")}
    most = max(devices.values(), default=0)
    return ", ".join(f"{number} of {most} ({title_of(key)})" for key, number in devices.items() if number < most)


def means_table(study: Study, policies: Sequence[str], against: Study | None = None) -> str:
    """Return mean accuracies in per cent, the best of a line in bold; federations that were not run come last.

    ``against``: the same study with other steps; a last line has the mean change to it, in points.
    """
    lines = []
    for key, cells in study.items():
        whole = {policy: cell for policy, cell in with_all_seeds(cells).items() if policy in policies}
        best = max((cell.score for cell in whole.values()), default=0.0)
        line = [title_of(key)]
        for policy in policies:
            cell = cells.get(policy)
            text = f"{100 * cell.score:.2f}{'' if policy in whole else FEWER}" if cell else NOT_RUN
            line.append(f"**{text}**" if policy in whole and whole[policy].score == best else text)
        lines.append(line)
    run = {key.partition("-T")[0] for key in study}
    lines += [[title_of(key), *[NOT_RUN] * len(policies)] for key in MILD_TO_SKEWED if key not in run]
    if against is not None:
        changes = [_gaps({key: {policy: cells[policy], "": against[key][policy]} for key, cells in study.items()
                          if policy in cells and policy in against.get(key, {})}, policy, "")
                   for policy in policies]  # fmt: skip
        mean = [points(fmean(gaps.values()), 2) if gaps else "" for gaps in changes]
        lines.append(["*mean change, points*", *mean])
    return table(["federation", *policies], lines)


def _gaps(study: Mapping[str, Mapping[str, RunGroup]], one: str, other: str) -> dict[str, float]:
    """Return by how much one policy is better than another, by federation, on the seeds both have."""
    return {
        key: fmean(gaps.values())
        for key, cells in study.items()
        if one in cells and other in cells and (gaps := by_seed(cells[one], cells[other], "late"))
    }


def pairs_table(study: Study) -> str:
    """Compare policies with each other over all federations, in points."""
    lines = []
    for one, other in PAIRS:
        gaps = _gaps(study, one, other)
        if not gaps:
            continue
        skewed = [gap for key, gap in gaps.items() if DEALS[key.partition("-T")[0]].skewed]
        mild = [gap for key, gap in gaps.items() if not DEALS[key.partition("-T")[0]].skewed]
        low, high = min(gaps, key=lambda key: gaps[key]), max(gaps, key=lambda key: gaps[key])
        better, worse = sum(gap > WITHIN for gap in gaps.values()), sum(gap < -WITHIN for gap in gaps.values())
        lines.append([
            f"{one} over {other}", *(points(fmean(some), 2) if some else "" for some in (gaps.values(), skewed, mild)),
            str(better), str(len(gaps) - better - worse), str(worse),
            f"{points(gaps[low], 2)} ({title_of(low)})", f"{points(gaps[high], 2)} ({title_of(high)})",
        ])  # fmt: skip
    heads = ["points", "mean", "α ≤ 0.1", "others", "better", f"within {100 * WITHIN:g}", "worse", "minimum", "maximum"]
    return table(heads, lines) if lines else ""


def skew_table(study: Study, unskewed: Mapping[str, RunGroup]) -> str:
    """Return what the same data come to without skew, how far policies are below it, and what ours wins back."""
    costs = {policy: _gaps({key: {policy: study[key][policy], "": unskewed[key]} for key in study
                            if key in unskewed and policy in study[key]}, policy, "")
             for policy in ("random-by-data", PUBLISHED, OURS)}  # fmt: skip
    keys = [key for key in study if any(key in found for found in costs.values())]
    most = max((len(unskewed[key].seeds) for key in keys), default=0)
    lines = []
    for key in keys:
        lost, ours = (costs[policy].get(key) for policy in (PUBLISHED, OURS))
        back = share(1 - ours / lost) if lost is not None and ours is not None and -lost > WITHIN else ""
        mean = f"{100 * unskewed[key].score:.2f}" + ("" if len(unskewed[key].seeds) == most else FEWER)
        lines.append([title_of(key), mean, *(points(found.get(key), 2) for found in costs.values()), back])
    heads = ["federation", "without skew", *costs, f"won back by {OURS} over {PUBLISHED}"]
    return table(heads, lines) if lines else ""


def _pays(inputs: ReportInputs, study: Study, results: Results) -> dict[str, str]:
    """Return what selection gains over how far random teams are from P_real, at every learning rate."""
    far = team_skew(study, read_unskewed(results))
    gains = gains_by_rate(study, results)
    if not far or len(gains) < 2:
        return {}
    return {
        "table": pays_table(far, gains),
        "figure": inputs.figure("study-pays", "What selection gains over how far random teams are from P_real",
                                (8.4, 3.9), lambda figure: paint_pays(figure, far, gains)),
    }  # fmt: skip


def gains_by_rate(study: Study, results: Results) -> Gains:
    """Return what selection gains on every federation, by learning rate and pair of policies."""
    usual = next(iter(next(iter(study.values())).values())).runs[0]["settings"]["training"]["learning_rate"]
    others = {variant.title: read_study(in_variant(results, name))[0] for name, variant in VARIANTS.items()}
    every = {f"learning rate {usual:g}": study, **{title: found for title, found in others.items() if found}}
    return {title: {words: _gaps(found, *pair) for words, pair in GAINS.items()} for title, found in every.items()}


def pays_table(far: Mapping[str, float], gains: Gains) -> str:
    """Return a line a federation, beginning where random teams are closest to P_real."""
    columns = [(words, title) for words in GAINS for title in gains]
    lines = [
        [title_of(key), f"{times:.1f}×", *(points(gains[title][words].get(key), 2) for words, title in columns)]
        for key, times in far.items()
    ]
    return table(["federation", "random teams", *(f"{words}, {title}" for words, title in columns)], lines)


def team_skew(study: Study, unskewed: Mapping[str, RunGroup]) -> dict[str, float]:
    """Return the divergence of random teams as a multiple of what the same samples dealt out at random have."""
    found = {}
    for key, cells in study.items():
        if "random" in cells and key in unskewed:
            skewed, plain = cells["random"].fact("divergence"), unskewed[key].fact("divergence")
            if skewed and plain:
                found[key] = skewed / plain
    return dict(sorted(found.items(), key=lambda pair: pair[1]))


def _by_policy(study: Study, policies: Sequence[str], show: Callable[[RunGroup], str]) -> str:
    """Return a table with a line a federation and a column a policy."""
    lines = []
    for key, cells in study.items():
        whole = with_all_seeds(cells)
        lines.append([title_of(key), *(show(cells[policy]) + ("" if policy in whole else FEWER)
                                       if policy in cells else "–" for policy in policies)])  # fmt: skip
    return table(["federation", *policies], lines)


def _range(cell: RunGroup) -> str:
    return f"{100 * min(cell.late):.1f}–{100 * max(cell.late):.1f}"


def _figures(inputs: ReportInputs, study: Study) -> list[str]:
    lines = -(-len(study) // 4)
    comparable = [cells for cells in study.values() if OURS in cells and len(cells) > 1]
    shown = []
    if comparable:
        shown.append(
            inputs.figure("study-differences", "Policies against coverage, federation by federation",
                          (7.6, 0.6 * len(comparable) + 1.3), lambda figure: paint_differences(figure, study))
        )  # fmt: skip
    return [
        *shown,
        inputs.figure("study-trade-off",
                      "Divergence, evenness of use and accuracy, one point per federation and policy. On the left "
                      "coverage lies on queues and by-data-full on random-by-data: they select the same devices",
                      (10.5, 3.9), lambda figure: paint_trade_off(figure, study)),
        inputs.figure("study-curves", "Accuracy over rounds, one panel per federation, mean over seeds",
                      (2.7 * min(len(study), 4) + 0.3, 2.45 * lines + 0.6),
                      lambda figure: paint_curves(figure, study)),
    ]  # fmt: skip


def _measures(study: Study) -> str:
    """Return how noisy cells are, and what accuracy goes with over the selections of a federation."""
    spreads = [max(cell.late) - min(cell.late) for cells in study.values() for cell in cells.values()
               if len(cell.late) > 1]  # fmt: skip
    errors = [
        float(np.std(gaps, ddof=1)) / len(gaps) ** 0.5
        for cells in study.values()
        for policy in cells
        if OURS in cells and policy != OURS and len(gaps := [*by_seed(cells[OURS], cells[policy], "late").values()]) > 1
    ]
    lines = []
    if spreads:
        lines.append(["difference between the best and the worst seed of a cell, mean, points",
                      number(100 * fmean(spreads), 2)])  # fmt: skip
    if errors:
        lines.append([f"standard error of a policy's difference to {OURS} over the same seeds, mean, points",
                      number(100 * fmean(errors), 2)])  # fmt: skip
    for words, policies in (("", SELECTIONS), (", without `exact`", [key for key in SELECTIONS if key != "exact"])):
        if found := correlations(study, policies):
            lines += [[f"correlation of accuracy with {what}{words}", signed(value, 2)]
                      for what, value in zip(("Jain's index of epochs", "divergence"), found, strict=True)]  # fmt: skip
    return table(["measure", "value"], lines) if lines else ""


def correlations(study: Study, policies: Collection[str]) -> tuple[float, float] | None:
    """Return the correlation of accuracy with evenness and with divergence, within federations.

    Values are centred (divergence: scaled) by the mean of their federation. None: too few cells, or all equal.
    """
    divergence, evenness, accuracy = [], [], []
    for cells in study.values():
        known = {
            policy: (one, other)
            for policy, cell in with_all_seeds(cells).items()
            if policy in policies
            and (one := cell.fact("divergence")) is not None
            and (other := cell.fact("jain_of_epochs")) is not None
        }
        if len(known) < 3:
            continue
        level = fmean(cells[policy].score for policy in known)
        scale, even = (fmean(values) for values in zip(*known.values(), strict=True))
        for policy, pair in known.items():
            divergence.append(pair[0] / scale)
            evenness.append(pair[1] - even)
            accuracy.append(cells[policy].score - level)
    if len(accuracy) < 6 or min(np.std(divergence), np.std(evenness), np.std(accuracy)) == 0:
        return None
    return float(np.corrcoef(evenness, accuracy)[0, 1]), float(np.corrcoef(divergence, accuracy)[0, 1])


def _targets(study: Study) -> str:
    """Return how far ours is from both targets on every federation, by the late tests and by the last one."""
    last = verdicts(study, final=True)
    lines = [
        [
            title_of(key), verdict.best, points(verdict.to_best, 2), _yes(verdict.near_the_best),
            points(verdict.to_published, 2), _yes(verdict.beats_published), points(last[key].to_best, 3),
            points(last[key].to_published, 2), f"{sum(gap > 0 for gap in verdict.by_seed)} of {len(verdict.seeds)}",
        ]
        for key, verdict in verdicts(study).items()
    ]  # fmt: skip
    heads = ["federation", "best other", "to it", "target 1", f"over {PUBLISHED}", "target 2", "last test: to best",
             f"over {PUBLISHED}", "seeds ahead of best"]  # fmt: skip
    return table(heads, lines, left=2) if lines else ""


def _yes(held: bool | None) -> str:
    return "not asked" if held is None else "met" if held else "**missed**"


def met_table(judged: Mapping[str, Mapping[str, Verdict]]) -> str:
    """Return whether both targets are met, and where they are missed, for several ways to judge."""
    lines = []
    for words, found in judged.items():
        if found:
            near, over = met(list(found.values()))
            far = [title_of(v.key) for v in found.values() if not v.near_the_best]
            short = [title_of(v.key) for v in found.values() if v.beats_published is False]
            lines.append([words, _yes(near), "; ".join(far), _yes(over), "; ".join(short)])
    heads = ["judged by", "target 1", "missed on", "target 2", "missed on"]
    return table(heads, lines, left=5) if lines else ""


def _weights(inputs: ReportInputs) -> dict[str, str]:
    weighed = read_weights(inputs.starting_with(PREFIX))
    if not weighed:
        return {}
    lines = [
        [title_of(key), f"{weight:g}", number(jain, 3), number(divergence, 4), percent(accuracy, 2),
         number(result["summary"]["selection"]["longest_wait"], 0)]
        for key, by_weight in weighed.items()
        for weight, result in by_weight.items()
        for jain, divergence, accuracy in [weight_facts(result)]
    ]  # fmt: skip
    return {
        "table": table(["federation", "V", "Jain's index of epochs", "divergence", "accuracy", "longest wait"], lines),
        "figure": inputs.figure("study-weights", "Evenness of use, divergence and accuracy over the weight V of the "
                                "queues", (10.5, 3.4), lambda figure: paint_weights(figure, weighed)),
    }  # fmt: skip


def _variant(inputs: ReportInputs, base: Study, name: str) -> dict[str, Any]:
    """Return the tables of the study with another learning rate."""
    results = in_variant(inputs.starting_with(PREFIX), name)
    study, left_out = read_study(results)
    if not study:
        return {}
    first = next(iter(next(iter(study.values())).values())).runs[0]
    against = [policy for policy in OTHERS if any(policy in cells for cells in study.values())]
    return {
        "title": VARIANTS[name].title,
        "training": first["settings"]["training"],
        "accuracy": means_table(study, VARIANTS[name].policies, base),
        "pairs": pairs_table(study),
        "others": ", ".join(f"`{policy}`" for policy in against),
        "met": met_table({"mean of the late tests": verdicts(study)}),
        "skew": skew_table(study, read_unskewed(results)),
        "left_out": left_out,
        "remarks": {name: ""},
    }


def _curve_table(study: Study, shown: Sequence[str]) -> str:
    """Return the accuracies after fractions of the rounds, at the last tests before them."""
    lines = []
    for key, cells in study.items():
        run = next(iter(cells.values())).runs[0]
        length, tests = run["settings"]["training"]["rounds"], run["curve"]["round"]
        found = [
            max((test for test in tests if test <= round(length * fraction)), default=length) for fraction in FRACTIONS
        ]
        for at in dict.fromkeys(found):  # a short run has fewer
            values = [cells[policy].at(at) if policy in cells else None for policy in shown]
            lines.append([title_of(key), str(at), *(percent(value, 2) for value in values)])
    return table(["federation", "round", *shown], lines)


def _reached(cell: RunGroup) -> str:
    found = [round_of(run, run["settings"]["eval"]["target"]) for run in cell.runs]
    whole = [number for number in found if number is not None]
    return rounds([round(fmean(whole), 1)]) if len(whole) == len(found) else "×"
