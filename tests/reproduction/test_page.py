"""The page needs nothing beside it; figures grow where their words need room."""

import re
import struct
import warnings
from html.parser import HTMLParser
from pathlib import Path

import pytest
from matplotlib.figure import Figure

from reproduction.figures import canvas
from reproduction.report.html import page

VOID = {"meta", "br", "hr", "img", "link", "input"}


class Balanced(HTMLParser):
    """Tags are closed in the order they were opened."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.ids: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.ids += [value for name, value in attrs if name == "id" and value is not None]
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.ids += [value for name, value in attrs if name == "id" and value is not None]

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def read(html: str) -> Balanced:
    parser = Balanced()
    parser.feed(html)
    assert parser.open == []
    return parser


def draw(folder: Path, name: str) -> None:
    canvas.draw(folder, name, (3, 2), lambda figure: figure.add_subplot().plot([0, 1], [0, 1], label="line") and None)


def test_pictures_and_style_are_inside(tmp_path: Path) -> None:
    draw(tmp_path, "a")
    draw(tmp_path, "b")
    text = "# Title & co\n\n## First job\n\n![a <line>](a.png)\n\n![the same](b.png)\n\n"
    text += "| x | y |\n| :-- | --: |\n| 1 | 2 |\n"
    html = page(text, tmp_path)
    found = read(html)
    assert len(found.ids) == len(set(found.ids))
    assert "<title>Title &amp; co</title>" in html
    assert '<a href="#first-job">First job</a>' in html
    assert "first-job" in found.ids
    assert "a &lt;line&gt;" in html
    assert '<div class="table" tabindex="0"><table>' in html
    assert "prefers-color-scheme: dark" in html
    assert "@media print" in html
    assert not re.search(r'(?:src|href)="(?!#|data:)', html.replace('xlink:href="#', ""))
    assert "<script" not in html
    for used in re.findall(r'(?:url\(#|href="#)([^")]+)', html):
        assert used in found.ids, used


def test_pictures_take_the_pages_ink(tmp_path: Path) -> None:
    draw(tmp_path, "a")
    svg = (tmp_path / "a.svg").read_text()
    assert canvas.INK in svg
    inside = canvas.for_page(svg, "a")
    assert inside.startswith("<svg")
    assert canvas.INK not in inside
    assert canvas.PAPER not in inside
    assert "currentColor" in inside


def test_pictures_are_the_same_every_time(tmp_path: Path) -> None:
    draw(tmp_path / "one", "a")
    draw(tmp_path / "two", "a")
    for kind in ("png", "svg"):
        assert (tmp_path / f"one/a.{kind}").read_bytes() == (tmp_path / f"two/a.{kind}").read_bytes()


def test_a_png_alone_is_put_inside_too(tmp_path: Path) -> None:
    draw(tmp_path, "a")
    (tmp_path / "a.svg").unlink()
    assert 'src="data:image/png;base64,' in page("![a](a.png)", tmp_path)


def test_markdown_cannot_bring_tags(tmp_path: Path) -> None:
    assert "<b onclick" not in page("<b onclick=x>bold</b>", tmp_path)


@pytest.mark.parametrize(("name", "grows"), [("short", False), ("a name that takes much room " * 2, True)])
def test_a_figure_grows_where_names_leave_no_room(tmp_path: Path, name: str, grows: bool) -> None:
    def paint(figure: Figure) -> None:
        figure.add_subplot().set_yticks([0], [name])

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        png, _ = canvas.draw(tmp_path, "x", (2.4, 1.6), paint)
    width, height = struct.unpack(">II", png.read_bytes()[16:24])
    assert (width > 360, height > 240) == (grows, grows)


def test_other_warnings_are_not_kept_back(tmp_path: Path) -> None:
    def paint(figure: Figure) -> None:
        warnings.warn("something else", UserWarning, stacklevel=1)

    with pytest.raises(UserWarning, match="something else"):
        canvas.draw(tmp_path, "x", (2, 2), paint)
    assert list(tmp_path.iterdir()) == []
