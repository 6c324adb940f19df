"""GBP-CS's initialisers and the samplers, beside the paper's figures."""

from collections.abc import Mapping
from itertools import groupby
from statistics import fmean

from fedgs.report.units import readable_time
from reproduction.experiments import paper
from reproduction.experiments.samplers import Comparison, Row
from reproduction.figures.selection import draw_curves, draw_divergence, draw_initialisers, draw_time
from reproduction.report.markdown import bullets, listing, number, percent, share, table
from reproduction.report.report_inputs import Material

NEAR = 0.004
"""Divergences that differ by less are called alike: the spread of the paper's own ten factories."""
PAPERS_OPTIMUM = 0.028
"""Of the one instance that its figure of the starts shows, found by brute force (section VII-B, in the text)."""
NAMES = {"zero": "Zero", "random": "Random", "mpinv": "MPInv"}


def write_initialisers(material: Material) -> list[str]:
    """Write the section on the three starts of GBP-CS."""
    result = material.first("initialisers-")
    if result is None:
        return []
    found = Comparison.from_dict(result["comparison"])
    theirs = paper.facts()["initialiser_curves"]
    exact = found.rows[0]
    optimum, best = exact.mean, "the optimum" if exact.proven == 1 else "the best found"
    lines = []
    for start, curve in found.initialisers.items():
        steps = f"{len(curve) - 1}"
        lines.append([NAMES[start], number(curve[-1], 4), number(theirs[start][-1]), number(curve[0], 4),
                      number(theirs[start][0]), steps, str(len(theirs[start]) - 1)])  # fmt: skip
    proven = "proven optimum" if exact.proven == 1 else f"best found, proven on {_proven(exact)} instances"
    lines.append([proven, number(optimum, 4), number(PAPERS_OPTIMUM), "", "", "", ""])
    heads = ["start", "ends at", "paper", "begins at", "paper", "most steps", "paper"]
    blocks = [
        "## The three starts of GBP-CS",
        f"Divergence of the selected group, mean of {found.source}; the paper shows one instance.",
        material.figure("initialisers", "GBP-CS from its three starts, here and in the paper", (7.2, 4.2),
                        lambda figure: draw_initialisers(figure.add_subplot(), found)),
        table(heads, lines),
    ]  # fmt: skip
    ends = {start: curve[-1] for start, curve in found.initialisers.items()}
    order = sorted(ends, key=lambda start: ends[start])
    sentences = [
        "From best to worst: "
        f"{listing([f'{NAMES[s]} {ends[s]:.4f} ({share(ends[s] / optimum - 1)} above {best})' for s in order])}; "
        "the paper has MPInv and Zero close to the optimum and Random behind." + material.remark("initialisers"),
        "The paper's text has Zero at 0.029 and MPInv at 0.030, its figure the other way round; this is the figure's.",
    ]
    worst = order[-1]
    if worst != "random":
        sentences.append(
            f"Unlike in the paper, {NAMES[worst]} and not Random is the worst start on average; the paper's order is "
            "that of one instance."
        )
    for start in order:
        if abs(ends[start] - theirs[start][-1]) > NEAR:
            sentences.append(
                f"{NAMES[start]} ends at {ends[start]:.4f} on average of all instances, on the paper's one at "
                f"{theirs[start][-1]:.3f}." + material.remark("initialisers", start)
            )
    return [*blocks, bullets(sentences)]


def write_samplers(material: Material) -> list[str]:
    """Write the section on the samplers."""
    result = material.first("samplers-")
    if result is None:
        return []
    found = Comparison.from_dict(result["comparison"])
    ran = [row for row in found.rows if row.instances]
    lines = []
    for row in ran:
        theirs = paper.sampler(row.solver)
        lines.append([
            row.solver, str(row.instances), number(row.mean, 4), number(theirs["mean"]) if theirs else "",
            f"{row.min:.3f}–{row.max:.3f}", f"{theirs['min']:.3f}–{theirs['max']:.3f}" if theirs else "",
            percent(row.gap), readable_time(row.seconds), readable_time(theirs["seconds"]) if theirs else "",
        ])  # fmt: skip
    heads = ["sampler", "instances", "divergence", "paper", "least–most", "paper", "over optimum", "time", "paper"]
    blocks = [
        "## The samplers",
        f"{found.source}; {found.software}; {found.hardware}. The paper has ten instances, one a factory. Divergence "
        "is the distance of the group's class distribution to P_real. Samplers without a number of the paper are ours.",
        material.figure("samplers-divergence", "Divergence of every sampler, the paper's beside it", (7.6, 4.2),
                        lambda figure: draw_divergence(figure.add_subplot(), found)),
        material.figure("samplers-time", "Time of one selection, the paper's beside it", (7.2, 4.2),
                        lambda figure: draw_time(figure.add_subplot(), found)),
        material.figure("samplers-over-time", "Divergence over time on one instance", (7.2, 4.2),
                        lambda figure: draw_curves(figure.add_subplot(), found)),
        table(heads, lines),
        bullets(_sampler_sentences({row.solver: row for row in ran}, material)),
    ]  # fmt: skip
    left_out = [f"{row.solver} was left out: {row.note}" for row in found.rows if not row.instances]
    return blocks + ([bullets(left_out)] if left_out else [])


def _sampler_sentences(rows: dict[str, Row], material: Material) -> list[str]:
    sentences = []
    theirs = {name: paper.sampler(name) for name in rows}
    known = [name for name, numbers in theirs.items() if numbers is not None]
    common = min(rows[name].instances for name in known) if known else 0  # those that all samplers were given
    ours = {name: fmean(rows[name].divergences[:common]) for name in known}
    papers = {name: (theirs[name] or {})["mean"] for name in known}
    here = sorted(known, key=lambda name: ours[name])
    if known and all(ours[a] < ours[b] for a in known for b in known if papers[a] < papers[b]):
        level = [" and ".join(names) for names in _groups(papers) if len(names) > 1]
        tie = f", which has {listing(level)} level" if level else ""
        sentences.append(
            f"The order by divergence, on the {common} instances all were given, is the paper's{tie}: {listing(here)}."
            + material.remark("samplers")
        )
    elif known:
        shown = listing([" = ".join(names) for names in _groups(papers)])
        sentences.append(
            f"By divergence, on the {common} instances all were given, best first: {listing(here)}; in the paper: "
            f"{shown}." + material.remark("samplers")
        )
    for name in here:
        numbers = theirs[name] or {}
        gap = rows[name].mean - numbers["mean"]
        if abs(gap) > NEAR:
            way = "lower" if gap < 0 else "higher"
            sentences.append(
                f"{name}: {abs(gap):.3f} {way} than in the paper ({rows[name].mean:.3f} against {numbers['mean']:.3f})."
                + material.remark("samplers", name)
            )
    if "exact" in rows and "gbp-cs" in rows:
        exact, published = rows["exact"], rows["gbp-cs"]
        proof = "proves the optimum" if exact.proven == 1 else f"proves it on {_proven(exact)} instances,"
        sentences.append(
            f"GBP-CS ends {share(published.gap)} above the optimum in {readable_time(published.seconds)}; `exact` "
            f"{proof} in {readable_time(exact.seconds)} ({exact.seconds / published.seconds:.1f} times as long)."
        )
    if "brute" in rows and (papers_brute := theirs["brute"]):
        sentences.append(
            f"Times are of compiled code on this machine, the paper's of its own program: every choice is tried in "
            f"{readable_time(rows['brute'].seconds)}, in the paper in {readable_time(papers_brute['seconds'])}."
        )
    return sentences


def _groups(values: Mapping[str, float]) -> list[list[str]]:
    """Return the names from the least value to the greatest, those with the same one together."""
    order = sorted(values, key=lambda name: values[name])
    return [list(names) for _, names in groupby(order, key=lambda name: values[name])]


def _proven(row: Row) -> str:
    return f"{round(row.proven * row.instances)} of {row.instances}"
