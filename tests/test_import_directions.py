"""Who imports whom is what docs/architecture.md draws, and goes one way; nothing imports the reproduction.

Only what runs counts: an import for type checkers alone ties nothing together.
"""

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src" / "fedgs"
LIGHT = {
    "fedgs": ["torch", "numpy", "numba", "pydantic", "pandas"],
    "fedgs.data.femnist, fedgs.data.glyphs, fedgs.cli": [
        "torch", "matplotlib", "PIL", "numba", "pyarrow", "pandas", "h5py", "ijson", "scipy",
    ],
    "fedgs.selection, fedgs.network, fedgs.data, fedgs.config": ["torch", "matplotlib", "pandas"],
}  # fmt: skip
"""By what is imported, one after the other: what must not be there afterwards."""


def imports_of(node: ast.AST) -> Iterator[str]:
    """Yield the modules that are imported below a node; not those for type checkers alone."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test):
            yield from (name for other in child.orelse for name in imports_of(other))
        elif isinstance(child, ast.ImportFrom) and child.module == "fedgs":
            yield from (f"fedgs.{alias.name}" for alias in child.names)
        elif isinstance(child, ast.ImportFrom) and child.module and not child.level:
            yield child.module
        elif isinstance(child, ast.Import):
            yield from (alias.name for alias in child.names)
        else:
            yield from imports_of(child)


def test_the_graph_of_modules_is_the_real_one_and_goes_one_way() -> None:
    page = (ROOT / "docs/architecture.md").read_text(encoding="utf-8")
    graph = re.findall(r"^```mermaid\n(.*?)^```", page, flags=re.MULTILINE | re.DOTALL)[1]
    drawn: dict[str, set[str]] = {}
    for line in graph.splitlines()[1:]:
        groups = [set(re.findall(r"\w+", part)) for part in line.split("-->")]
        for sources, ends in pairwise(groups):
            for source in sources:
                drawn.setdefault(source, set()).update(ends)
    folders = {path.name for path in PACKAGE.iterdir() if (path / "__init__.py").is_file() and path.name != "presets"}
    assert drawn.keys() | set().union(*drawn.values()) == folders
    real = {
        folder: {
            name.split(".")[1]
            for path in (PACKAGE / folder).rglob("*.py")
            for name in imports_of(ast.parse(path.read_text(encoding="utf-8")))
            if name.startswith("fedgs.")
        }
        & (folders - {folder})
        for folder in folders
    }
    for folder in folders:
        assert _reach(real, folder) == _reach(drawn, folder), folder
        assert folder not in _reach(real, folder), f"{folder} imports itself by way of others"


def _reach(graph: dict[str, set[str]], start: str) -> set[str]:
    found: set[str] = set()
    waiting = list(graph.get(start, ()))
    while waiting:
        name = waiting.pop()
        if name not in found:
            found.add(name)
            waiting.extend(graph.get(name, ()))
    return found


def test_nothing_in_the_package_imports_the_reproduction() -> None:
    found = {name for path in PACKAGE.rglob("*.py") for name in imports_of(ast.parse(path.read_text(encoding="utf-8")))}
    assert "fedgs.errors" in found
    assert not [name for name in found if name.split(".")[0] in ("reproduction", "tests", "benchmarks")]


def test_what_is_imported_fast_brings_nothing_heavy() -> None:
    lines = [f"import {names}; print(sorted(set({heavy}) & set(sys.modules)))" for names, heavy in LIGHT.items()]
    code = "\n".join(["import sys", *lines])
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert said.splitlines() == ["[]"] * len(LIGHT)
