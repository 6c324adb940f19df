"""Who may import whom: algorithms → training → tasks → data; simulation uses them; nothing imports the reproduction.

Only what runs counts: an import for type checkers alone ties nothing together.
"""

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src" / "fedgs"
BASE = {"__version__", "errors", "files", "imports", "rng", "compiled", "section", "weights"}
"""Small modules that everybody may use."""
MAY_IMPORT = {
    "selection": set(),
    "network": set(),
    "data": set(),
    "tasks": {"data", "settings"},
    "training": {"tasks", "data", "settings"},
    "algorithms": {"training", "tasks", "data", "settings"},
    "simulation": {"algorithms", "training", "tasks", "data", "selection", "network", "settings", "config", "report"},
    "deploy": {"algorithms", "training", "tasks", "data", "selection", "settings"},
    "flower": {"deploy", "algorithms", "settings", "config"},
    "report": {"network", "data"},
}


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


@pytest.mark.parametrize("package", MAY_IMPORT)
def test_imports_go_one_way(package: str) -> None:
    allowed = MAY_IMPORT[package] | BASE | {package}
    wrong = [
        f"{path.relative_to(PACKAGE)} imports {name}"
        for path in sorted((PACKAGE / package).rglob("*.py"))
        for name in imports_of(ast.parse(path.read_text(encoding="utf-8")))
        if name.startswith("fedgs.") and name.split(".")[1] not in allowed
    ]
    assert not wrong


def test_nothing_in_the_package_imports_the_reproduction() -> None:
    found = {name for path in PACKAGE.rglob("*.py") for name in imports_of(ast.parse(path.read_text(encoding="utf-8")))}
    assert "fedgs.errors" in found
    assert not [name for name in found if name.split(".")[0] in ("reproduction", "tests", "benchmarks")]


def test_selection_network_and_data_need_no_torch() -> None:
    code = "import sys, fedgs.selection, fedgs.network, fedgs.data, fedgs.config; print('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "False\n"
