"""The examples run as they stand, each in an empty folder; so does the notebook, which is kept with its pictures."""

import json
import runpy
from pathlib import Path

import matplotlib as mpl
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


@pytest.fixture(autouse=True)
def _empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mpl.use("Agg")
    monkeypatch.chdir(tmp_path)


def test_every_example_is_run_here() -> None:
    assert {path.name for path in EXAMPLES.glob("*.py")} == set(PRINTED)
    assert len((EXAMPLES / "own_model.py").read_text(encoding="utf-8").splitlines()) <= 40


@pytest.mark.parametrize("name", PRINTED)
def test_an_example_runs(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    runpy.run_path(str(EXAMPLES / name), run_name="__main__")
    said = capsys.readouterr()
    assert all(words in said.out for words in PRINTED[name])
    assert said.err == ""


def test_the_notebook_runs_and_has_its_pictures(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    notebook = json.loads((EXAMPLES / "own_model.ipynb").read_text(encoding="utf-8"))
    assert notebook["nbformat"] == 4
    assert len({cell["id"] for cell in notebook["cells"]}) == len(notebook["cells"])
    code = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    assert [cell["execution_count"] for cell in code] == list(range(1, len(code) + 1))
    kinds = {kind for cell in code for output in cell["outputs"] for kind in output.get("data", ())}
    assert "image/png" in kinds  # a reader sees the picture without running anything
    names = {"__name__": "__main__"}
    for cell in code:
        exec(compile("".join(cell["source"]), cell["id"], "exec"), names)
    printed = capsys.readouterr().out
    kept = "".join("".join(output.get("text", ())) for cell in code for output in cell["outputs"])
    assert "fedgs   fedgs" in printed
    assert "fedgs   fedgs" in kept
    assert (tmp_path / "own_model.png").is_file()
