"""The README's table says what the committed results say."""

import re
from pathlib import Path

import pytest

from reproduction.experiments.jobs import read_all
from reproduction.experiments.table2 import outcomes, papers_row

ROOT = Path(__file__).parents[2]
KEYS = {
    "FedGS, preset `coverage` (ours)": "coverage",
    "FedGS (GBP-CS, the paper's)": "fedgs",
    "FedGS, devices selected at random": "fedgs-random",
    "FedAvgM": "fedavgm",
    "FedAdam": "fedadam",
    "FedAvg": "fedavg",
}


@pytest.mark.parametrize("title", KEYS)
def test_a_row(title: str) -> None:
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
