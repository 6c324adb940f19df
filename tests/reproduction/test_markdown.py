"""Numbers as people write them."""

from hypothesis import given
from hypothesis import strategies as st

from reproduction.report.markdown import percent, plural, points, rounds, signed, table, with_range


def test_by_hand() -> None:
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
