"""Rows that are tuned alike: what a row goes on with, bearings and the best recipe as a whole at a tiny size."""

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fedgs.config import load_settings
from reproduction.experiments import bearings, best
from tests.conftest import Here, error_of
from tests.reproduction.made_up import full_size
from tests.reproduction.test_command import TINY


def trial(rate: float, accuracy: list[float], **further: Any) -> dict[str, Any]:
    curve = {"round": [0, 2, 4, 6, 8], "accuracy": accuracy}
    name = f"bearings-trial-{rate:g}-fedavg-batch-seed-0"
    return {name: {"curve": curve, "settings": {"training": {"rounds": 8}, "seed": 0}, **further}}


def test_a_row_goes_on_with_the_rate_of_the_best_late_tests() -> None:
    others = {**trial(0.05, [0.1] * 5), **trial(0.005, [0.1, 0.1, 0.1, 0.1, 0.8], failed="loss nan")}
    low = trial(0.01, [0.1, 0.9, 0.9, 0.9, 0.4])  # round 8 alone is in the last quarter
    middle = trial(0.02, [0.1, 0.1, 0.1, 0.1, 0.5])
    assert bearings.TUNING.chosen("fedavg-batch", low | others) is None  # one is still to come
    assert bearings.TUNING.chosen("fedavg-batch", low | middle | others) == "0.02"


@pytest.mark.usefixtures("unpainted")
def test_from_trials_to_the_report(tmp_path: Path, here: Here, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = bearings.TUNING.rows
    for name in set(rows) - {"random-batch", "random-group", "gbp-cs-batch"}:
        monkeypatch.delitem(rows, name)
    for name in set(bearings.AT_ONE_RATE.rows) - {"oort-group"}:
        monkeypatch.delitem(bearings.AT_ONE_RATE.rows, name)
    monkeypatch.setattr(bearings, "UNDER_CONDITIONS", ("random-batch", "gbp-cs-batch"))
    code, said, _ = here("bearings", "--seeds", "0", *TINY)
    assert code == 0
    # 3 × 4 trials, the choice of each, two of them twice more, the rates of SAME_RATES that were not chosen, of one
    # selection two other T, and a rival.
    jobs = re.search(r"results/bearings: (\d+) of \1 jobs", said)
    assert jobs is not None
    assert 25 <= int(jobs[1]) <= 28
    churn = json.loads((tmp_path / "results/bearings/parts/bearings-churn-gbp-cs-batch-seed-0.json").read_text())
    assert churn["settings"]["dynamics"]["leave"] > 0 == churn["settings"]["data"]["validation"]
    run = json.loads((tmp_path / "results/bearings/parts/bearings-random-group-seed-0.json").read_text())
    assert run["settings"]["task"]["options"] == {"norm": "group"}
    assert run["settings"]["data"]["name"] == "bearings"
    text = (tmp_path / "results/bearings/report.md").read_text()
    assert "| FedGS (GBP-CS), batch normalisation, churn |" in text
    same = text.partition("Selections at the same learning rate")[2].partition("###")[0].splitlines()
    cells = {line.split(" | ")[0].strip("| "): line.split(" | ")[1:] for line in same if " | " in line}
    columns = ["batch normalisation, 0.1", "batch normalisation, 0.3", "group normalisation, 0.03"]
    assert [cell.strip("| ") for cell in cells.pop("")] == columns  # at 0.01 there is one selection only
    there = {name: ["%" in cell for cell in line] for name, line in cells.items() if name != ":--"}
    assert there == {
        "FedGS (GBP-CS)": [True, True, False], "devices at random": [True, True, True], "Oort": [False, False, True]
    }  # fmt: skip
    short = json.loads((tmp_path / "results/bearings/parts/bearings-T4-random-group-seed-0.json").read_text())
    assert short["settings"]["training"]["learning_rate"] == 0.03
    assert (short["settings"]["training"]["iterations"], short["settings"]["training"]["rounds"]) == (4, 1)
    assert "| 64 | not run |" in text
    longer = tmp_path / "results/bearings/parts/bearings-T4-random-group-seed-0.json"
    part = json.loads(longer.read_text())  # as at full size, where T = 4 has 120 rounds
    part["settings"]["training"]["rounds"] = part["curve"]["round"][-1] = 120
    longer.write_text(json.dumps(part))
    here("report", "--out", "results/bearings")
    text = (tmp_path / "results/bearings/report.md").read_text()
    assert "\n1 round with what a row chose" in text
    assert "the first seed, 1 round each" in text
    assert "python -m reproduction bearings --rounds 1 --seeds 0" in text
    assert "--femnist" in error_of(here("bearings", "--femnist", "x.npz"))


@pytest.mark.usefixtures("unpainted")
def test_the_best_recipe_is_chosen_on_validation_samples(
    tmp_path: Path, here: Here, monkeypatch: pytest.MonkeyPatch
) -> None:
    for key in ("fedgs", "fedavgm", "central"):
        row = best.ROWS[key]
        few = {name: row.trials[name] for name in list(row.trials)[:4:3]}
        monkeypatch.setitem(best.ROWS, key, replace(row, trials=few))
    monkeypatch.delitem(best.ROWS, "fedavg")
    code, said, _ = here("best", "--out", "a", "--seeds", "0", *TINY, "--set", "task.options.hidden=16")
    assert code == 0
    assert "a: 9 of 9 jobs" in said
    parts = {path.stem: json.loads(path.read_text()) for path in (tmp_path / "a/parts").iterdir()}
    for name, part in parts.items():
        assert part["settings"]["data"]["validation"] == (0.1 if "trial" in name else 0.0)
    central, fedgs = parts["best-central-seed-0"], parts["best-fedgs-seed-0"]
    assert (central["devices"], central["test_samples"]) == (1, fedgs["test_samples"])
    # 2 factories × 2 devices × 2 iterations × 4 samples are less than one batch of central training.
    assert central["settings"]["training"]["iterations"] == 1
    assert "| central training |" in (tmp_path / "a/report.md").read_text()


def test_the_preset_best_is_a_trial_of_our_recipe() -> None:
    trials = {job.title: job.settings for job in best.trial_jobs(full_size((0,))) if "-fedgs-seed" in job.name}
    assert len(trials) == 8
    preset = load_settings(preset="best", overrides=["data.validation=0.1"])
    assert [title for title, settings in trials.items() if settings == preset] == [
        "best: FedGS, our recipe, 0.06-group-augmented, seed 0, trial"
    ]
