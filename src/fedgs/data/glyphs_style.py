"""How a camera of the ``glyphs`` data set sees: one style per camera, drawn once.

Lengths are pixels of the 28×28 image, grey values 0 (ink) to 255 (paper).
"""

from dataclasses import dataclass

import numpy as np

FONTS = (
    "DejaVuSans",
    "DejaVuSans-Bold",
    "DejaVuSans-Oblique",
    "DejaVuSans-BoldOblique",
    "DejaVuSansMono",
    "DejaVuSansMono-Bold",
    "DejaVuSansMono-Oblique",
    "DejaVuSansMono-BoldOblique",
    "DejaVuSerif",
    "DejaVuSerif-Bold",
    "DejaVuSerif-Italic",
    "DejaVuSerif-BoldItalic",
    "STIXGeneral",
    "STIXGeneralBol",
    "STIXGeneralItalic",
    "STIXGeneralBolIta",
    "cmr10",
    "cmb10",
    "cmss10",
    "cmtt10",
    "cmti10",
)
"""The fonts of matplotlib that draw all 62 characters. Its cmmi10 has old-style digits, and cmsy10, cmex10
and LastResort answer for letters with symbols."""


@dataclass(frozen=True)
class Style:
    """A camera's print and optics. What varies from sample to sample varies around these."""

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
