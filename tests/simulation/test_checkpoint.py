import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from fedgs.algorithms.run_state import RunState
from fedgs.errors import CheckpointError
from fedgs.simulation.checkpoint import list_checkpoints, load_newest, save_checkpoint
from fedgs.training.files import load_model, save_model
from fedgs.training.layout import Layout

LAYOUT = Layout((("conv", (2, 3, 2, 2)), ("bias", (5,))))


def state(number: int) -> RunState:
    generator = torch.Generator().manual_seed(number)
    weights, average = torch.rand(2, LAYOUT.size, generator=generator)
    return RunState(
        round=number,
        weights=weights,
        plan={"round": number, "queue": [0.1, 1 / 3]},
        server={"round": number, "velocity": {"conv": torch.rand(2, 3, 2, 2, dtype=torch.float64)}},
        stations={"velocity": torch.rand(2, LAYOUT.size, generator=generator), "steps": torch.tensor([3.0, 4.0])},
        local=torch.rand(3, 2, generator=generator),
        average=average,
        metrics=({"round": 0, "loss": 0.1}, {"round": number, "loss": 1 / 7}),
    )


def assert_equal(one: RunState, other: RunState) -> None:
    assert one.average is not None
    assert other.average is not None
    assert torch.equal(one.weights, other.weights)
    assert one.stations.keys() == other.stations.keys()
    assert all(torch.equal(value, other.stations[entry]) for entry, value in one.stations.items())
    assert one.local is not None
    assert other.local is not None
    assert torch.equal(one.local, other.local)
    assert torch.equal(one.average, other.average)
    assert torch.equal(one.server["velocity"]["conv"], other.server["velocity"]["conv"])
    assert one.server["round"] == other.server["round"]
    assert (one.round, one.plan, one.metrics) == (other.round, other.plan, other.metrics)


def test_a_state_comes_back_to_the_bit_and_the_last_two_are_kept(tmp_path: Path) -> None:
    states = [state(number) for number in range(4)]
    for one in states:
        save_checkpoint(tmp_path, one, LAYOUT, "me")
    assert [path.name for path in list_checkpoints(tmp_path)] == ["round-000002", "round-000003"]
    found = load_newest(tmp_path, LAYOUT, "me")
    assert found is not None
    assert_equal(found, states[3])


def test_without_momentum_average_and_rule(tmp_path: Path) -> None:
    plain = replace(state(1), stations={}, local=None, average=None, server={})
    save_checkpoint(tmp_path, plain, LAYOUT, "me")
    found = load_newest(tmp_path, LAYOUT, "me")
    assert found is not None
    assert (found.stations, found.local, found.average, found.server) == ({}, None, None, {})


@pytest.mark.parametrize("harm", ["cut", "flip", "no numbers", "no tensors", "half numbers", "empty", "foreign"])
def test_a_bad_checkpoint_is_refused_with_a_line_and_the_one_before_is_used(tmp_path: Path, harm: str) -> None:
    save_checkpoint(tmp_path, state(1), LAYOUT, "me")
    newest = save_checkpoint(tmp_path, state(2), LAYOUT, "another" if harm == "foreign" else "me")
    tensors, numbers = newest / "state.safetensors", newest / "state.json"
    if harm == "cut":
        tensors.write_bytes(tensors.read_bytes()[:-9])
    elif harm == "flip":
        content = bytearray(tensors.read_bytes())
        content[-1] ^= 1
        tensors.write_bytes(content)
    elif harm == "no numbers":
        numbers.unlink()
    elif harm == "no tensors":
        tensors.unlink()
    elif harm == "half numbers":
        numbers.write_text(numbers.read_text()[:50])
    elif harm == "empty":
        numbers.write_text("")
    lines: list[str] = []
    found = load_newest(tmp_path, LAYOUT, "me", lines.append)
    assert found is not None
    assert found.round == 1
    assert len(lines) == 1
    assert "round-000002" in lines[0]
    assert ("other settings" in lines[0]) == (harm == "foreign")
    shutil.rmtree(tmp_path / "round-000001")
    with pytest.raises(CheckpointError, match="no checkpoint can be used"):
        load_newest(tmp_path, LAYOUT, "me")


def test_a_checkpoint_in_the_making_is_not_looked_at(tmp_path: Path) -> None:
    half = tmp_path / ".round-000007.123"
    half.mkdir()
    (half / "state.safetensors").write_bytes(b"half")
    assert load_newest(tmp_path, LAYOUT, "me") is None
    assert not half.exists()


def test_a_model_file(tmp_path: Path) -> None:
    weights = state(3).weights
    save_model(tmp_path / "model.safetensors", weights, LAYOUT)
    assert torch.equal(load_model(tmp_path / "model.safetensors", LAYOUT), weights)
    (tmp_path / "model.safetensors").write_bytes(b"no model")
    with pytest.raises(CheckpointError, match="cannot be read as a model"):
        load_model(tmp_path / "model.safetensors", LAYOUT)


def test_foreign_checkpoints_of_later_rounds_do_not_push_the_good_ones_out(tmp_path: Path) -> None:
    for number in (57, 60):
        save_checkpoint(tmp_path, state(number), LAYOUT, "another run")
    for number in (9, 10, 11, 12):
        save_checkpoint(tmp_path, state(number), LAYOUT, "run")
    lines: list[str] = []
    found = load_newest(tmp_path, LAYOUT, "run", lines.append)
    assert found is not None
    assert found.round == 12
    assert len(lines) == 2
    assert [path.name for path in list_checkpoints(tmp_path)] == [
        "round-000011", "round-000012", "round-000057", "round-000060",
    ]  # fmt: skip


def test_numbers_that_were_changed_are_noticed(tmp_path: Path) -> None:
    save_checkpoint(tmp_path, state(1), LAYOUT, "run")
    last = save_checkpoint(tmp_path, state(2), LAYOUT, "run")
    facts = json.loads((last / "state.json").read_text())
    facts["plan"] = {}
    (last / "state.json").write_text(json.dumps(facts))
    lines: list[str] = []
    found = load_newest(tmp_path, LAYOUT, "run", lines.append)
    assert found is not None
    assert found.round == 1
    assert "the numbers are not those that were written" in lines[0]
