"""What the paper's claims come to here: FedGS against FedAvg, GBP-CS against random selection, what `exact` changes."""

from collections.abc import Collection, Sequence
from statistics import fmean, stdev

from reproduction.experiments import paper
from reproduction.experiments.claims import Numbers, by_family, derive
from reproduction.experiments.samplers import Comparison
from reproduction.experiments.table2 import ROWS, Outcome, outcomes, papers_row, runs_of
from reproduction.report.markdown import (
    THIN,
    bullets,
    listing,
    number,
    percent,
    plural,
    points,
    rounds,
    share,
    table,
    with_range,
)
from reproduction.report.report_inputs import Material
from reproduction.report.sections.table2 import listing_of_rounds

LOST = 0.3
"""A row so far below the paper's is none of what the paper means; no mean is taken over it."""
OWN_SEEDS = "of each row"


def write(material: Material) -> list[str]:
    """Write the section on the claims."""
    found = {key: row for key, row in outcomes(material.results).items() if row.ran}
    if "fedgs" not in found:
        return []
    settings = next(iter(runs_of(material.results)[0].values()))["settings"]
    target, length = settings["eval"]["target"], settings["training"]["rounds"]
    blocks = ["## What the paper's claims come to here"]
    if not material.papers_size:
        blocks.append("At this size and on these data the paper's claims are not tested.")
    elif "fedavg" in found:
        blocks += _against_others(found, target, length, material)
    blocks += _selection(found, target, material)
    remark = material.remark("claims").strip()
    return [*blocks, *([remark] if remark else [])]


def _against_others(found: dict[str, Outcome], target: float, length: int, material: Material) -> list[str]:
    their_table = {key: _papers(key) for key in ROWS if ROWS[key].paper}
    lost = [key for key in found if key in their_table and their_table[key][0] - found[key].mean > LOST]
    taken = [key for key in found if key in their_table and (key not in lost or key in ("fedgs", "fedavg"))]
    # Means over rows are those of the seeds all of them have, of the same rows in the paper.
    seeds = set.intersection(*(set(found[key].seeds) for key in taken))
    rows = {key: found[key].on(seeds) if seeds else found[key] for key in taken}
    table_here: dict[str, Numbers] = {key: (row.mean, row.mean_loss, row.mean_rounds) for key, row in rows.items()}
    theirs, here = derive({key: their_table[key] for key in taken}), derive(table_here, never=length)
    whole = derive(their_table)
    both = set(found["fedgs"].seeds) & set(found["fedavg"].seeds)
    fedgs, fedavg = (found[key].on(both) if both else found[key] for key in ("fedgs", "fedavg"))
    over = f"mean of the other {plural(here.others, 'row')}"
    of_both, of_all = _seeds(both), _seeds(seeds)
    lines = [
        ["FedGS over FedAvg, points", points(theirs.over_baseline), points(fedgs.mean - fedavg.mean), of_both],
        [f"FedGS over the {over}, points", points(theirs.over_mean), points(here.over_mean), of_all],
        [f"fewer rounds to {share(target)} than that mean (never counts as {length})", percent(theirs.fewer_rounds, 0),
         percent(here.fewer_rounds, 0), of_all],
        [f"times faster to {share(target)} than FedAvg", f"{theirs.times_faster:.2f} ×", _times(fedgs, fedavg, length),
         of_both],
        ["place by accuracy", _place({key: their_table[key] for key in taken}, 0), _place(table_here, 0), of_all],
        ["place by loss", _place({key: their_table[key] for key in taken}, 1), _place(table_here, 1), of_all],
        *_families(their_table, {key: found[key] for key in taken}),
    ]  # fmt: skip
    aside = []
    if here.others < whole.others:
        aside.append(f"Over all of its {whole.others} other rows the paper has {points(whole.over_mean)} points and "
                     f"{percent(whole.fewer_rounds, 0)} fewer rounds.")  # fmt: skip
    if any(set(found[key].seeds) != seeds for key in taken):
        named = f"the seeds all rows have ({_seeds(seeds)})" if seeds else "each row's own seeds, for no seed is in all"
        aside.append(
            f"Means over rows, and places, are of {named}; a row against FedAvg is of those both have. The last column "
            "names them."
        )
    samplers = material.first("samplers-")
    if samplers is not None:
        seconds = {
            row.solver: row.seconds for row in Comparison.from_dict(samplers["comparison"]).rows if row.instances
        }
        if "genetic" in seconds and "gbp-cs" in seconds:
            claimed = paper.facts()["claims"]["gbp_cs_times_faster_than_ga"]
            times = seconds["genetic"] / seconds["gbp-cs"]
            lines.append(["GBP-CS: times faster than the genetic sampler", f"{claimed} ×", f"{times:.0f} ×", ""])
    told = _sentences(fedgs.mean - fedavg.mean, found, length, target, material)
    return [table(["claim", "paper", "here", "seeds"], lines), bullets([*_left_out(taken, lost), *aside, *told])]


def _seeds(seeds: Collection[int]) -> str:
    """Name the seeds a number is of; those of each row where they have none in common."""
    return listing([str(seed) for seed in sorted(seeds)]) if seeds else OWN_SEEDS


def _left_out(taken: Collection[str], lost: Sequence[str]) -> list[str]:
    """Say over which of the paper's rows no mean is taken."""
    gone = [row.title for key, row in ROWS.items() if row.paper and key not in taken and key not in lost]
    sentences = [f"Means are without {listing(gone)}, not run yet."] if gone else []
    if lost:
        titles = listing([ROWS[key].title for key in lost])
        sentences.append(f"Means and places are without {titles}: more than {100 * LOST:g} points below the paper's.")
    return sentences


def _families(theirs: dict[str, Numbers], found: dict[str, Outcome]) -> list[list[str]]:
    """Write by how much the rows of each family are over FedAvg, on the seeds both have."""
    families = {key: ROWS[key].family for key in theirs}
    claimed = by_family({key: row[0] - theirs["fedavg"][0] for key, row in theirs.items()}, families)
    baseline = dict(zip(found["fedavg"].seeds, found["fedavg"].final, strict=True))
    gaps: dict[str, float] = {}
    seeds: dict[str, set[str]] = {}
    for key, row in found.items():
        by_seed = [end - baseline[seed] for seed, end in zip(row.seeds, row.final, strict=True) if seed in baseline]
        if by_seed:
            gaps[key] = fmean(by_seed)
            seeds.setdefault(families[key], set()).add(_seeds(set(row.seeds) & set(baseline)))
    here = by_family(gaps, families)
    return [
        [f"{family} over FedAvg, points", _from_to(claimed[family]), _from_to(here[family]),
         seeds[family].pop() if len(seeds[family]) == 1 else OWN_SEEDS]
        for family in claimed
        if family in here and family != ROWS["fedavg"].family
    ]  # fmt: skip


def _from_to(gaps: tuple[float, float]) -> str:
    least, most = (points(gap) for gap in gaps)
    return least if least == most else f"{least} to {most}"


def _papers(key: str) -> Numbers:
    row = papers_row(key)
    assert row is not None
    return row


def _times(fedgs: Outcome, fedavg: Outcome, length: int) -> str:
    reached, theirs = fedgs.mean_rounds, fedavg.mean_rounds
    if reached is None:
        return "FedGS does not get there with every seed" if any(fedgs.rounds) else "FedGS never gets there"
    if theirs is not None:
        return f"{theirs / reached:.2f} ×"
    # A seed that never gets there counts as the last round, which is less than it would need.
    at_least = fmean(length if number is None else number for number in fedavg.rounds)
    never = "not with every seed" if any(fedavg.rounds) else "never"
    return f"> {at_least / reached:.2f} × (FedAvg: {never} in {length})"


def _place(numbers: dict[str, Numbers], column: int) -> str:
    ordered = sorted(numbers, key=lambda key: numbers[key][column] or 0.0, reverse=column == 0)
    return f"{ordered.index('fedgs') + 1} of {len(ordered)} (first: {ROWS[ordered[0]].title})"


def _sentences(over: float, found: dict[str, Outcome], length: int, target: float, material: Material) -> list[str]:
    fedgs, fedavg = found["fedgs"], found["fedavg"]
    sentences = [
        f"FedGS ends at {with_range(fedgs.final)} with {plural(len(fedgs.seeds), 'seed')}, FedAvg at "
        f"{with_range(fedavg.final)} with {len(fedavg.seeds)}: {points(over)} points."
        + material.remark("claims", "fedgs")
    ]
    better = [ROWS[key].title for key, row in found.items() if ROWS[key].paper and row.mean > fedgs.mean]
    sentences.append(
        f"More accurate than FedGS after {length} rounds: {', '.join(better)}."
        if better
        else "No other of the paper's rows that were run ends more accurate than FedGS."
    )
    sooner = [
        f"{ROWS[key].title} (round {row.mean_rounds:g})"
        for key, row in found.items()
        if ROWS[key].paper and row.mean_rounds is not None and row.mean_rounds < (fedgs.mean_rounds or float("inf"))
    ]
    if sooner:
        sentences.append(
            f"Sooner at {share(target)} than FedGS (round {rounds(fedgs.mean_rounds)}): {', '.join(sooner)}."
        )
    return sentences


def _selection(found: dict[str, Outcome], target: float, material: Material) -> list[str]:
    keys = [key for key in ("fedgs", "fedgs-random", "fedgs-exact", "coverage") if key in found]
    if len(keys) < 2:
        return []
    lines = [
        [
            "GBP-CS (the paper's)" if key == "fedgs" else ROWS[key].title.removeprefix("FedGS, "),
            with_range(found[key].final, 2),
            percent(fmean(found[key].last_ten), 2),
            number(found[key].mean_loss),
            listing_of_rounds(found[key]),
            number(fmean(found[key].divergence), 4) if found[key].divergence else "–",
        ]
        for key in keys
    ]
    heads = ["selection", "accuracy", "last ten", "loss", f"rounds to {share(target)}", "divergence"]
    sentences = [_against(found, key, material) for key in keys if key != "fedgs"]
    if "coverage" in found:
        sentences.append(
            "The coverage-aware row has more than another selection: calibrated losses and a classifier averaged class "
            "by class. The selection study tells them apart."
        )
    if material.papers_size and "fedgs-random" in found and "fedavg" in found:
        whole = found["fedgs"].mean - found["fedavg"].mean
        without = found["fedgs-random"].mean - found["fedavg"].mean
        sentences.append(
            f"Of the {points(whole)} points between FedAvg and FedGS, {points(without)} are there without any "
            "selection: devices drawn at random, one step each, averaged by their station."
        )
    return ["### What selection contributes", table(heads, lines), bullets(sentences)]


def _against(found: dict[str, Outcome], key: str, material: Material) -> str:
    """Say what a row changes against GBP-CS, seed by seed; from three seeds on with the standard error of the mean."""
    base, row = found["fedgs"], found[key]
    both = [seed for seed in row.seeds if seed in base.seeds]
    ours = dict(zip(row.seeds, row.last_ten, strict=True))
    published = dict(zip(base.seeds, base.last_ten, strict=True))
    by_seed = [ours[seed] - published[seed] for seed in both]
    if not by_seed:
        return f"{ROWS[key].title} and FedGS have no seed in common."
    change = fmean(by_seed)
    each = f" (by seed: {', '.join(points(value, 2) for value in by_seed)})" if len(by_seed) > 1 else " (one seed)"
    text = f"{ROWS[key].title} against GBP-CS: {points(change, 2)} points of the last ten tests{each}"
    if row.divergence and base.divergence:
        ratio = fmean(row.on(both).divergence) / fmean(base.on(both).divergence) - 1
        text += f", divergence {signed_share(ratio)}" if abs(ratio) >= 0.005 else ", the same divergence"
    if len(by_seed) > 2:
        text += f"; standard error {100 * stdev(by_seed) / len(by_seed) ** 0.5:.2f} points"
    return text + "." + material.remark("claims", key)


def signed_share(value: float) -> str:
    """Write a change as a share: +12 %, −43 %."""
    return f"{'+' if value > 0 else '−'}{abs(value):.0%}".replace("%", f"{THIN}%")
