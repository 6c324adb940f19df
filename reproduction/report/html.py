"""The report as one HTML file: pictures and style are inside, no script, no network.

Light and dark follow the reader's system; print is black on white; on a phone wide tables scroll by themselves. The
page is the template ``page.html.j2`` around the report's Markdown.
"""

import base64
import re
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined, select_autoescape
from markdown_it import MarkdownIt
from markdown_it.token import Token
from markupsafe import Markup

from reproduction.figures.canvas import for_page

TEMPLATES = Environment(
    loader=PackageLoader("reproduction.report"),
    autoescape=select_autoescape(["html.j2"]),
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)


def page(markdown: str, folder: Path) -> str:
    """Return the page; pictures are looked up from ``folder`` on, an SVG beside a PNG is preferred."""
    figure = TEMPLATES.get_template("figure.html.j2")
    parser = MarkdownIt("commonmark", {"html": False}).enable("table")

    def image(renderer: Any, tokens: Sequence[Token], index: int, options: Any, env: Any) -> str:
        picture = _picture(folder / str(tokens[index].attrs["src"]))
        return figure.render(caption=tokens[index].content, picture=picture)

    parser.add_render_rule("image", image)
    tokens = parser.parse(markdown)
    headings = _name_headings(tokens)
    return TEMPLATES.get_template("page.html.j2").render(
        title=next((text for level, _, text in headings if level == "h1"), "fedgs"),
        contents=[(name, text) for level, name, text in headings if level == "h2"],
        body=Markup(parser.renderer.render(tokens, parser.options, {})),
    )


def _name_headings(tokens: Sequence[Token]) -> list[tuple[str, str, str]]:
    """Give every heading a name to link to; return level, name and text of each."""
    found: list[tuple[str, str, str]] = []
    for opening, inline in pairwise(tokens):
        if opening.type == "heading_open":
            name = re.sub(r"[^a-z0-9]+", "-", inline.content.lower()).strip("-")
            opening.attrs["id"] = name
            found.append((opening.tag, name, inline.content))
    return found


def _picture(path: Path) -> Markup:
    vector = path.with_suffix(".svg")
    if vector.is_file():
        return Markup(for_page(vector.read_text(encoding="utf-8"), path.stem))
    content = base64.b64encode(path.read_bytes()).decode()
    return Markup(f'<img alt="" src="data:image/png;base64,{content}">')
