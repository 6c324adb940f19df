"""What could explain the gaps of Table II: each run changes one thing, and is compared in the same rounds."""

import json
from pathlib import Path

import pytest
import torch

from fedgs.tasks.cnn import MODELS
from reproduction.experiments import gaps, table2
from tests.conftest import Here
from tests.reproduction.made_up import diverged, full_size, results_of, run
from tests.reproduction.test_command import TINY
from tests.reproduction.words import text_of


def test_a_run_differs_from_the_row_of_the_table_in_what_it_is_named_after() -> None:
    usual = {table2.row_of(job.name): job.settings for job in table2.make_jobs(full_size((0,)))}
    for job in gaps.make_jobs(full_size((0,))):
        row, name = job.name.removeprefix("gaps-").removesuffix("-seed-0").split("-", 1)
        keys = {override.partition("=")[0] for override in gaps.CHANGES[row][name].overrides} | {"training.rounds"}
        assert changed(usual[row].model_dump(), job.settings.model_dump()) == keys


def changed(one: object, other: object, path: str = "") -> set[str]:
    if isinstance(one, dict) and isinstance(other, dict):
        pairs = {key: (one.get(key), other.get(key)) for key in one.keys() | other.keys()}
        return {found for key, pair in pairs.items() for found in changed(*pair, f"{path}.{key}".lstrip("."))}
    return set() if one == other else {path}


def test_what_is_compared_with_the_table_by_hand() -> None:
    table = results_of("table2", lambda job: 0.8, full_size((0,)))  # 0.8 in round 500, in a straight line
    jobs = {job.name: job for job in gaps.make_jobs(full_size((0,)))}
    part = run(jobs["gaps-fedavg-uniform-seed-0"], 0.3)  # its tests of rounds 115 to 150: 0.3·(115 + 150)/300 = 0.265
    assert gaps.usual_score(part, table) == pytest.approx(0.8 * (115 + 150) / 1000)
    assert gaps.usual_score(part, {}) is None
    lost = diverged(jobs["gaps-cgau-owner-seed-0"])
    text = text_of(table | {part["part"]: part, lost["part"]: lost})
    assert "| FedAvg (baseline) as in Table II | 21.2 % |  |" in text
    assert "| FedAvg (baseline): uploads weighted alike, not by samples | 26.5 % | +5.3 |" in text
    assert "| FedAvg (baseline): normalised inputs | not run |  |" in text
    assert "| CGAU: a device's column is its own | diverged |  |" in text
    assert "FEMNIST at the paper's size." in text
    assert "What could explain" not in text_of(results_of("fedopt-rates", lambda job: 0.5))


def test_inputs_and_first_weights() -> None:
    raw = torch.tensor([0, 255, 51], dtype=torch.uint8).view(1, 1, 3)
    assert gaps.ink_is_one(raw).flatten().tolist() == pytest.approx([1.0, 0.0, 0.8])
    assert isinstance(gaps.with_torch_weights(), MODELS["paper"])
    bias = gaps.with_torch_weights("compact").state_dict()["conv1.bias"]
    assert bias.abs().max() > 0  # Xavier's are zero


@pytest.mark.usefixtures("unpainted")
def test_at_a_tiny_size(tmp_path: Path, here: Here) -> None:
    code, said, _ = here("gaps", "--out", "a", "--seeds", "0", *TINY)
    assert code == 0
    assert "a: 12 of 12 jobs" in said
    part = json.loads((tmp_path / "a/parts/gaps-fedavg-torch-weights-seed-0.json").read_text())
    assert part["settings"]["task"]["options"] == {"network": "compact"}
    assert "## What could explain the gaps" in (tmp_path / "a/report.md").read_text()
