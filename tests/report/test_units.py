import pytest

from fedgs.report.units import readable_bytes, readable_duration


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(0, "0 s"), (0.0012, "1.2 ms"), (0.9999, "1 s"), (90, "90 s"), (119, "119 s"), (120, "2 min"), (750, "12.5 min"),
     (7200, "2 h"), (100_000, "27.8 h"), (200_000, "2.31 d"), (1e9, "11,574 d")],
)  # fmt: skip
def test_durations(seconds: float, words: str) -> None:
    assert readable_duration(seconds) == words


@pytest.mark.parametrize(
    ("amount", "words"),
    [(0, "0 B"), (999, "999 B"), (1000, "1 kB"), (26_414_840, "26.4 MB"), (999_999, "1 MB"), (1.32e12, "1.32 TB"),
     (5e18, "5,000 PB")],
)  # fmt: skip
def test_amounts(amount: float, words: str) -> None:
    assert readable_bytes(amount) == words
