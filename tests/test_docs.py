"""README.md, docs/, deploy/: snippets run, commands and settings exist, links lead on, tables and graphs are complete.

The Python blocks of a page run one after the other, in one namespace and in an empty folder. A block that begins with
a comment with a file's name, such as ``# my_plant.py`` or ``# park.toml``, is written to that file instead.
"""

import ast
import hashlib
import re
import shlex
import sys
import tomllib
from importlib import import_module
from itertools import pairwise
from pathlib import Path
from typing import Any

import click
import matplotlib as mpl
import pytest
from typer.main import get_command
from typer.testing import CliRunner

import fedgs
from fedgs.algorithms import BASELINES, RULES
from fedgs.cli import app
from fedgs.config import load_settings
from fedgs.network import load_profile
from fedgs.settings import PlannerSettings

ROOT = Path(__file__).parents[1]
TEXT = {
    str(path.relative_to(ROOT)): path.read_text(encoding="utf-8")
    for path in (ROOT / "README.md", ROOT / "deploy/README.md", *sorted((ROOT / "docs").rglob("*.md")))
}
BLOCK = re.compile(r"^```(python|toml)\n(.*?)^```", flags=re.MULTILINE | re.DOTALL)
FILE = re.compile(r"# ([\w-]+\.(?:py|toml))\n")
COMMAND = re.compile(r"^    (?:\$ )?(fedgs [a-z].*)$", flags=re.MULTILINE)


@pytest.mark.parametrize("page", [page for page, text in TEXT.items() if "```python" in text])
def test_snippets_run(page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mpl.use("Agg")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    names: dict[str, Any] = {"__name__": "page"}
    before = set(sys.modules)
    try:
        for number, (kind, code) in enumerate(BLOCK.findall(TEXT[page])):
            if named := FILE.match(code):
                (tmp_path / named[1]).write_text(code, encoding="utf-8")
                monkeypatch.delitem(sys.modules, Path(named[1]).stem, raising=False)  # another test's file of this name
            elif kind == "python":
                exec(compile(code, f"{page}, block {number}", "exec"), names)
        for line in COMMAND.findall(re.sub(r"\\\n +", "", TEXT[page])):
            words = shlex.split(line.partition("  #")[0])[1:]
            if words[:1] == ["run"] and len(words) > 1 and Path(words[1]).is_file():
                assert CliRunner().invoke(app, words).exit_code == 0, line
        assert page != "README.md" or names["history"].metrics[-1]["accuracy"] > 0.9
    finally:
        for name in set(sys.modules) - before:
            if str(getattr(sys.modules[name], "__file__", "")).startswith(str(tmp_path)):
                del sys.modules[name]


@pytest.mark.parametrize("page", [page for page, text in TEXT.items() if "```toml" in text])
def test_settings_files_can_be_read(page: str, tmp_path: Path) -> None:
    for kind, code in BLOCK.findall(TEXT[page]):
        if kind == "toml":
            file = tmp_path / "file.toml"
            file.write_text(code, encoding="utf-8")
            if tomllib.loads(code).keys() <= PlannerSettings.model_fields.keys():
                load_settings(file, kind=PlannerSettings)
            else:
                load_profile(str(file))


def command_of(line: str) -> tuple[click.Command, list[str]]:
    """Return the command of a line that begins with fedgs, and its arguments."""
    words = shlex.split(line.partition("  #")[0])[1:]
    command: click.Command = get_command(app)
    while isinstance(command, click.Group):
        command = command.commands[words.pop(0)]
    return command, words


@pytest.mark.parametrize("page", [page for page, text in TEXT.items() if COMMAND.search(text)])
def test_commands_and_their_options_exist(page: str) -> None:
    for line in COMMAND.findall(re.sub(r"\\\n +", "", TEXT[page])):
        if "|" in line or "…" in line:
            continue
        command, words = command_of(line)
        options = {name for parameter in command.params for name in (*parameter.opts, *parameter.secondary_opts)}
        for word in words:
            assert not word.startswith("-") or word.partition("=")[0] in options, line
        overrides = [value for word, value in pairwise(words) if word == "--set"]
        if command.name == "run":
            preset = words[words.index("--preset") + 1] if "--preset" in words else None
            load_settings(overrides=overrides, preset=preset or (None if words[:1] and words[0][0] != "-" else "quick"))


@pytest.mark.parametrize("page", TEXT)
def test_links_lead_somewhere(page: str) -> None:
    folder = (ROOT / page).parent
    for target, anchor in re.findall(r"\]\(([^)#\s]*)(?:#([^)\s]*))?\)", TEXT[page]):
        if not target.startswith("http"):
            path = folder / target if target else ROOT / page
            assert path.exists(), target
            headings = re.findall(r"^#+ (.*)$", path.read_text(encoding="utf-8"), flags=re.MULTILINE) if anchor else []
            slugs = {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}
            assert not anchor or anchor in slugs, (target, anchor)
    for name in re.findall(r"`((?:src/fedgs|reproduction|tests|benchmarks|examples)/[\w/-]+\.\w+)`", TEXT[page]):
        assert (ROOT / name).exists(), name


def test_the_readme_and_its_quickstart_are_short() -> None:
    readme = TEXT["README.md"]
    assert len(readme.splitlines()) <= 130
    assert len(BLOCK.findall(readme)[0][1].strip().splitlines()) <= 11


def test_the_api_page_has_every_public_name_and_none_that_is_gone() -> None:
    listed = re.findall(r"^::: (\S+)$", TEXT["docs/reference/api.md"], flags=re.MULTILINE)
    found = [getattr(import_module(module), name) for module, _, name in (path.rpartition(".") for path in listed)]
    assert all(getattr(fedgs, name) in found for name in fedgs.__all__ if name not in ("Settings", "__version__"))


def test_every_field_of_a_task_is_in_its_table() -> None:
    page = TEXT["docs/how-to/own-models.md"]
    table = page[page.index("| field of `fedgs.Task`") : page.index("**The loss returns one number")]
    first = " ".join(row.split("|")[1] for row in table.splitlines()[2:] if row)
    assert set(re.findall(r"`(\w+)`", first)) == set(fedgs.Task.__dataclass_fields__) - {"path"}


def test_every_baseline_has_a_row_and_every_option_its_default() -> None:
    page = TEXT["docs/reference/baselines.md"]
    table = page[page.index("| `algorithm.name` |") : page.index("## Settings")]
    first = " ".join(row.split("|")[1] for row in table.splitlines()[2:] if row.startswith("|"))
    assert set(re.findall(r"`([a-z0-9+-]+)`", first)) == set(BASELINES)
    options = page[page.index("## Options") : page.index("## Pre-training")]
    for name, entry in BASELINES.items():
        for option, default in entry.options.items():
            shown = re.findall(rf"`{option}`(?: \(([^)]*)\))?", options)
            assert shown, (name, option)
            if option not in RULES[entry.rule].options and default is not None and option != "client_lr":
                assert any(_same(text.strip("`"), default) for text in shown), (name, option)


def test_every_server_rule_has_a_row_with_its_options_and_defaults() -> None:
    page = TEXT["docs/reference/server-rules.md"]
    rows = dict(re.findall(r"^\| `([a-z+]+)` \| [^|]+ \| (.+) \|$", page, flags=re.MULTILINE))
    assert rows.keys() == RULES.keys()
    for name, row in rows.items():
        assert all(f"`{option}" in page for option in RULES[name].options)
        if not row.startswith("as "):
            listed = dict(re.findall(r"`(\w+)`(?: ([^,]+))?", row))
            assert listed.keys() == RULES[name].options.keys() - ({"beta2"} if name == "fedadagrad" else set())
            assert all(_same(shown, RULES[name].options[key]) for key, shown in listed.items() if shown)


def _same(text: str, default: object) -> bool:
    try:
        return bool(ast.literal_eval(text) == default)
    except (SyntaxError, ValueError):
        return text == str(default).lower()


def test_the_pictures_of_the_architecture_are_those_of_its_graphs() -> None:
    graphs = re.findall(r"^```mermaid\n(.*?)^```", TEXT["docs/architecture.md"], flags=re.MULTILINE | re.DOTALL)
    for number, graph in enumerate(graphs, start=1):
        picture = (ROOT / "docs" / "images" / f"architecture-{number}.svg").read_text(encoding="utf-8")
        first = f"<!-- mermaid {hashlib.sha256(graph.encode()).hexdigest()[:16]} -->"
        assert picture.splitlines()[0] == first, "draw the picture again, see CONTRIBUTING.md"
