"""Kernels run in plain Python at first, as machine code once that pays, and what was compiled is found again."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import fedgs
from fedgs.compiled import COMPILED

pytestmark = pytest.mark.skipif(not COMPILED, reason="there is no compiler")

CODE = """
import json, sys
import fedgs.compiled as compiled
from fedgs.selection import SelectionProblem, draws, solve
compiled.PATIENCE = compiled.PATIENCE_TO_LOAD = float(sys.argv[1])
problem = SelectionProblem([[3, 1], [0, 4], [2, 2], [4, 0]], [0.5, 0.5], 2)
answers = [solve(problem, "random", seed).chosen.tolist() for seed in range(3)]
code = vars(draws.draw_subset).get("machine_code")  # made when it is first asked for
hits = {} if code is None else {"hits": len(code.stats.cache_hits), "misses": len(code.stats.cache_misses)}
print(json.dumps({"answers": answers, "numba": "numba" in sys.modules, **hits}))
"""


def solve_three_times(patience: float, caches: Path, package: Path | None = None) -> dict[str, Any]:
    """Solve in a process of its own; ``package``: the folder of another installation."""
    env = os.environ | {"NUMBA_CACHE_DIR": str(caches)}
    if package is not None:
        env["PYTHONPATH"] = str(package)
    command = [sys.executable, "-c", CODE, str(patience)]
    done = subprocess.run(command, capture_output=True, text=True, env=env, timeout=120, check=True)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_a_solver_that_is_called_a_few_times_needs_no_compiler(tmp_path: Path) -> None:
    found = solve_three_times(60.0, tmp_path)
    assert not found["numba"]
    assert not list(tmp_path.iterdir())


def test_machine_code_outlives_a_reinstall(tmp_path: Path) -> None:
    """The first process compiles after its first answer; another one, of a copy elsewhere, finds what it left."""
    first = solve_three_times(0.0, tmp_path / "cache")
    assert (first["numba"], first["hits"], first["misses"]) == (True, 0, 1)
    source = Path(fedgs.__file__).parent
    shutil.copytree(source, tmp_path / "site" / "fedgs", ignore=shutil.ignore_patterns("__pycache__"))
    second = solve_three_times(0.0, tmp_path / "cache", tmp_path / "site")
    assert (second["hits"], second["misses"]) == (1, 0)
    assert first["answers"] == second["answers"] == solve_three_times(60.0, tmp_path)["answers"]


def test_where_nothing_can_be_kept_it_is_compiled_all_the_same(tmp_path: Path) -> None:
    (tmp_path / "file").touch()  # a folder cannot be made below a file
    found = solve_three_times(0.0, tmp_path / "file")
    assert (found["hits"], found["misses"]) == (0, 1)
