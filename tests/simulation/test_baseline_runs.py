"""Baselines as a user runs them: with pre-training, with what is wrong."""

import json
from pathlib import Path
from typing import Any

import pytest

from fedgs.algorithms.run_state import RunState
from fedgs.cli.run import _name_of
from fedgs.config import load_settings
from fedgs.simulation.folder import RunFolder
from fedgs.simulation.run import execute
from fedgs.simulation.simulator import Simulator
from tests.conftest import Here
from tests.simulation.small import is_one_line, small_config, small_federation

COMMON = ("algorithm.devices_per_round=8", "algorithm.local_epochs=2", "training.rounds=4", "checkpoint.every=3")


def baseline_config(folder: Path, name: str, *overrides: str) -> list[str]:
    return small_config(folder, f"algorithm.name={name}", *COMMON, *overrides)


def test_pretraining_is_a_run_of_its_own_that_can_be_interrupted(
    tmp_path: Path, here: Here, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is said that it happens, has its own metrics, is resumed, and both counts of rounds are in the summary."""
    options = baseline_config(
        tmp_path, "cgau", "algorithm.options.pretrain_rounds=8", "algorithm.options.units=16", "training.rounds=2",
        "eval.target=0.01",
    )  # fmt: skip
    real = RunFolder.on_round

    def interrupted(self: RunFolder, state: RunState, metrics: dict[str, Any]) -> None:
        real(self, state, metrics)
        if self.folder.name == "pretraining" and state.round == 5:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(RunFolder, "on_round", interrupted)
        code, _, err = here("run", *options, "--out", "stopped", "--device", "cpu")
    assert code == 130
    assert err.splitlines() == [
        "fedgs: note: 8 rounds of FedAvg come before the first round, see stopped/pretraining",
        "fedgs: interrupted; go on with: fedgs resume stopped",
    ]
    assert not (tmp_path / "stopped/metrics.jsonl").exists()
    assert len((tmp_path / "stopped/pretraining/metrics.jsonl").read_text().splitlines()) == 6
    code, out, err = here("resume", "stopped", "--device", "cpu")
    assert code == 0
    assert "1% in round 0 (8 with pre-training)" in out
    summary = json.loads((tmp_path / "stopped/summary.json").read_text())
    assert summary["target"] == {"accuracy": 0.01, "round": 0, "round_with_pretraining": 8}
    before = [json.loads(line) for line in (tmp_path / "stopped/pretraining/metrics.jsonl").read_text().splitlines()]
    assert [line["round"] for line in before] == list(range(9))
    assert summary["pretraining"] == {"rounds": 8, "accuracy": before[-1]["accuracy"]}
    assert summary["machine"]["seconds_of_pretraining"] > 0
    # In memory, without any folder, it is the same run.
    lines = [json.loads(line) for line in (tmp_path / "stopped/metrics.jsonl").read_text().splitlines()]
    overrides = [option for option in options if option != "--set"]
    with Simulator(load_settings(overrides=overrides), small_federation()) as simulator:
        assert list(list(simulator.rounds(simulator.begin()))[-1].metrics) == lines
    # The plain model can be given to another run, as a file or as a folder.
    for path in ("stopped/pretraining", "stopped/pretraining/model.safetensors"):
        settings = load_settings(overrides=[*overrides[:-2], f"algorithm.options.pretrain_model={path}"])
        given = execute(settings, small_federation())
        assert given.summary["pretraining"] == {"model": str(tmp_path / path)}
        assert given.metrics[0] == lines[0]
    # The folder alone is not to be resumed as if it were FedAvg: its random streams are others.
    (tmp_path / "stopped/pretraining/summary.json").unlink()
    code, _, err = here("resume", "stopped/pretraining")
    assert code == 2
    assert "other settings, data, network or frozen weights" in err


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (["algorithm.name=cgau", "algorithm.options.pretrain_model=no.safetensors"], "there is no file no.safetensors"),
        (["algorithm.name=cgau", "algorithm.options.pretrain_model=bars.npz"], "cannot be read as a model"),
        (["algorithm.name=cgau", "algorithm.options.pretrain_model=other.safetensors"], "belongs to another network"),
    ],
)
def test_what_is_wrong_with_a_baseline_is_one_line(
    tmp_path: Path, here: Here, overrides: list[str], words: str
) -> None:
    import torch
    from safetensors.torch import save_file

    save_file({"w": torch.zeros(1)}, tmp_path / "other.safetensors")
    code, out, err = here("run", *small_config(tmp_path, *overrides))
    assert (code, out) == (2, "")
    assert is_one_line(err)
    assert words in err
    assert not list(tmp_path.glob("runs/*"))
    assert not list(tmp_path.glob("runs/.*"))


def test_a_second_run_with_a_missing_model_is_refused_before_the_first_begins(tmp_path: Path, here: Here) -> None:
    baseline = 'baseline=["algorithm.name=cgau", "algorithm.options.pretrain_model=nowhere"]'
    code, out, err = here("run", *small_config(tmp_path), "--set", baseline, "--out", "a")
    assert (code, out) == (2, "")
    assert is_one_line(err)
    assert err.startswith("fedgs: error: baseline: algorithm.options.pretrain_model='nowhere': there is no file")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["bars.npz"]


def test_baselines_one_after_the_other_have_folders_of_their_own(tmp_path: Path, here: Here) -> None:
    options = small_config(tmp_path)
    (tmp_path / "park.toml").write_text("seed = 1\n")
    for chosen in ([], ["--set", "algorithm.name='fedfusion+conv'"]):
        assert here("run", "park.toml", *options, *chosen)[0] == 0
    folders = ["park", "park-fedfusion+conv"]
    assert sorted(path.name for path in (tmp_path / "runs").iterdir()) == folders
    for config, chosen, name in (
        (None, [], "quick"),
        (None, ["seed=1", "algorithm.name=fedavg"], "quick-fedavg"),
        (None, ["algorithm.name = 'ida+intrac'"], "quick-ida+intrac"),
        (None, ["algorithm.name=fedgs"], "quick"),
        (Path("park.toml"), ["algorithm.name=fedavg"], "park-fedavg"),
        (tmp_path / "runs/park/config.json", ["algorithm.name=fedprox"], "park-fedprox"),
        (tmp_path / "runs/park/config.json", [], "park-again"),
    ):
        assert _name_of(config, "quick", chosen) == name
    code, out, _ = here("compare", *(f"runs/{name}" for name in folders))
    assert code == 0
    rows = [line.split() for line in out.splitlines()]
    assert [row[:3] for row in rows[2:4]] == [
        ["park", "fedgs", "gbp-cs"], ["park-fedfusion+conv", "fedfusion+conv", "3"],
    ]  # fmt: skip
    assert "diverg.: of the teams of fedgs; baselines have none" in out
    of_teams = json.loads((tmp_path / "runs/park/summary.json").read_text())["divergence"]
    assert [row[-1] for row in rows[2:4]] == [f"{of_teams:.4f}", "–"]
    code, out, _ = here("compare", "runs/park")
    assert "solver" in out
    assert "baseline" not in out


def test_the_summary_of_a_baseline_says_what_was_run(tmp_path: Path, here: Here) -> None:
    options = baseline_config(tmp_path, "fedprox", "algorithm.options.mu=0.5", "training.rounds=2")
    assert here("run", *options, "--out", "a")[0] == 0
    everybody = [*options, "--set", "algorithm.devices_per_round=12"]  # no divergence: a picture all the same
    assert here("run", *everybody, "--out", "all")[0::2] == (0, "")
    assert json.loads((tmp_path / "all/summary.json").read_text())["divergence"] == pytest.approx(0, abs=1e-12)
    summary = json.loads((tmp_path / "a/summary.json").read_text())
    assert (summary["baseline"], summary["options"]) == ("fedprox", {"mu": 0.5})
    assert (summary["rounds"], summary["devices_per_round"], summary["local_epochs"]) == (2, 8, 2)
    assert "solver" not in summary
    assert "round_with_pretraining" not in summary["target"]
    rows = (tmp_path / "a/devices.csv").read_text().splitlines()[1:]
    assert sum(int(row.split(",")[3]) for row in rows) == 2 * 8  # turns are rounds
    assert {row.split(",")[5] for row in rows} <= {"0.0000", "2.0000", "4.0000"}


def test_the_table_of_baselines(here: Here) -> None:
    from fedgs.algorithms import BASELINES

    code, out, err = here("baselines")
    assert (code, err) == (0, "")
    for name, entry in BASELINES.items():
        assert name in out
        assert all(option in out for option in entry.options)
    assert "mu=0.1" in out
