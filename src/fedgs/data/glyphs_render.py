"""From characters to pictures for the ``glyphs`` data set, as each camera sees them: one style per camera, drawn once.

Every (font, character) is drawn once, large and unhinted, by the FreeType that matplotlib carries, and kept as a
signed distance field: how far a point lies inside the ink. A sample is that field seen through an affine map.
Adding to the field before it is cut into ink and paper makes the print bolder or thinner, so slant,
rotation, size, weight and sharp edges all come from one interpolation for all samples of a camera at once.

Nothing depends on the fonts of the machine. The maps use exp, sin and cos, and the blur is scipy's: another processor
may in rare cases round a pixel the other way.
"""

from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fedgs.data.characters import CHARACTERS

SIDE = 28
EM = 64
"""Pixels of the em square at which a font is drawn once; about three to one pixel of a sample."""
CELL = 96
"""Side of a distance field: the widest glyph (W in bold) and a margin."""

FONTS = (
    "DejaVuSans", "DejaVuSans-Bold", "DejaVuSans-Oblique", "DejaVuSans-BoldOblique", "DejaVuSansMono",
    "DejaVuSansMono-Bold", "DejaVuSansMono-Oblique", "DejaVuSansMono-BoldOblique", "DejaVuSerif", "DejaVuSerif-Bold",
    "DejaVuSerif-Italic", "DejaVuSerif-BoldItalic", "STIXGeneral", "STIXGeneralBol", "STIXGeneralItalic",
    "STIXGeneralBolIta", "cmr10", "cmb10", "cmss10", "cmtt10", "cmti10",
)  # fmt: skip
"""The fonts of matplotlib that draw all 62 characters. Its cmmi10 has old-style digits, and cmsy10, cmex10
and LastResort answer for letters with symbols."""
Floats = NDArray[np.float32]


@dataclass(frozen=True)
class Style:
    """A camera's print and optics. What varies from sample to sample varies around these.

    Lengths are pixels of the 28×28 image, grey values 0 (ink) to 255 (paper).
    """

    font: str
    size: float
    """The longer side of a cropped character; in an uncropped line of text a capital has three quarters of it."""
    crop: float
    """How often the segmenter scales a character to its own box, which hides the difference of C and c."""
    slant: float
    """Shear: pixels to the right per pixel up."""
    tilt: float
    """Rotation in radians."""
    stretch: float
    """Logarithm of width over height, halved: condensed or wide print."""
    weight: float
    """How far the ink spreads (or, below 0, how thin it is)."""
    blur: float
    """Standard deviation of the lens's blur."""
    ink: float
    paper: float
    noise: float
    """Standard deviation of the sensor's noise, in grey values."""
    light: tuple[float, float]
    """Share of the paper's brightness lost from the middle to the right and to the lower border."""
    crowding: float
    """How often a neighbouring character reaches into the picture."""
    wear: float
    """How often a scratch takes some ink off."""


def draw_style(draw: np.random.Generator) -> Style:
    """Draw a camera's style."""
    return Style(
        font=FONTS[int(draw.integers(len(FONTS)))],
        size=draw.uniform(14, 21),
        crop=draw.uniform(0.8, 1),
        slant=draw.normal(0, 0.12),
        tilt=draw.normal(0, 0.07),
        stretch=draw.normal(0, 0.12),
        weight=draw.uniform(-0.1, 0.5),
        blur=draw.uniform(0.5, 1.5),
        ink=draw.uniform(0, 110),
        paper=draw.uniform(210, 255),
        noise=draw.uniform(3, 22),
        light=(draw.normal(0, 0.08), draw.normal(0, 0.08)),
        crowding=draw.uniform(0, 0.4),
        wear=draw.uniform(0, 0.4),
    )


@dataclass(frozen=True)
class Face:
    """One font: the distance fields of the 62 characters, each centred on its box, in pixels of the field."""

    fields: Floats
    """(62, CELL, CELL), positive in the ink."""
    widths: Floats
    heights: Floats
    middles: Floats
    """Height of each box's centre above the baseline."""


@cache
def face(font: str) -> Face:
    """Draw the 62 characters of one of matplotlib's own fonts."""
    import matplotlib
    from matplotlib.ft2font import FT2Font, LoadFlags
    from scipy.ndimage import distance_transform_edt

    drawer = FT2Font(str(Path(matplotlib.get_data_path(), "fonts", "ttf", f"{font}.ttf")))
    drawer.set_size(EM, 72)
    fields = np.empty((len(CHARACTERS), CELL, CELL), np.float32)
    sizes = np.empty((len(CHARACTERS), 2), np.float32)
    middles = np.empty(len(CHARACTERS), np.float32)
    for index, character in enumerate(CHARACTERS):
        drawer.set_text(character, 0.0, flags=LoadFlags.NO_HINTING)
        drawer.draw_glyphs_to_bitmap(antialiased=True)
        inked = np.asarray(drawer.get_image()) > 127
        rows, columns = np.flatnonzero(inked.any(axis=1)), np.flatnonzero(inked.any(axis=0))
        inked = inked[rows[0] : rows[-1] + 1, columns[0] : columns[-1] + 1]
        height, width = inked.shape
        top, left = (CELL - height) // 2, (CELL - width) // 2
        cell = np.zeros((CELL, CELL), bool)
        cell[top : top + height, left : left + width] = inked
        # A pixel's centre lies half a pixel from the border between it and its neighbour.
        fields[index] = np.where(cell, distance_transform_edt(cell) - 0.5, 0.5 - distance_transform_edt(~cell))
        sizes[index] = width, height
        glyph = drawer.load_char(ord(character), flags=LoadFlags.NO_HINTING)
        middles[index] = (glyph.horiBearingY - glyph.height / 2) / 64
    return Face(fields, sizes[:, 0], sizes[:, 1], middles)


def render(
    labels: NDArray[np.uint8],
    left: NDArray[np.int64],
    right: NDArray[np.int64],
    style: Style,
    draw: np.random.Generator,
) -> NDArray[np.uint8]:
    """Return one picture (28, 28) for every label; ``left`` and ``right`` are the neighbours' classes or -1."""
    seen = face(style.font)
    x, y, scale = _look(labels, seen, style, draw)
    depth = _interpolate(seen.fields, labels, x, y)
    _crowd(depth, labels, left, right, x, y, seen, style, draw)
    # Thinner than this and the hairlines of the serif fonts are gone: a blank picture is not a hard one.
    spread = np.maximum(draw.normal(style.weight, 0.22, len(labels)), -0.2)
    ink = np.clip(depth * _column(scale) + _column(spread + 0.5), 0, 1)
    _scratch(ink, style, draw)
    return _expose(ink, style, draw)


def _look(
    labels: NDArray[np.uint8], seen: Face, style: Style, draw: np.random.Generator
) -> tuple[Floats, Floats, NDArray[np.float64]]:
    """Return, for every pixel of every sample, the point of the character's field it looks at; and the scale."""
    count = len(labels)
    width, height = seen.widths[labels], seen.heights[labels]
    capital = float(seen.heights[CHARACTERS.index("H")])
    cropped = draw.random(count) < style.crop
    size = style.size * np.exp(draw.normal(0, 0.1, count))
    stretch = np.exp(draw.normal(style.stretch, 0.12, count))
    # An uncropped line needs room for p and g below it, so its capitals are smaller than a cropped character.
    scale = size / np.where(cropped, np.maximum(width * stretch, height / stretch), capital / 0.75)
    # Uncropped characters stand on a common baseline, half a capital's height below the middle.
    rise = np.where(cropped, 0, (seen.middles[labels] - capital / 2) * scale / stretch)
    tilt, slant = draw.normal(style.tilt, 0.08, count), draw.normal(style.slant, 0.1, count)
    centre_x = (SIDE - 1) / 2 + draw.normal(0, 1.3, count)
    centre_y = (SIDE - 1) / 2 + draw.normal(0, 1.3, count) - rise
    # The inverse of rotation · shear · stretch, applied to the offset from the character's centre.
    cosine, sine = np.cos(tilt), np.sin(tilt)
    across, down = 1 / (scale * stretch), stretch / scale
    offset_x = np.arange(SIDE, dtype=np.float32)[None, None, :] - _column(centre_x)
    offset_y = np.arange(SIDE, dtype=np.float32)[None, :, None] - _column(centre_y)
    x = _column(across * (cosine - slant * sine)) * offset_x + _column(across * (sine + slant * cosine)) * offset_y
    y = _column(-down * sine) * offset_x + _column(down * cosine) * offset_y
    # Boxes bulge and labels curl: a small quadratic bend, different in every sample.
    bend_x, bend_y = (_column(draw.normal(0, 0.0015, count)) for _ in range(2))
    x, y = x + bend_x * y * y, y + bend_y * x * x
    middle = np.float32((CELL - 1) / 2)
    return x + middle, y + middle, scale


def _interpolate(fields: Floats, labels: NDArray[np.uint8] | NDArray[np.int64], x: Floats, y: Floats) -> Floats:
    """Read the fields of the labels at (x, y), bilinearly; beyond a field's border its border counts."""
    x, y = np.clip(x, 0, CELL - 1.001), np.clip(y, 0, CELL - 1.001)
    column, row = x.astype(np.int32), y.astype(np.int32)
    x -= column
    y -= row
    corner = labels.astype(np.int32)[:, None, None] * (CELL * CELL) + row * CELL + column
    flat = fields.reshape(-1)
    above = flat.take(corner)
    above += x * (flat.take(corner + 1) - above)
    below = flat.take(corner + CELL)
    below += x * (flat.take(corner + CELL + 1) - below)
    above += y * (below - above)
    return above


def _crowd(
    depth: Floats,
    labels: NDArray[np.uint8],
    left: NDArray[np.int64],
    right: NDArray[np.int64],
    x: Floats,
    y: Floats,
    seen: Face,
    style: Style,
    draw: np.random.Generator,
) -> None:
    """Let the neighbour in the word reach into some pictures: the segmenter's cut was too wide."""
    count = len(labels)
    crowded, to_the_right = draw.random(count) < style.crowding, draw.random(count) < 0.5
    gap = draw.uniform(0.03, 0.2, count) * EM
    neighbours = np.where(to_the_right, right, left)
    which = np.flatnonzero(crowded & (neighbours >= 0))
    if len(which) == 0:
        return
    own, other = labels[which], neighbours[which]
    step = (seen.widths[own] + seen.widths[other]) / 2 + gap[which]
    shift_x = np.where(to_the_right[which], -step, step)
    shift_y = seen.middles[other] - seen.middles[own]
    reached = _interpolate(seen.fields, other, x[which] + _column(shift_x), y[which] + _column(shift_y))
    depth[which] = np.maximum(depth[which], reached)


def _scratch(ink: Floats, style: Style, draw: np.random.Generator) -> None:
    """Take the ink off along a straight scratch in some pictures."""
    count = len(ink)
    worn = np.flatnonzero(draw.random(count) < style.wear)
    angle = draw.uniform(0, np.pi, count)[worn]
    distance = draw.normal(0, 4, count)[worn]
    half_width, strength = draw.uniform(0.2, 1.3, count)[worn], draw.uniform(0.4, 1, count)[worn]
    offset = np.arange(SIDE, dtype=np.float32) - np.float32((SIDE - 1) / 2)
    away = _column(np.cos(angle)) * offset[None, None, :] + _column(np.sin(angle)) * offset[None, :, None]
    away = np.abs(away - _column(distance))
    ink[worn] *= 1 - _column(strength) * np.clip(_column(half_width + 0.5) - away, 0, 1)


def _expose(ink: Floats, style: Style, draw: np.random.Generator) -> NDArray[np.uint8]:
    """Blur, light and noise: the picture on the sensor."""
    from scipy.ndimage import gaussian_filter1d

    count = len(ink)
    blurred = ink
    for axis in (1, 2):
        blurred = gaussian_filter1d(blurred, style.blur, axis=axis, mode="nearest", truncate=3)
    focus = _column(draw.uniform(0, 0.5, count))
    fade = _column(draw.uniform(0.7, 1, count))
    ink = (blurred + focus * (ink - blurred)) * fade
    offset = np.linspace(-1, 1, SIDE, dtype=np.float32)
    light_x, light_y = (_column(draw.normal(light, 0.03, count)) for light in style.light)
    paper = np.float32(style.paper) * (1 - light_x * offset[None, None, :] - light_y * offset[None, :, None])
    picture = paper - ink * (paper - np.float32(style.ink))
    picture += np.float32(style.noise) * draw.standard_normal(picture.shape, dtype=np.float32)
    return np.clip(np.rint(picture), 0, 255).astype(np.uint8)


def _column(values: NDArray[np.floating]) -> Floats:
    """One number per sample, ready to meet (samples, rows, columns)."""
    return np.asarray(values, np.float32)[:, None, None]
