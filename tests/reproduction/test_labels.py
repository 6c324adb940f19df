"""Words in pictures lie over nothing, and pictures that have no room for their words grow."""

import struct
import warnings
from itertools import combinations
from pathlib import Path

import pytest
from matplotlib.figure import Figure
from matplotlib.text import Annotation

from reproduction.figures.canvas import draw
from reproduction.figures.labels import place_labels


def test_labels_of_points_that_lie_close_together_do_not_overlap() -> None:
    figure = Figure(figsize=(4, 3), layout="constrained")
    axes = figure.add_subplot()
    points = [(0.1, 0.1), (0.9, 0.5), (0.9, 0.52), (0.905, 0.54), (0.9, 0.56)]
    axes.plot(*zip(*points, strict=True), "o-")
    figure.draw_without_rendering()
    place_labels(axes, [(f"V = {place}", point, "red") for place, point in enumerate(points)])
    figure.draw_without_rendering()
    words = [child for child in axes.get_children() if isinstance(child, Annotation)]
    assert sorted(word.get_text() for word in words) == [f"V = {place}" for place in range(5)]
    boxes = [word.get_window_extent() for word in words]
    assert not any(one.overlaps(other) for one, other in combinations(boxes, 2))
    for x, y in axes.transData.transform(points):
        assert not any(box.contains(x, y) for box in boxes)


def test_without_a_free_place_a_label_is_written_all_the_same() -> None:
    figure = Figure(figsize=(1, 1))
    axes = figure.add_subplot()
    axes.plot([0, 1], [0, 1], "o")
    place_labels(axes, [("a long name " * 9, (0, 0), "red"), ("b", (0, 0), "red")])
    assert len([child for child in axes.get_children() if isinstance(child, Annotation)]) == 2


@pytest.mark.parametrize(("name", "grows"), [("short", False), ("a name that takes much room " * 2, True)])
def test_a_picture_grows_where_names_leave_no_room(tmp_path: Path, name: str, grows: bool) -> None:
    def paint(figure: Figure) -> None:
        figure.add_subplot().set_yticks([0], [name])

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        png, _ = draw(tmp_path, "x", (2.4, 1.6), paint)
    width, height = struct.unpack(">II", png.read_bytes()[16:24])
    assert (width > 360, height > 240) == (grows, grows)


def test_other_warnings_are_not_kept_back(tmp_path: Path) -> None:
    def paint(figure: Figure) -> None:
        warnings.warn("something else", UserWarning, stacklevel=1)

    with pytest.raises(UserWarning, match="something else"):
        draw(tmp_path, "x", (2, 2), paint)
    assert list(tmp_path.iterdir()) == []
