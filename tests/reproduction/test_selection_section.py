"""What the report says of samplers and starts: ties are ties, and an optimum is proven or not called so."""

from dataclasses import replace
from pathlib import Path

import pytest

from reproduction.experiments import paper
from reproduction.experiments.samplers import Comparison, Row
from reproduction.figures.selection import draw_initialisers
from reproduction.report.sections.selection import write_initialisers, write_samplers
from tests.reproduction.words import Words

SAMPLERS = [name for name in paper.facts()["samplers"] if name != "columns"]


def row(solver: str, mean: float, proven: float = 0.0) -> Row:
    return Row(solver, 2, mean, mean, 0.0, mean, mean, 0.1, 0.0, proven, 1e-3, (mean, mean))


def comparison(*rows: Row) -> Comparison:
    starts = {"zero": [0.12, 0.06, 0.031], "random": [0.06, 0.05], "mpinv": [0.04, 0.031]}
    return Comparison("2 instances", 0, 2, rows, {}, starts, "software", "hardware")


def section(*rows: Row, starts: bool = False) -> str:
    kind = "initialisers" if starts else "samplers"
    results = {f"{kind}-seed-0": {"comparison": comparison(*rows).as_dict()}}
    material = Words(Path("nowhere"), results)
    return "\n".join(write_initialisers(material) if starts else write_samplers(material)).replace("\u00a0", " ")


def of_the_paper() -> dict[str, Row]:
    return {name: row(name, (paper.sampler(name) or {})["mean"]) for name in SAMPLERS}


@pytest.mark.parametrize(
    ("genetic", "gbp_cs", "order"),
    [(0.035, 0.036, "genetic, gbp-cs"), (0.037, 0.036, "gbp-cs, genetic"), (0.036, 0.036, "genetic, gbp-cs")],
)
def test_what_the_paper_has_level_may_come_either_way(genetic: float, gbp_cs: float, order: str) -> None:
    rows = of_the_paper() | {"genetic": row("genetic", genetic), "gbp-cs": row("gbp-cs", gbp_cs)}
    text = section(*rows.values())
    assert f"is the paper's, which has genetic and gbp-cs level: brute, {order}, monte-carlo, bayesian" in text


def test_another_order_shows_both() -> None:
    rows = of_the_paper() | {"bayesian": row("bayesian", 0.02)}
    assert "best first: bayesian, brute, " in section(*rows.values())
    assert "; in the paper: brute, genetic = gbp-cs, monte-carlo, bayesian and random." in section(*rows.values())
    level = of_the_paper() | {"bayesian": row("bayesian", 0.04)}  # level with monte-carlo, which the paper has not
    assert "in the paper: brute" in section(*level.values())


def test_an_optimum_that_is_not_proven_everywhere_is_not_called_so() -> None:
    proven, half = row("exact", 0.03, 1.0), row("exact", 0.03, 0.5)
    text = section(proven, starts=True)
    assert "| proven optimum | 0.0300 | 0.028 |" in text
    assert "above the optimum" in text
    text = section(half, starts=True)
    assert "| best found, proven on 1 of 2 instances | 0.0300 | 0.028 |" in text
    assert "above the best found" in text
    assert "proven optimum" not in text
    both = of_the_paper()
    assert "`exact` proves the optimum in 1 ms" in section(*both.values(), proven)
    assert "`exact` proves it on 1 of 2 instances, in 1 ms" in section(*both.values(), half)


@pytest.mark.parametrize(("share", "name"), [(1.0, "optimum, here"), (0.5, "best found, here")])
def test_the_picture_counts_steps_as_the_table_does(share: float, name: str) -> None:
    from matplotlib.figure import Figure

    axes = Figure().add_subplot()
    found = comparison(replace(row("exact", 0.03), proven=share))
    draw_initialisers(axes, found)
    last = {str(line.get_label()): max(line.get_xdata()) for line in axes.lines}
    assert name in last
    for start, curve in found.initialisers.items():
        assert last[f"{start}, here"] == len(curve) - 1
        assert last[f"{start}, paper"] == len(paper.facts()["initialiser_curves"][start]) - 1
