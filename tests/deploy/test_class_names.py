"""Classes go by name: devices that have some of them, in an order of their own, and one that writes one otherwise."""

import asyncio
import logging
from pathlib import Path

import numpy as np
import pytest

import fedgs
from fedgs.data import from_arrays, save_npz
from fedgs.deploy.sources import open_source
from fedgs.errors import CheckpointError, ConfigError
from tests.deploy.devices import agent, run_top, running
from tests.deploy.processes import Park
from tests.simulation.small import SMALL

SETTINGS = [
    *SMALL, "task.model=linear", "federation.devices=3", "federation.factories=1", "selection.pick=2",
    "training.iterations=10", "training.rounds=2", "training.batch_size=4", "training.learning_rate=0.5",
]  # fmt: skip
GREY = {"bright": 220, "dark": 20, "Dark": 20}


def write(path: Path, *names: str) -> Path:
    """Write samples of these classes, numbered in the order of their names."""
    labels = np.array(names * 8)
    images = np.array([np.full((8, 8), GREY[name], np.uint8) for name in labels])
    return save_npz(from_arrays(images, labels), path)


async def test_devices_with_other_classes_train_the_same_model(
    park: Park, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """By its own order the second device would call dark what is bright for the first."""
    held_out = write(tmp_path / "held-out.npz", "bright", "dark")
    station = await park.serve("s1", min_devices=2, gather=20)
    files = {"a": ("bright", "dark"), "b": ("dark",), "c": ("bright", "Dark")}
    agents = {
        name: agent(park, station, name, open_source(f"npz:{write(tmp_path / f'{name}.npz', *mine)}", name))
        for name, mine in files.items()
    }
    with caplog.at_level(logging.INFO, "fedgs.deploy"):
        async with running(*(one.run() for one in agents.values())):
            await asyncio.wait_for(run_top(park, [station], SETTINGS, held_out=str(held_out)), 60)
    assert [agents[name].steps > 0 for name in "abc"] == [True, True, False]
    last = park.rounds()[-1]
    assert (last["accuracy"], last["balanced_accuracy"], last["class_accuracy"]) == (1.0, 1.0, [1.0, 1.0])
    # The third one has no dark because it has Dark: that is what its log says.
    assert {record.missing for record in caplog.records if hasattr(record, "missing")} == {"bright"}
    reasons = {str(getattr(record, "reason", "")) for record in caplog.records}
    assert "the source: the class 'Dark' is not one of the task's; did you mean 'dark'?" in reasons
    model = fedgs.load_model(park.folder / "state/model.safetensors")
    assert model.facts.classes == ["bright", "dark"]
    assert model.predict(np.full((1, 8, 8), 25, np.uint8)).labels == ["dark"]

    # The names are part of the run: it is not resumed with others.
    with pytest.raises(CheckpointError, match="belongs to a run with other settings"):
        await run_top(park, [station], SETTINGS, classes=["dark", "bright"], image="8x8")


async def test_names_that_do_not_fit_the_held_out_set_are_refused(park: Park, tmp_path: Path) -> None:
    held_out = str(write(tmp_path / "held-out.npz", "bright", "dark"))
    for classes, reason in ((["Dark", "bright"], "the class 'dark' is not one of the task's"), (3, "has 2")):
        with pytest.raises(ConfigError, match=reason):
            await run_top(park, [], SETTINGS, held_out=held_out, classes=classes)
