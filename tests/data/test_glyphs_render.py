import unicodedata
from dataclasses import replace
from pathlib import Path

import matplotlib
import numpy as np
import pytest
from matplotlib.ft2font import FT2Font
from scipy.ndimage import map_coordinates

from fedgs.data.glyphs_render import CELL, FONTS, Style, _interpolate, draw_style, face, render
from fedgs.data.glyphs_words import CHARACTERS
from fedgs.rng import stream

PLAIN = Style(
    font="DejaVuSans", size=18, crop=1, slant=0, tilt=0, stretch=0, weight=0, blur=0.5, ink=0, paper=255, noise=0,
    light=(0, 0), crowding=0, wear=0,
)  # fmt: skip


def pictures(character: str, style: Style, count: int = 200, right: str = "") -> np.ndarray:
    """How much ink (0 to 255) lies where in pictures of one character."""
    labels = np.full(count, CHARACTERS.index(character), np.uint8)
    none = np.full(count, -1)
    after = np.full(count, CHARACTERS.index(right)) if right else none
    return 255.0 - render(labels, none, after, style, stream(0, "test"))


def box_heights(made: np.ndarray) -> np.ndarray:
    return (made.max(axis=2) > 100).sum(axis=1)


def middle_column(rows: np.ndarray) -> float:
    return float((rows.mean(axis=(0, 1)) * np.arange(28)).sum() / rows.mean(axis=(0, 1)).sum())


@pytest.mark.parametrize("font", FONTS)
def test_a_font_draws_every_character_itself(font: str) -> None:
    file = FT2Font(str(Path(matplotlib.get_data_path(), "fonts", "ttf", f"{font}.ttf")))
    for character in CHARACTERS:
        name = unicodedata.name(character).removeprefix("DIGIT ").lower() if character.isdigit() else character
        assert file.get_glyph_name(file.get_char_index(ord(character))) == name
    drawn = face(font)
    assert drawn.fields.shape == (62, CELL, CELL)
    assert len(np.unique(drawn.fields.reshape(62, -1) > 0, axis=0)) == 62
    # Digits are as tall as capitals, and no glyph touches the border of its field.
    assert np.all(drawn.heights[:36] > 0.5 * 64)
    assert drawn.fields[:, [0, -1], :].max() < -4
    assert drawn.fields[:, :, [0, -1]].max() < -4


def test_a_field_holds_the_distance_to_the_edge_of_the_ink() -> None:
    stem = face("DejaVuSans")
    index = CHARACTERS.index("l")  # a plain bar
    row = stem.fields[index, CELL // 2]
    width = int(stem.widths[index])
    inside = np.flatnonzero(row > 0)
    assert len(inside) == width
    assert row[inside[0] - 3 : inside[0] + 2].tolist() == [-2.5, -1.5, -0.5, 0.5, 1.5]
    assert stem.middles[index] == pytest.approx(stem.heights[index] / 2, abs=0.6)  # it stands on the baseline


def test_interpolation_is_bilinear() -> None:
    fields = face("cmr10").fields
    draw = stream(0, "points")
    labels = draw.integers(62, size=5)
    x, y = (draw.uniform(0, CELL - 1.01, (5, 28, 28)).astype(np.float32) for _ in range(2))
    found = _interpolate(fields, labels, x, y)
    for sample, label in enumerate(labels):
        expected = map_coordinates(fields[label], [y[sample], x[sample]], order=1)
        assert found[sample] == pytest.approx(expected, abs=1e-3)
    far = np.full((1, 28, 28), 1e6, np.float32)
    assert np.all(_interpolate(fields, labels[:1], far, -far) < -4)


def test_cropping_makes_case_pairs_alike_and_a_baseline_keeps_them_apart() -> None:
    for pair in ("Cc", "Oo", "Ss", "Vv", "Ww", "Xx", "Zz"):
        capital, small = (box_heights(pictures(character, PLAIN)).mean() for character in pair)
        assert small == pytest.approx(capital, rel=0.12)
        kept = replace(PLAIN, crop=0)
        capital, small = (box_heights(pictures(character, kept)).mean() for character in pair)
        assert small < 0.85 * capital


def test_without_cropping_letters_stand_on_the_line() -> None:
    kept = replace(PLAIN, crop=0)
    lowest = {c: (27 - np.argmax(pictures(c, kept).max(axis=2)[:, ::-1] > 100, axis=1)).mean() for c in "Hxp"}
    assert lowest["H"] == pytest.approx(lowest["x"], abs=0.5)
    # A capital of 13.5 pixels; DejaVu's descender is 0.29 of its capitals.
    assert lowest["p"] - lowest["x"] == pytest.approx(0.29 * 13.5, abs=0.7)


def test_slant_leans_to_the_right_and_tilt_turns_clockwise() -> None:
    for style in (replace(PLAIN, slant=0.4), replace(PLAIN, tilt=0.4)):
        made = pictures("l", style)
        assert middle_column(made[:, 6:12]) > middle_column(made[:, 16:22]) + 2
    upright = pictures("l", PLAIN)
    assert abs(middle_column(upright[:, 6:12]) - middle_column(upright[:, 16:22])) < 0.7


@pytest.mark.parametrize(
    ("more", "less"),
    [
        ({"weight": 0.5}, {"weight": -0.2}),
        ({"size": 20}, {"size": 14}),
        ({"ink": 0}, {"ink": 110}),
        ({"wear": 0}, {"wear": 1}),
        ({"paper": 200}, {"paper": 255}),
    ],
)
def test_each_setting_moves_the_grey_its_way(more: dict[str, float], less: dict[str, float]) -> None:
    assert pictures("B", replace(PLAIN, **more)).mean() > 1.03 * pictures("B", replace(PLAIN, **less)).mean()


def test_stretch_makes_wide_print() -> None:
    wide, narrow = (pictures("O", replace(PLAIN, stretch=stretch)) for stretch in (0.2, -0.2))
    ratios = [(made.max(axis=1) > 100).sum() / (made.max(axis=2) > 100).sum() for made in (wide, narrow)]
    # exp(2 · 0.2) wide to high against exp(−2 · 0.2)
    assert ratios[0] / ratios[1] == pytest.approx(np.exp(0.8), rel=0.1)


def test_blur_softens_and_noise_roughens() -> None:
    sharp, soft = (pictures("H", replace(PLAIN, blur=blur)) for blur in (0.4, 1.5))
    assert np.abs(np.diff(soft, axis=2)).max() < np.abs(np.diff(sharp, axis=2)).max()
    grey = replace(PLAIN, paper=128, noise=10)
    corners = pictures("l", grey)[:, :4, :4]
    assert corners.std() == pytest.approx(10, rel=0.15)


def test_light_falls_off_to_the_side_it_says() -> None:
    made = pictures("l", replace(PLAIN, light=(0.2, 0)))
    assert made[:, :, -3:].mean() > made[:, :, :3].mean() + 30


def test_a_neighbour_reaches_in_from_its_side() -> None:
    alone, crowded = pictures("H", PLAIN), pictures("H", replace(PLAIN, crowding=1), right="M")
    assert crowded[:, :, -4:].mean() > alone[:, :, -4:].mean() + 10
    assert crowded[:, :, :3].mean() == pytest.approx(alone[:, :, :3].mean(), abs=1)


def test_styles_are_drawn_within_what_a_reader_can_read() -> None:
    drawn = [draw_style(stream(0, device)) for device in range(300)]
    assert {style.font for style in drawn} == set(FONTS)
    assert all(style.paper - style.ink >= 100 for style in drawn)
    assert all(0.5 <= style.crop <= 1 for style in drawn)
