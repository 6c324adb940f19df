"""All solvers on the same instances, from the command to tables and figures."""

import csv
import json
from functools import partial
from pathlib import Path

import pytest

from reproduction.experiments import samplers
from tests.conftest import Here, error_of


@pytest.mark.usefixtures("unpainted")
def test_bench_selection_writes_tables_and_figures(tmp_path: Path, here: Here) -> None:
    out = tmp_path / "bench"
    small = ["--set", "federation.devices=60", "--set", "federation.factories=5", "--set", "selection.pick=5"]
    code, said, err = here("bench-selection", "--instances", 3, "--seed", 2, "--json", "--out", out, *small)
    assert code == 0, err
    assert [row["solver"] for row in json.loads(said)["rows"]] == list(samplers.SAMPLERS)
    assert {path.name for path in out.iterdir()} == {
        "samplers.csv", "samplers.json",
        *(f"{name}.{kind}" for name in ("divergence", "time", "divergence-over-time", "initialisers")
          for kind in ("png", "svg")),
    }  # fmt: skip
    rows = {row["solver"]: row for row in csv.DictReader((out / "samplers.csv").read_text().splitlines())}
    assert list(rows) == list(samplers.SAMPLERS)
    assert float(rows["exact"]["gap"]) == pytest.approx(0)
    assert float(rows["brute"]["mean"]) == pytest.approx(float(rows["exact"]["mean"]))
    assert rows["bayesian"]["instances"] == "2"
    assert rows["bayesian"]["note"] == "first 2 of 3 instances"
    assert float(rows["gbp-cs"]["paper_seconds"]) == 0.0154
    everything = json.loads((out / "samplers.json").read_text())
    assert everything["settings"]["seed"] == 2
    assert set(everything["initialisers"]) == {"mpinv", "zero", "random"}
    assert everything["traces"]["exact"][-1][1] == pytest.approx(everything["rows"][8]["divergences"][0])


@pytest.mark.usefixtures("unpainted")
def test_bench_selection_leaves_out_what_would_not_end(
    tmp_path: Path, here: Here, monkeypatch: pytest.MonkeyPatch
) -> None:
    some = partial(samplers.compare_on, solvers=("brute", "gbp-cs", "exact"))
    monkeypatch.setattr(samplers, "compare_on", some)
    large = ["--set", "federation.devices=42", "--set", "federation.factories=1", "--set", "selection.pick=18"]
    code, said, err = here("bench-selection", "--instances", 1, "--out", tmp_path, *large)
    assert code == 0, err
    assert "brute was left out: brute would have to try" in said
    for solver in ("gbp-cs", "exact"):
        assert solver in said
    (tmp_path / "time.png").unlink()
    (tmp_path / "time.png").mkdir()
    small = ["--set", "federation.devices=20", "--set", "federation.factories=2", "--set", "selection.pick=4"]
    assert "cannot be written" in here("bench-selection", "--instances", 1, "--out", tmp_path, *small).err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--instances", "0"], "0 is not in the range"),
        (["none.toml"], "none.toml: no such file"),
        (["--set", "selection.pick=99"], "selection.pick=99 is more than the 35 devices"),
        (["--femnist", "none.npz"], "none.npz"),
        (["--out", "notes.txt/below"], "cannot make this folder"),
    ],
)
def test_wrong_arguments_are_one_line(arguments: list[str], message: str, tmp_path: Path, here: Here) -> None:
    (tmp_path / "notes.txt").write_text("not a folder")
    assert message in error_of(here("bench-selection", *arguments))
