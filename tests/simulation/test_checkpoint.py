import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from fedgs.algorithms.run_state import RunState
from fedgs.errors import CheckpointError
from fedgs.simulation.checkpoint import list_checkpoints, load_newest, save_checkpoint
from fedgs.training.layout import Layout, load_model, save_model

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
    for name in ("weights", "local", "average", "stations", "server"):  # exactly: to the bit
        torch.testing.assert_close(getattr(one, name), getattr(other, name), rtol=0, atol=0)
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


def flipped(content: bytes) -> bytes:
    return content[:-1] + bytes([content[-1] ^ 1])


@pytest.mark.parametrize(
    ("file", "harm", "words"),
    [
        ("state.safetensors", lambda content: content[:-9], "torn, the tensors are not those"),
        ("state.safetensors", flipped, "torn, the tensors are not those"),
        ("state.safetensors", None, "torn, state.safetensors cannot be read"),
        ("state.json", None, "torn, state.json cannot be read"),
        ("state.json", lambda content: content[:50], "torn"),
        ("state.json", lambda content: b"", "torn"),
        ("state.json", lambda content: content.replace(b'"queue"', b'"other"'), "torn, the numbers are not those"),
        ("", None, "other settings"),
    ],
)
def test_a_bad_checkpoint_is_refused_with_a_line_and_the_one_before_is_used(
    tmp_path: Path, file: str, harm: Callable[[bytes], bytes] | None, words: str
) -> None:
    save_checkpoint(tmp_path, state(1), LAYOUT, "me")
    newest = save_checkpoint(tmp_path, state(2), LAYOUT, "me" if file else "another")
    if harm is not None:
        (newest / file).write_bytes(harm((newest / file).read_bytes()))
    elif file:
        (newest / file).unlink()
    lines: list[str] = []
    found = load_newest(tmp_path, LAYOUT, "me", lines.append)
    assert found is not None
    assert found.round == 1
    (line,) = lines
    assert "round-000002" in line
    assert words in line
    shutil.rmtree(tmp_path / "round-000001")
    with pytest.raises(CheckpointError, match=r"no checkpoint can be used|begun with other settings"):
        load_newest(tmp_path, LAYOUT, "me")


def test_a_checkpoint_in_the_making_is_not_looked_at(tmp_path: Path) -> None:
    half = tmp_path / ".round-000007.123"
    half.mkdir()
    (half / "state.safetensors").write_bytes(b"half")
    assert load_newest(tmp_path, LAYOUT, "me") is None
    assert not half.exists()


def test_a_model_file(tmp_path: Path) -> None:
    weights = state(3).weights
    save_model(tmp_path / "model.safetensors", LAYOUT.named(weights))
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
