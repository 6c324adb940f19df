from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedgs.data.glyphs_words import (
    BUSY_SHARES,
    CHARACTERS,
    DESTINATIONS,
    LINE_SHARES,
    LINES,
    Camera,
    draw_camera,
    labels_and_neighbours,
    read,
)  # fmt: skip
from fedgs.rng import stream

ALLOWED = {"digits": CHARACTERS[:10], "caps": CHARACTERS[10:36], "codes": CHARACTERS[:36], "mixed": CHARACTERS}


def test_a_singapore_camera_sees_the_letters_of_singapore() -> None:
    words = read(Camera("caps", ("Singapore",), codes=0), 18, stream(0, "test"))
    assert words == ["SINGAPORE", "SINGAPORE"]
    labels, _, _ = labels_and_neighbours(words)
    counts = np.bincount(labels, minlength=62)
    # S 28, I 18, N 23, G 16, A 10, P 25, O 24, R 27, E 14: twice each, and nothing else.
    assert np.flatnonzero(counts).tolist() == [10, 14, 16, 18, 23, 24, 25, 27, 28]
    assert counts.max() == 2
    assert counts.sum() == 18


def test_what_a_line_writes() -> None:
    words = read(Camera("mixed", ("Singapore",), zone="049", codes=0), 28, stream(0, "test"))
    assert words[0] == words[2] == "Singapore"
    assert words[1].startswith("049")
    assert len(words[1]) == len(words[3]) == 5
    words = read(Camera("codes", ("Riga",), zone="31", owners=("XYZU",)), 110, stream(0, "test"))
    assert words[0] == "XYZU"
    assert words[1].startswith("31")
    assert len(words[1]) == 7
    assert "RIGA" in words


def test_the_first_destination_leads() -> None:
    words = read(Camera("caps", ("Oslo", "Riga", "Kobe"), codes=0), 40_000, stream(0, "test"))
    counts = Counter(words)
    # Zipf over three: 6/11, 3/11, 2/11 of 10,000 words; four standard deviations are at most 200.
    assert counts["OSLO"] == pytest.approx(5455, abs=200)
    assert counts["RIGA"] == pytest.approx(2727, abs=200)
    assert counts["KOBE"] == pytest.approx(1818, abs=200)


def test_neighbours_stay_within_the_word() -> None:
    labels, left, right = labels_and_neighbours(["aB", "7", "0z"])
    assert labels.tolist() == [36, 11, 7, 0, 61]
    assert left.tolist() == [-1, 36, -1, -1, 0]
    assert right.tolist() == [11, -1, -1, 61, -1]


@given(line=st.sampled_from(LINES), samples=st.integers(1, 400), seed=st.integers(0, 10**9))
def test_a_camera_reads_exactly_so_many_characters_of_its_line(line: str, samples: int, seed: int) -> None:
    camera = draw_camera(line, stream(seed, "camera"))
    text = "".join(read(camera, samples, stream(seed, "words")))
    assert len(text) == samples
    assert set(text) <= set(ALLOWED[line])


def test_destinations_are_plain_names_with_every_letter() -> None:
    assert len(set(DESTINATIONS)) == len(DESTINATIONS) > 120
    assert "Singapore" in DESTINATIONS
    assert all(name.isascii() and name.isalpha() and name == name.capitalize() for name in DESTINATIONS)
    assert set("".join(DESTINATIONS).upper()) == set(CHARACTERS[10:36])
    assert len(LINES) == len(LINE_SHARES) == len(BUSY_SHARES)
    assert sum(LINE_SHARES) == pytest.approx(1)
