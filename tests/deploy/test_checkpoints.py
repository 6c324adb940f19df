"""What the top server keeps on disk: checkpoints that fall back to older ones, and the metrics beside them."""

import asyncio
import json
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save

from fedgs.config import load_settings
from fedgs.deploy.top_state import Checkpoints, TopState, checkpoints, save_model, settings_digest
from fedgs.errors import CheckpointError
from tests.deploy.test_top import SETTINGS, Fake, play, top


def test_a_checkpoint_holds_everything_and_belongs_to_its_run(tmp_path: Path) -> None:
    settings = load_settings(overrides=["server.rule=fedadam", "training.rounds=9"])
    server = top(Fake("a", 1.0), settings=settings)
    state = play(server, z=torch.tensor([1.0, 2.0]), a=torch.ones(2, 2))  # not in the order of the alphabet
    digest = settings_digest(settings, "0123456789abcdef")
    Checkpoints(tmp_path, digest).save(state)
    back = Checkpoints(tmp_path, digest).load()
    assert back is not None
    assert list(back.weights) == ["z", "a"]
    assert (back.run, back.round, list(back.metrics)) == ("run", 1, list(state.metrics))
    one, other = asyncio.run(server.advance(state)), asyncio.run(server.advance(back))
    for name in state.weights:
        assert torch.equal(one.weights[name], other.weights[name])
    for changed in (
        settings_digest(SETTINGS, "0123456789abcdef"),
        settings_digest(settings, "fedcba9876543210"),  # another network
    ):
        with pytest.raises(CheckpointError, match="belongs to a run with other settings"):
            Checkpoints(tmp_path, changed).load()
    save_model(tmp_path, state)
    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert [line["round"] for line in lines] == [0, 1]
    assert Checkpoints(tmp_path / "none", "x").load() is None
    (newest,) = checkpoints(tmp_path)
    newest.rename(tmp_path / "checkpoint.safetensors")  # as earlier versions wrote it
    back = Checkpoints(tmp_path, digest).load()
    assert back is not None
    assert back.round == 1


def flipped(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[-5] ^= 1
    path.write_bytes(content)


def torn(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-9])


def with_nan(path: Path) -> None:
    """A checkpoint whose digest is right."""
    facts = safe_open(path, "pt").metadata()
    content = save({name: value * torch.nan for name, value in load_file(path).items()}, facts)
    path.unlink()
    path.with_name(f"{path.name.split('.')[0]}.{sha256(content).hexdigest()}.safetensors").write_bytes(content)


def test_a_damaged_checkpoint_falls_back_to_the_one_before_and_when_all_are_the_end_is_clear(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    server = top(Fake("a", 1.0))
    state, kept = play(server, w=torch.tensor([1.0, 2.0])), Checkpoints(tmp_path, "x")
    for _ in range(4):
        state = asyncio.run(server.advance(state))
        kept.save(state)
    assert [path.name[:19] for path in checkpoints(tmp_path)] == [f"checkpoint-0000000{n}" for n in (5, 4, 3)]
    reasons = ["SHA-256 of its name", "SHA-256 of its name", "not finite"]
    for number, damage in enumerate((flipped, torn, with_nan)):
        damage(checkpoints(tmp_path)[number])
        caplog.clear()
        if number == 2:
            with pytest.raises(CheckpointError, match=r"all 3 checkpoints are damaged .* put one back from a copy"):
                Checkpoints(tmp_path, "x").load()
        else:
            back = Checkpoints(tmp_path, "x").load()
            assert back is not None
            assert (back.round, len(back.metrics)) == (4 - number, 5 - number)
        shown = [vars(record)["reason"] for record in caplog.records]
        assert [reason in found for reason, found in zip(reasons, shown, strict=False)] == [True] * (number + 1)
    for path in checkpoints(tmp_path)[:2]:
        path.unlink()
    Checkpoints(tmp_path, "x").save(play(server, w=torch.tensor([1.0, 2.0])))
    assert [path.name[:19] for path in checkpoints(tmp_path)] == ["checkpoint-00000001"]  # later ones are no more


def state_of(rounds: int, **line: Any) -> TopState:
    """Return a state after so many rounds, with lines as they are of a real run."""
    lines = [{"round": number, "loss": 4.0 / (number + 1), **line} for number in range(rounds + 1)]
    return TopState("run", rounds, {"w": torch.ones(3)}, {}, metrics=lines)


def changed_facts(path: Path, **changes: Any) -> Path:
    """Write a checkpoint with other facts, and the digest that fits."""
    with safe_open(path, "pt") as file:
        facts = json.loads(file.metadata()["fedgs"]) | changes
    content = save(load_file(path), {"fedgs": json.dumps(facts)})
    path.unlink()
    new = path.with_name(f"{path.name.split('.')[0]}.{sha256(content).hexdigest()}.safetensors")
    new.write_bytes(content)
    return new


def test_a_checkpoint_is_no_larger_after_many_rounds(tmp_path: Path) -> None:
    """Lines of 700 bytes, as those of a park with 62 classes."""
    kept, state = Checkpoints(tmp_path, "x"), state_of(40_000, class_accuracy=[0.123456789] * 50)
    kept.save(state)
    assert checkpoints(tmp_path)[0].stat().st_size < 3000
    assert (tmp_path / "metrics.jsonl").stat().st_size > 20e6
    for _ in range(3):
        line = {**state.metrics[-1], "round": state.round + 1}
        state = replace(state, round=state.round + 1, metrics=(*state.metrics, line))
        kept.save(state)
    back = Checkpoints(tmp_path, "x").load()
    assert back is not None
    assert list(back.metrics) == list(state.metrics)
    assert max(path.stat().st_size for path in checkpoints(tmp_path)) < 3000


def test_a_server_that_dies_between_checkpoint_and_line_has_lost_neither(tmp_path: Path) -> None:
    """Nor does a line count that was torn, or that no checkpoint knows."""
    kept, metrics = Checkpoints(tmp_path, "x"), tmp_path / "metrics.jsonl"
    for rounds in range(3):
        kept.save(state_of(rounds))
    lines = metrics.read_text().splitlines(keepends=True)
    for content in ("".join(lines[:-1]), "".join(lines) + '{"round": 3, "lo', "".join(lines) + '{"round": 3}\n'):
        metrics.write_text(content)
        kept = Checkpoints(tmp_path, "x")
        state = kept.load()
        assert state is not None
        assert [line["round"] for line in state.metrics] == [0, 1, 2]
        kept.save(state)
        assert metrics.read_text() == "".join(lines)
    for path in checkpoints(tmp_path)[:2]:
        path.unlink()
    kept = Checkpoints(tmp_path, "x")
    first = kept.load()
    assert first is not None
    kept.save(first)
    assert metrics.read_text() == lines[0]  # cut back to the checkpoint


def test_damaged_metrics_cost_a_line_in_the_log_and_not_the_run(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    kept, metrics = Checkpoints(tmp_path, "x"), tmp_path / "metrics.jsonl"
    for rounds in range(5):
        kept.save(state_of(rounds))
    text = metrics.read_text()
    for content, left in ((text.replace('"round": 2', '"round": 2!'), [0, 1, 3, 4]), (None, [4])):
        metrics.unlink()
        if content is not None:
            metrics.write_text(content)
        caplog.clear()
        again = Checkpoints(tmp_path, "x")
        state = again.load()
        assert state is not None
        assert (state.round, [line["round"] for line in state.metrics]) == (4, left)
        (record,) = caplog.records
        assert record.getMessage() == "metrics of earlier rounds are damaged"
        again.save(state)
        assert [json.loads(line)["round"] for line in metrics.read_text().splitlines()] == left


def test_a_checkpoint_of_the_format_before_is_resumed(tmp_path: Path) -> None:
    """It held the metrics of all rounds itself; one of a later format is refused in a clear line."""
    state = state_of(3)
    Checkpoints(tmp_path, "x").save(state)
    (path,) = checkpoints(tmp_path)
    old = changed_facts(path, format=2, metrics=state.metrics)
    (tmp_path / "metrics.jsonl").write_text("something else\n")
    kept = Checkpoints(tmp_path, "x")
    back = kept.load()
    assert back is not None
    assert list(back.metrics) == list(state.metrics)
    kept.save(back)
    assert [json.loads(line)["round"] for line in (tmp_path / "metrics.jsonl").read_text().splitlines()] == [0, 1, 2, 3]
    old.unlink(missing_ok=True)
    changed_facts(checkpoints(tmp_path)[0], format=9)
    with pytest.raises(CheckpointError, match="format 9; this one reads up to 3"):
        Checkpoints(tmp_path, "x").load()


def test_a_run_whose_checkpoints_were_deleted_does_not_begin_anew(tmp_path: Path) -> None:
    """A folder with the name of a checkpoint is none."""
    (tmp_path / f"checkpoint-00000009.{'0' * 64}.safetensors").mkdir()
    assert Checkpoints(tmp_path, "x").load() is None
    Checkpoints(tmp_path, "x").save(state_of(1))
    for path in checkpoints(tmp_path):
        path.unlink()
    with pytest.raises(CheckpointError, match="holds the metrics of a run, but none of its checkpoints"):
        Checkpoints(tmp_path, "x").load()
