"""The examples run as they stand, each as a process of its own in an empty folder."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[1] / "examples"
PRINTED = {
    "balanced_teams.py": ["the fairest team of 5", "proven the best"],
    "own_model.py": ["fedgs   fedgs", "fedavg  fedavg", "predicted ["],
    "own_data.py": ["parts: 12 presses in 2 plants", "wear: mean absolute error", "predicted ["],
    "anomaly_detection.py": ["AUROC 0.", "median error of healthy windows"],
    "own_algorithm.py": ["distilled, trimmed", "fedgs + fedprox"],
    "own_solver.py": ["exact           divergence", "add_one_by_one  fedgs"],
}
"""Some of what each example prints."""
NOTEBOOK = """
import json, sys
names = {"__name__": "__main__"}
for cell in json.load(open(sys.argv[1], encoding="utf-8"))["cells"]:
    if cell["cell_type"] == "code":
        exec(compile("".join(cell["source"]), cell["id"], "exec"), names)
"""


def run(folder: Path, *command: str) -> str:
    environment = os.environ | {"MPLBACKEND": "Agg", "PYTHONWARNINGS": "error::DeprecationWarning:__main__"}
    done = subprocess.run(
        [sys.executable, *command], cwd=folder, env=environment, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return done.stdout


def test_every_example_is_run_here() -> None:
    assert {path.name for path in EXAMPLES.glob("*.py")} == set(PRINTED)


@pytest.mark.parametrize("name", PRINTED)
def test_an_example_runs(name: str, tmp_path: Path) -> None:
    printed = run(tmp_path, str(EXAMPLES / name))
    for words in PRINTED[name]:
        assert words in printed


def test_own_model_is_short() -> None:
    assert len((EXAMPLES / "own_model.py").read_text(encoding="utf-8").splitlines()) <= 40


def test_the_notebook_runs_and_is_the_script(tmp_path: Path) -> None:
    path = EXAMPLES / "own_model.ipynb"
    notebook = json.loads(path.read_text(encoding="utf-8"))
    assert notebook["nbformat"] == 4
    assert len({cell["id"] for cell in notebook["cells"]}) == len(notebook["cells"])
    for cell in notebook["cells"]:
        assert set(cell) >= {"cell_type", "id", "metadata", "source"}
        assert ("outputs" in cell and "execution_count" in cell) == (cell["cell_type"] == "code")
    kinds = {
        kind for cell in notebook["cells"] for output in cell.get("outputs", ()) for kind in output.get("data", ())
    }
    assert "image/png" in kinds  # a reader sees the picture without running anything
    code = "\n".join("".join(cell["source"]) for cell in notebook["cells"] if cell["cell_type"] == "code")
    script = (EXAMPLES / "own_model.py").read_text(encoding="utf-8")
    network = script[script.index("class Net") : script.index("\n\n\ntask = ")]
    assert network in code
    assert "fedgs   fedgs" in run(tmp_path, "-c", NOTEBOOK, str(path))
    assert (tmp_path / "own_model.png").is_file()
