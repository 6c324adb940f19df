"""A page of HTML from Markdown that needs nothing beside it: pictures and style are inside, no script, no network.

Light and dark follow the reader's system; on paper it is black on white; on a telephone wide tables scroll by
themselves.
"""

import base64
import re
from html import escape
from importlib.resources import files
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

from reproduction.figures.canvas import for_page

if TYPE_CHECKING:
    from collections.abc import Sequence

    from markdown_it import MarkdownIt
    from markdown_it.token import Token

PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>{title}</title>
<style>
{style}</style>
</head>
<body>
<nav aria-label="Contents"><ul>
{contents}
</ul></nav>
<main>
{body}</main>
</body>
</html>
"""


def page(markdown: str, folder: Path) -> str:
    """Return the page; pictures are looked up from ``folder`` on, an SVG beside a PNG is preferred."""
    parser = _parser(folder)
    tokens = parser.parse(markdown)
    headings = _name_headings(tokens)
    body = parser.renderer.render(tokens, parser.options, {})
    body = body.replace("<table>", '<div class="table" tabindex="0"><table>').replace("</table>", "</table></div>")
    style = files("reproduction.report").joinpath("page.css").read_text(encoding="utf-8")
    contents = "\n".join(
        f'<li><a href="#{name}">{escape(title)}</a></li>' for level, name, title in headings if level == "h2"
    )
    title = next((title for level, _, title in headings if level == "h1"), "fedgs")
    return PAGE.format(title=escape(title), style=style, contents=contents, body=body)


def _parser(folder: Path) -> "MarkdownIt":
    from markdown_it import MarkdownIt

    parser = MarkdownIt("commonmark", {"html": False}).enable("table")

    def image(renderer: Any, tokens: "Sequence[Token]", index: int, options: Any, env: Any) -> str:
        source, caption = str(tokens[index].attrs["src"]), tokens[index].content
        words = escape(caption)
        picture = _picture(folder / source)
        return f'<figure role="img" aria-label="{words}">{picture}<figcaption>{words}</figcaption></figure>'

    parser.add_render_rule("image", image)
    return parser


def _name_headings(tokens: "Sequence[Token]") -> list[tuple[str, str, str]]:
    """Give every heading a name to link to; return level, name and text of each."""
    found: list[tuple[str, str, str]] = []
    for opening, inline in pairwise(tokens):
        if opening.type == "heading_open":
            name = re.sub(r"[^a-z0-9]+", "-", inline.content.lower()).strip("-")
            opening.attrs["id"] = name
            found.append((opening.tag, name, inline.content))
    return found


def _picture(path: Path) -> str:
    vector = path.with_suffix(".svg")
    if vector.is_file():
        return for_page(vector.read_text(encoding="utf-8"), path.stem)
    content = base64.b64encode(path.read_bytes()).decode()
    return f'<img alt="" src="data:image/png;base64,{content}">'
