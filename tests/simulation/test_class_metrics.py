"""Accuracy by class: hand-worked matrices, what a run keeps of them, and a run that stays at one answer."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from torch import nn

import fedgs
from fedgs.simulation.folder import read_metrics
from fedgs.simulation.run import execute
from fedgs.tasks.metrics import class_metrics, confusion_matrix
from tests.simulation.small import small_federation, small_settings


def test_balanced_accuracy_counts_every_class_alike() -> None:
    """Six of class 0, all right; two of class 1, one right; none of class 2, for which one of class 1 was taken."""
    found = confusion_matrix(np.array([0] * 6 + [1] * 2), np.array([0] * 6 + [1, 2]), 3)
    assert found.tolist() == [[6, 0, 0], [0, 1, 1], [0, 0, 0]]
    assert class_metrics(found) == {
        "balanced_accuracy": 0.75, "class_accuracy": [1.0, 0.5, None], "predicted_classes": 3,
    }  # fmt: skip


def test_outputs_beyond_the_classes_are_wrong_and_many_classes_are_not_listed() -> None:
    assert confusion_matrix(np.array([0, 1]), np.array([0, 3]), 2).tolist() == [[1, 0, 0, 0], [0, 0, 0, 1]]
    many = class_metrics(np.eye(101, dtype=np.int64))
    assert many == {"balanced_accuracy": 1.0, "predicted_classes": 101}


def test_a_run_keeps_the_confusions_of_its_last_and_its_best_test(tmp_path: Path) -> None:
    settings, federation = small_settings("training.rounds=4", "training.learning_rate=0.3"), small_federation()
    whole = execute(settings, federation, folder=_made(tmp_path / "a", settings))
    tests = len(federation.test.flat)
    accuracy = {line["round"]: line["accuracy"] for line in whole.metrics}
    for test, value in (("last", accuracy[4]), ("best", max(accuracy.values()))):
        matrix = whole.confusion[test]
        assert matrix.sum(1).tolist() == federation.test_counts.sum(0).tolist()
        assert np.trace(matrix) / tests == pytest.approx(value)
    read = fedgs.load_history(tmp_path / "a")
    assert {test: matrix.tolist() for test, matrix in read.confusion.items()} == {
        test: matrix.tolist() for test, matrix in whole.confusion.items()
    }
    row = read.rows[-1]
    assert row["accuracy_class_a"] == read.metrics[-1]["class_accuracy"][0]
    assert not any(isinstance(value, list | dict) for value in row.values())
    assert whole.summary["balanced_accuracy"]["final"] == row["balanced_accuracy"]

    # The best test lies before the checkpoint that a run goes on from.
    shutil.rmtree(tmp_path / "a/checkpoints/round-000004")
    for name in ("summary.json", "confusion.json"):
        (tmp_path / "a" / name).unlink()
    again = execute(settings, federation, folder=tmp_path / "a")
    assert {test: matrix.tolist() for test, matrix in again.confusion.items()} == {
        test: matrix.tolist() for test, matrix in whole.confusion.items()
    }


def _made(folder: Path, settings: fedgs.Settings) -> Path:
    from fedgs.simulation.folder import create_run

    create_run(folder, settings)
    return folder


def test_folders_from_before_there_were_confusions_are_read(tmp_path: Path) -> None:
    settings = small_settings("training.rounds=1")
    execute(settings, small_federation(), folder=_made(tmp_path / "a", settings))
    (tmp_path / "a/confusion.json").unlink()
    lines = read_metrics(tmp_path / "a")
    new = ("balanced_accuracy", "class_accuracy", "predicted_classes")
    old = [{key: value for key, value in line.items() if key not in new} for line in lines]
    (tmp_path / "a/metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in old))
    history = fedgs.load_history(tmp_path / "a")
    assert history.confusion == {}
    assert [row["round"] for row in history.rows] == [0, 1]


class Notes(fedgs.Callback):
    def __init__(self) -> None:
        self.lines: list[str] = []

    def on_note(self, line: str) -> None:
        self.lines.append(line)


def blind(classes: int, **options: Any) -> fedgs.History:
    """A run whose inputs are all alike: the best answer is always the same."""
    devices = np.repeat(np.arange(8), 20)
    federation = fedgs.Federation.from_arrays(
        np.zeros((160, 3), np.float32), np.arange(160) % classes, devices=devices, factories=2
    )
    notes = Notes()
    task = fedgs.classification(nn.Linear(3, 3), classes=3)
    history = fedgs.run(task, federation, rounds=7, iterations=1, batch_size=4, pick=2, callbacks=[notes], **options)
    history.summary["notes"] = [line for line in notes.lines if "one class" in line]
    return history


def test_a_run_that_stays_at_one_answer_says_so_once_and_what_to_try() -> None:
    summary = blind(classes=3).summary
    assert summary["one_class_since"] == 1
    wanted = "data.normalise=per-channel, training.optimizer=adam, training.learning_rate=0.001"
    assert summary["notes"] == [f"predicts one class only since round 1; try {wanted}"]
    assert summary["balanced_accuracy"]["final"] == pytest.approx(1 / 3)


@pytest.mark.parametrize(("rate", "wanted"), [(0.1, "training.learning_rate=0.01"), (0.002, "training.rounds=28")])
def test_a_low_rate_is_not_to_blame(rate: float, wanted: str) -> None:
    normalised = {"data": {"normalise": "per-channel"}}
    summary = blind(classes=3, optimizer="adam", learning_rate=rate, settings=normalised).summary
    assert [line.partition("; try ")[2] for line in summary["notes"]] == [wanted]


def test_one_class_is_right_where_there_is_no_other() -> None:
    summary = blind(classes=1).summary
    assert (summary["one_class_since"], summary["notes"]) == (None, [])
