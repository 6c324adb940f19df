"""The arithmetic behind the paper's sentences."""

import pytest

from reproduction.experiments import paper
from reproduction.report.sections.claims import by_family, derive


def test_the_papers_own_table_gives_the_papers_own_sentences() -> None:
    found = derive({key: tuple(row) for key, row in paper.facts()["table2"].items()})
    claims = paper.facts()["claims"]
    assert found.others == 14
    assert found.mean_accuracy == pytest.approx(0.82507, abs=5e-6)
    assert found.over_mean == pytest.approx(claims["accuracy_gain_over_mean_of_14_rows"], abs=5e-4)
    assert found.over_mean == pytest.approx(0.03493, abs=5e-6)
    assert found.over_baseline == pytest.approx(0.039)
    assert found.mean_rounds == pytest.approx(358.57, abs=0.005)
    assert found.fewer_rounds == pytest.approx(claims["round_reduction_over_mean_with_never_as_500"], abs=5e-4)
    assert found.times_faster == pytest.approx(claims["times_faster_than_fedavg_to_82"], abs=5e-3)


def test_rows_that_never_get_there() -> None:
    table = {"fedavg": (0.7, 1.0, None), "ida": (0.6, 1.2, 100), "fedgs": (0.8, 0.5, 50)}
    found = derive(table, never=200)
    assert (found.mean_rounds, found.fewer_rounds, found.times_faster) == (150, pytest.approx(2 / 3), None)
    table["fedgs"] = (0.8, 0.5, None)
    assert derive(table).fewer_rounds is None


def test_families_by_their_least_and_most() -> None:
    families = {"fedadam": "FedOpt", "fedavgm": "FedOpt", "cgau": "CGAU"}
    found = by_family({"fedadam": 0.029, "fedavgm": 0.017, "cgau": -0.01}, families)
    assert found == {"FedOpt": (0.017, 0.029), "CGAU": (-0.01, -0.01)}
