"""Parts of the site that are made from the package: all settings, all commands, pictures of mermaid graphs.

MkDocs calls the functions whose names begin with ``on_``. A page asks for a part with a comment: ``<!-- settings -->``.
"""

import re
from itertools import count
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files
from pydantic import BaseModel

from fedgs.settings_list import nested_models, settings_rows

ROOT = Path(__file__).parents[1]
ROLE = re.compile(r":(?:mod|class|func|meth|data):(<code>)[~.]?")
"""Sphinx's roles in docstrings, as Markdown renders them."""
OUTSIDE = re.compile(r"\[([^\]]*)\]\((?:\.\./)+(?:benchmarks|deploy|examples|results|src|tests)/[^)]*\)")
"""Links to files of the repository that are no pages: a link where the repository is shown, plain text on the site."""
FIGURE = re.compile(r"\((?:\.\./)+(results/[\w-]+/figures/([\w-]+\.png))\)")
"""Pictures of the results; the site gets a copy of each that a page shows."""
GRAPH = re.compile(r"^```mermaid\n.*?^```\n", flags=re.MULTILINE | re.DOTALL)


def on_files(files: Files, config: Any, **_: Any) -> Files:
    """Add the pictures of the results that pages show."""
    for page in list(files.documentation_pages()):
        for path, name in FIGURE.findall(page.content_string):
            if files.get_file_from_path(f"images/{name}") is None:
                files.append(File.generated(config, f"images/{name}", abs_src_path=str(ROOT / path)))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Fill in the parts that a page asks for; a mermaid graph becomes the picture that lies in images/."""
    if "<!-- settings -->" in markdown:
        from fedgs.settings import PlannerSettings

        markdown = markdown.replace("<!-- settings -->", settings_tables(PlannerSettings))
    if "<!-- commands -->" in markdown:
        markdown = markdown.replace("<!-- commands -->", command_tables())
    up = "../" * page.file.src_uri.count("/")
    markdown = FIGURE.sub(rf"({up}images/\2)", markdown)
    markdown = OUTSIDE.sub(r"\1", markdown)
    name = page.file.src_uri.removesuffix(".md").rpartition("/")[2]
    number = count(1)
    return GRAPH.sub(lambda _: f"![]({up}images/{name}-{next(number)}.svg)\n", markdown)


def on_page_content(html: str, **_: Any) -> str:
    """Remove the roles of Sphinx from docstrings."""
    return ROLE.sub(r"\1", html)


def settings_tables(model: type[BaseModel]) -> str:
    """Return a table for each section of the settings: key, default, allowed values, meaning."""
    sections: dict[str, list[str]] = {}
    notes: dict[str, str] = {}
    for row in settings_rows(model):
        default = row.default if row.default in ("a section", "not set") else f"`{row.default}`"
        meaning = row.meaning.replace("|", "\\|")
        sections.setdefault(row.section, []).append(f"| `{row.key}` | {default} | {row.values} | {meaning} |")
    for section, nested in nested_models(model):
        notes[section] = (nested.__doc__ or "").strip().partition("\n")[0]
    text = []
    for section, rows in sections.items():
        text += [f"## {section or 'top level'}", "", notes.get(section, ""), ""]
        text += ["| key | default | values | meaning |", "| --- | --- | --- | --- |", *rows, ""]
    return "\n".join(text)


def command_tables() -> str:
    """Return every command with its usage, arguments and options."""
    import click
    from typer.main import get_command

    from fedgs.cli import app

    text: list[str] = []

    def add(command: click.Command, name: str) -> None:
        if isinstance(command, click.Group):
            for key, nested in command.commands.items():
                add(nested, f"{name} {key}")
            return
        text.extend([f"## {name}", "", (command.help or "").strip(), ""])
        rows = [row for parameter in command.params if (row := parameter_row(parameter))]
        if rows:
            text.extend(["| option | default | meaning |", "| --- | --- | --- |", *rows, ""])

    def parameter_row(parameter: click.Parameter) -> str | None:
        if parameter.name in ("help", "show_completion", "install_completion"):
            return None
        names = " ".join(f"`{option}`" for option in (*parameter.opts, *parameter.secondary_opts))
        if isinstance(parameter, click.Argument):
            names = f"`{parameter.make_metavar(click.Context(click.Command('')))}`"
        default = "" if parameter.default in (None, False, ...) or parameter.required else f"`{parameter.default}`"
        meaning = (getattr(parameter, "help", None) or "").replace("|", "\\|")
        return f"| {names} | {'required' if parameter.required else default} | {meaning} |"

    add(get_command(app), "fedgs")
    return "\n".join(text)
