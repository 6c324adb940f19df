"""The arithmetic behind the report, by hand: the claims of the paper, what a curve comes to, numbers as text."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reproduction.experiments import paper
from reproduction.experiments.jobs import Result
from reproduction.experiments.runs import at_round, collapse, last_quarter, last_ten, late_tests, mean_of, round_of
from reproduction.report.markdown import percent, plural, points, rounds, signed, table, with_range
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


def curve(rounds: list[int], accuracy: list[float]) -> Result:
    return {"curve": {"round": rounds, "accuracy": accuracy}, "settings": {"training": {"rounds": rounds[-1]}}}


def test_late_tests_leave_the_untrained_model_out() -> None:
    few = curve([0, 10, 20], [0.0, 0.4, 0.6])
    assert last_ten(few) == pytest.approx(0.5)
    many = curve(list(range(0, 81, 2)), [number / 100 for number in range(0, 81, 2)])
    assert last_ten(many) == pytest.approx(0.71)  # rounds 62 to 80
    assert last_quarter(many) == last_ten(many)
    assert late_tests(many) == 10
    long_rounds = curve(list(range(21)), [number / 100 for number in range(21)])
    assert last_quarter(long_rounds) == pytest.approx(0.18)  # rounds 16 to 20


def test_rounds_and_targets() -> None:
    run = curve([0, 5, 10], [0.9, 0.3, 0.8])
    assert at_round(run, 10) == 0.8
    assert at_round(run, 7) is None
    assert round_of(run, 0.8) == 10  # not round 0
    assert round_of(run, 0.85) is None
    assert mean_of([None, 1.0, 2.0]) == 1.5
    assert mean_of([None]) is None


def test_a_fall_is_a_loss_of_more_than_half() -> None:
    assert collapse(curve([0, 1, 2, 3, 4], [0.9, 0.3, 0.8, 0.41, 0.7])) is None  # round 0 never counts
    assert collapse(curve([0, 1, 2, 3, 4], [0.0, 0.8, 0.39, 0.8, 0.1])) == (0.8, 0.39)
    assert collapse(curve([0, 1, 2], [0.0, 0.06, 0.02])) is None  # nothing was learnt that could be lost


def test_numbers_as_people_write_them() -> None:
    assert percent(0.8541) == "85.4\u00a0%"
    assert percent(None) == "–"
    assert points(0.0349) == "+3.5"
    assert points(-0.0351, 2) == "−3.51"
    assert signed(-0.04) == "0.0"  # no sign of nothing
    assert rounds([None, 147.5]) == "×, 147.5"
    assert with_range([0.854, 0.856]) == "85.5\u00a0% (85.4–85.6)"
    assert with_range([0.854]) == "85.4\u00a0%"
    assert with_range([]) == "–"
    assert (plural(1, "seed"), plural(2, "seed")) == ("1 seed", "2 seeds")
    assert table(["x", "y"], [["a|b", "1"]]) == "| x | y |\n| :-- | --: |\n| a\\|b | 1 |"


@given(st.floats(-1000, 1000))
def test_signs_tell_the_truth(value: float) -> None:
    text = signed(value, 2).replace("−", "-")
    assert abs(float(text) - value) <= 0.005 + 1e-9
