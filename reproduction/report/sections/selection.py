"""GBP-CS's initialisers and the samplers, beside the paper's figures."""

from statistics import fmean
from typing import Any

from fedgs.report.units import readable_time
from reproduction.experiments import paper
from reproduction.experiments.samplers import Comparison
from reproduction.figures.selection import draw_curves, draw_divergence, draw_initialisers, draw_time
from reproduction.report.markdown import number, percent, share, table
from reproduction.report.report_inputs import ReportInputs

PAPERS_OPTIMUM = 0.028
"""Of the one instance that its figure of the initialisers shows, found by brute force (section VII-B, in the text)."""
NAMES = {"zero": "Zero", "random": "Random", "mpinv": "MPInv"}


def initialisers_section(inputs: ReportInputs) -> dict[str, Any]:
    """Return where GBP-CS ends from each of its three initialisers."""
    result = inputs.first("initialisers-")
    if result is None:
        return {}
    found = Comparison.from_dict(result["comparison"])
    exact = found.rows[0]
    lines = []
    for start, curve in sorted(found.initialisers.items(), key=lambda item: item[1][-1]):
        theirs = paper.facts()["initialiser_curves"][start]
        lines.append([NAMES[start], number(curve[-1], 4), share(curve[-1] / exact.mean - 1), number(theirs[-1]),
                      number(curve[0], 4), number(theirs[0]), f"{len(curve) - 1}", f"{len(theirs) - 1}"])  # fmt: skip
    proven = f"best found, proven on {round(exact.proven * exact.instances)} of {exact.instances} instances"
    lines.append(["proven optimum" if exact.proven == 1 else proven, number(exact.mean, 4), "",
                  number(PAPERS_OPTIMUM), "", "", "", ""])  # fmt: skip
    heads = ["initialiser", "ends at", "above the optimum", "paper", "begins at", "paper", "most steps", "paper"]
    return {
        "source": found.source,
        "figure": inputs.figure("initialisers", "GBP-CS from its three initialisers, here and in the paper",
                                (7.2, 4.2), lambda figure: draw_initialisers(figure.add_subplot(), found)),
        "table": table(heads, lines),
        "titles": {"section": ""} | NAMES,
    }  # fmt: skip


def samplers_section(inputs: ReportInputs) -> dict[str, Any]:
    """Return divergence and time of every sampler."""
    result = inputs.first("samplers-")
    if result is None:
        return {}
    found = Comparison.from_dict(result["comparison"])
    ran = [row for row in found.rows if row.instances]
    common = min(row.instances for row in ran)
    lines = []
    for row in ran:
        theirs = paper.sampler(row.solver)
        lines.append([
            row.solver, str(row.instances), number(row.mean, 4), number(theirs["mean"]) if theirs else "",
            number(fmean(row.divergences[:common]), 4), f"{row.min:.3f}–{row.max:.3f}",
            f"{theirs['min']:.3f}–{theirs['max']:.3f}" if theirs else "", percent(row.gap),
            share(row.proven), readable_time(row.seconds), readable_time(theirs["seconds"]) if theirs else "",
        ])  # fmt: skip
    heads = ["sampler", "instances", "divergence", "paper", f"on the first {common}", "min–max", "paper",
             "above the optimum", "proven", "time", "paper"]  # fmt: skip
    return {
        "made_with": f"{found.source}; {found.software}; {found.hardware}",
        "divergence": inputs.figure("samplers-divergence", "Divergence of every sampler, the paper's beside it",
                                    (7.6, 4.2), lambda figure: draw_divergence(figure.add_subplot(), found)),
        "time": inputs.figure("samplers-time", "Time of one selection, the paper's beside it", (7.2, 4.2),
                              lambda figure: draw_time(figure.add_subplot(), found)),
        "over_time": inputs.figure("samplers-over-time", "Divergence over time on one instance", (7.2, 4.2),
                                   lambda figure: draw_curves(figure.add_subplot(), found)),
        "table": table(heads, lines),
        "left_out": [f"{row.solver} ({row.note})" for row in found.rows if not row.instances],
        "titles": {"section": ""} | {row.solver: row.solver for row in ran},
    }  # fmt: skip
