"""``fedgs sweep`` and ``fedgs settings``."""

import csv
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from fedgs.settings import Settings
from fedgs.settings_list import settings_rows
from fedgs.simulation.sweep import sweep_means
from tests.conftest import Here, error_of
from tests.simulation.small import small_config

RATES = ("--grid", "training.learning_rate=0.1,1e20")


@pytest.mark.usefixtures("unpainted")
def test_a_table_a_heat_map_the_best_and_nothing_twice(tmp_path: Path, here: Here) -> None:
    config = small_config(tmp_path, "training.rounds=1")
    options = [*config, *RATES, "--grid", "algorithm.name=fedgs,fedavg", "--seeds", "2", "--out", "s"]
    code, out, error = here("sweep", *options)
    assert (code, error) == (0, "")
    with (tmp_path / "s/sweep.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [(row["training.learning_rate"], row["algorithm.name"], row["seed"]) for row in rows] == [
        (rate, name, seed) for rate in ("0.1", "1e+20") for name in ("fedgs", "fedavg") for seed in ("0", "1")
    ]
    diverged = [
        ("finite number" in row["error"], row["final"] == "") for row in rows if row["algorithm.name"] == "fedgs"
    ]
    assert diverged == [(False, False), (False, False), (True, True), (True, True)]
    best = next(line for line in out.splitlines() if line.startswith("best: "))
    assert "--set training.learning_rate=0.1 --set algorithm.name=fedgs (accuracy" in best
    assert "±" in best
    assert out.count("2 diverged") == 1
    assert (tmp_path / "s/sweep.png").is_file()

    # Again, with a value and a seed more: what is finished is not repeated.
    summaries = {path: path.stat().st_mtime_ns for path in (tmp_path / "s").glob("*/summary.json")}
    assert len(summaries) == 6
    options = [*config, "--grid", "learning_rate=0.1,0.2", "--grid", "algorithm.name=fedgs", "--seeds", "3"]
    code, again, error = here("sweep", *options, "--out", "s")
    assert (code, error) == (0, "")
    assert {path: path.stat().st_mtime_ns for path in summaries} == summaries
    assert len(list((tmp_path / "s").glob("*/summary.json"))) == 6 + 4
    assert out.splitlines()[0].split("/8 ")[1] == again.splitlines()[0].split("/6 ")[1]

    # Other settings in the same folder are refused.
    folder = "learning_rate=0.1-name=fedgs-seed=0"
    other = ["--set", "training.batch_size=4", "--out", "s"]
    assert f"s/{folder}: holds a run with other settings" in error_of(here("sweep", *options, *other))


@pytest.mark.usefixtures("unpainted")
def test_a_sweep_of_the_settings_of_a_run_has_the_name_of_the_run(tmp_path: Path, here: Here) -> None:
    assert here("run", *small_config(tmp_path, "training.rounds=1"), "--out", "bars")[0] == 0
    assert here("sweep", "bars/config.json", "--grid", "training.learning_rate=0.1")[0] == 0
    assert (tmp_path / "runs/bars-sweep/sweep.csv").is_file()


def test_ctrl_c_leaves_a_sweep_that_goes_on(tmp_path: Path, here: Here) -> None:
    config = small_config(tmp_path, "training.rounds=60", "checkpoint.every=1000", "eval.every=1000")
    options = [*config, "--grid", "training.learning_rate=0.01,0.02", "--workers", "2"]
    process = subprocess.Popen(
        [sys.executable, "-m", "fedgs", "sweep", *options, "--out", "s"],
        cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    metrics = [tmp_path / f"s/learning_rate={rate}-seed=0/metrics.jsonl" for rate in ("0.01", "0.02")]
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and not all(
        path.is_file() and path.read_bytes().count(b"\n") > 5 for path in metrics
    ):
        time.sleep(0.02)
    process.send_signal(signal.SIGINT)
    out, error = process.communicate(timeout=30)
    assert (process.returncode, out) == (130, "")
    assert error == "fedgs: interrupted; the same command goes on with the sweep in s\n"
    rounds = [[path.name for path in (file.parent / "checkpoints").glob("round-*")] for file in metrics]
    assert all(max(names) > "round-000004" for names in rounds), rounds
    assert not list((tmp_path / "s").glob("*/summary.json"))

    done, out, error = here("sweep", *options, "--workers", "1", "--out", "s")
    assert (done, error) == (0, "")
    assert [path.read_bytes().count(b"\n") for path in metrics] == [61, 61]


def test_what_is_wrong_with_the_data_is_one_line_with_workers_too(tmp_path: Path) -> None:
    """Runs that wait, and those that others make, end without a word of their own."""
    np.savez(tmp_path / "few.npz", inputs=np.zeros((20, 4)), targets=np.arange(20) % 2, clients=np.arange(20) % 4)
    done = subprocess.run(
        [sys.executable, "-m", "fedgs", "sweep", "--set", "data.name=few.npz", "--set", "task.model=linear",
         "--grid", "training.learning_rate=0.1,0.2,0.3,0.4,0.5,0.6", "--workers", "2", "--out", "s"],
        cwd=tmp_path, capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (2, "")
    assert len(done.stderr.splitlines()) == 1
    assert "data.min_samples" in done.stderr
    assert not list((tmp_path / "s").glob("*/config.json"))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--grid", "x"], "--grid x: expected key.path=value"),
        (["--grid", "training.learning_rat=1"], "did you mean 'learning_rate'?"),
        (["--grid", "training.learning_rate=0.1,-1"], "training.learning_rate=-1 is not possible"),
        (["--grid", "seed=1,2"], "seed has another keyword here; give seeds=3"),
        (["--grid", "pick="], "selection.pick=[]; give a list of values"),
        (["--grid", "pick=2,2"], "selection.pick has 2 twice; more runs of one combination: seeds"),
        ([*RATES, "--grid", "learning_rate=0.2"], "--grid learning_rate: is there twice; give all its values once"),
        ([], "Missing option '--grid'"),
        ([*RATES, "--seeds", "0"], "'--seeds'"),
    ],
)
def test_sweeps_that_cannot_be_are_refused_before_the_first_run(
    options: list[str], words: str, tmp_path: Path, here: Here
) -> None:
    assert words in error_of(here("sweep", "--preset", "quick", *options))
    assert not os.listdir(tmp_path)


def test_means_over_seeds_and_the_best_first() -> None:
    """By hand: 0.6 and 0.8 have the mean 0.7 and the deviation √(2 · 0.1²); one seed has none."""

    def row(rate: float, seed: int, final: float | None, mode: str) -> dict[str, object]:
        values = {"final": final, "rounds": 1, "target_round": None, "mode": mode, "score": "s"}
        return {"rate": rate, "seed": seed, "error": None, **values} if final else {"rate": rate, "error": "diverged"}

    for mode, order in (("max", [0.2, 0.1, 0.3]), ("min", [0.1, 0.2, 0.3])):
        rows = [row(0.1, 0, 0.5, mode), row(0.2, 0, 0.6, mode), row(0.2, 1, 0.8, mode), row(0.3, 0, None, mode)]
        means = sweep_means(rows, ["rate"])
        assert [one["rate"] for one in means] == order
        two = next(one for one in means if one["rate"] == 0.2)
        assert (two["final"], two["final_sd"], two["seeds"]) == (pytest.approx(0.7), pytest.approx(0.02**0.5), 2)
        assert means[-1]["failed"] == 1


def test_every_setting_is_listed_with_its_default_and_meaning(here: Here) -> None:
    code, out, _ = here("settings")
    assert code == 0
    keys = {line.split()[0] for line in out.splitlines() if line.strip()}
    assert {row.path for row in settings_rows(Settings)} <= keys
    assert all(row.meaning for row in settings_rows(Settings))
    (line,) = (line for line in out.splitlines() if line.startswith("training.learning_rate "))
    assert line.split()[:2] == ["training.learning_rate", "0.01"]
    assert "SGD step" in line


@pytest.mark.parametrize(
    ("pattern", "there", "not_there"),
    [
        ("RATE", "training.learning_rate", "training.rounds"),
        ("training.*", "training.schedule.kind", "selection.pick"),
        ("mini-batch", "training.batch_size", "training.rounds"),
    ],
)
def test_a_pattern_picks_settings(pattern: str, there: str, not_there: str, here: Here) -> None:
    out = here("settings", pattern).out
    assert there in out
    assert not_there not in out


def test_a_pattern_that_nothing_has_is_one_line(here: Here) -> None:
    assert "nonsense: no setting has this in its key or its meaning" in error_of(here("settings", "nonsense"))
