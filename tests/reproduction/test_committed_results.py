"""The committed results: made by the jobs of today, and what the README's table says."""

import re
from collections import Counter
from pathlib import Path

import pytest

from reproduction.experiments.bearings import Bearings
from reproduction.experiments.catalogue import stages_of
from reproduction.experiments.jobs import read_all, read_job
from reproduction.experiments.table2 import outcomes, papers_row
from tests.reproduction.made_up import full_size

ROOT = Path(__file__).parents[2]
KEYS = {
    "FedGS, preset `coverage` (ours)": "coverage",
    "FedGS (GBP-CS, the paper's)": "fedgs",
    "FedGS, devices selected at random": "fedgs-random",
    "FedAvgM": "fedavgm",
    "FedAdam": "fedadam",
    "FedAvg": "fedavg",
}


@pytest.mark.parametrize(
    ("folder", "done"),
    [
        (
            "femnist-350",
            {"initialisers": 1, "samplers": 1, "table2": 45, "surfaces": 8, "fedopt": 45, "beyond": 28, "best": 4},
        ),
        ("selection-study", {"study": 726}),
    ],
)
def test_a_command_that_repeats_them_finds_them_done(folder: str, done: dict[str, int]) -> None:
    """So the names, settings and federations of all these jobs are what they were."""
    results = read_all(ROOT / "results" / folder)
    jobs = {}
    for seeds in ((0, 1, 2), (1,), (2,)):  # of several seeds most rows of Table II take the first
        reproduction = full_size(seeds)
        reproduction.overrides = ["training.precision=bfloat16"]
        stages = (*stages_of("all"), *stages_of("best"))
        jobs |= {job.name: job for stage in stages for job in stage(reproduction, results)}
    known = [name for name in results if name in jobs]
    for name in known:
        data = results[name].get("data", "")
        assert read_job(ROOT / "results" / folder / "parts", jobs[name], data) == results[name], name
    assert Counter(name.partition("-")[0] for name in known) == done
    # The others were made in full for trials that have been surpassed since, or before all trials of the row.
    assert all(re.match("beyond-[a-z]+-tuned-|best-fedgs-seed-", name) for name in results.keys() - set(known))


def test_those_of_bearings_too() -> None:
    results = read_all(ROOT / "results" / "bearings")
    jobs = [job for stage in stages_of("bearings") for job in stage(Bearings(None, None, None), results)]
    assert {job.name for job in jobs} == set(results)
    for job in jobs:
        assert read_job(ROOT / "results" / "bearings" / "parts", job, "bearings") == results[job.name], job.name


@pytest.mark.parametrize("title", KEYS)
def test_a_row_of_the_readme(title: str) -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    found = re.search(rf"^\| {re.escape(title)}( ¹)? \| (.+?) \| (.+?) \| (.+?) \| (.+?) \|$", text, re.MULTILINE)
    assert found is not None
    one_seed, accuracy, papers, rounds, papers_rounds = found.groups()
    row = outcomes(read_all(ROOT / "results" / "femnist-350"))[KEYS[title]]
    assert accuracy == f"{100 * row.mean:.1f} %"
    reached = ", ".join("never" if number is None else str(number) for number in row.rounds)
    assert rounds == (reached if any(row.rounds) else "never")
    assert bool(one_seed) == (len(row.seeds) == 1)
    theirs = papers_row(KEYS[title])
    assert (papers, papers_rounds) == ((f"{100 * theirs[0]:.1f} %", str(theirs[2])) if theirs else ("–", "–"))
