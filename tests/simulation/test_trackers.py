"""Trackers hold the numbers of the rounds, and none twice where a run was killed and goes on."""

import json
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest

import fedgs
from fedgs.errors import ConfigError, MissingDependencyError, OutputError
from fedgs.simulation.trackers import flat
from tests.simulation.small import small_federation

TASK = fedgs.Task("compact")
SMALL: dict[str, Any] = {"rounds": 3, "iterations": 2, "batch_size": 5, "pick": 2, "device": "cpu"}


def killed_and_resumed(folder: Path, name: str) -> fedgs.History:
    """Run three rounds; go on from the checkpoint of the second, as if the process had been killed just after that."""
    settings = {name: True, "checkpoint": {"every": 1}}
    history = fedgs.run(TASK, small_federation(), **SMALL, settings=settings, out=folder)
    shutil.rmtree(folder / "checkpoints/round-000003")
    (folder / "summary.json").unlink()
    fedgs.resume(folder, TASK, small_federation(), device="cpu")
    return history


@pytest.mark.filterwarnings("ignore")  # the library's own
def test_tensorboard(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    history = killed_and_resumed(tmp_path / "run", "tensorboard")
    events = EventAccumulator(str(tmp_path / "run/tensorboard")).Reload()
    assert [(event.step, event.value) for event in events.Scalars("accuracy")] == [
        (line["round"], pytest.approx(line["accuracy"])) for line in history.metrics
    ]
    assert len(events.Scalars("accuracy of devices/50th percentile")) == 4


@pytest.mark.filterwarnings("ignore")
def test_mlflow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mlflow = pytest.importorskip("mlflow")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", (tmp_path / "mlruns").as_uri())
    history = killed_and_resumed(tmp_path / "run", "mlflow")
    client = mlflow.MlflowClient()
    (run,) = client.search_runs([client.get_experiment_by_name("fedgs").experiment_id])
    assert (run.info.run_name, run.info.status) == ("run", "FINISHED")
    assert run.data.params["training.batch_size"] == "5"
    assert [(one.step, one.value) for one in client.get_metric_history(run.info.run_id, "accuracy")] == [
        (line["round"], line["accuracy"]) for line in history.metrics
    ]
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "nowhere://here")
    with pytest.raises(OutputError, match=r"mlflow: .*nowhere.*set mlflow=false") as error:
        fedgs.run(TASK, small_federation(), **SMALL, settings={"mlflow": True}, out=tmp_path / "refused")
    assert "\n" not in str(error.value)
    assert not (tmp_path / "refused").exists()


@pytest.mark.filterwarnings("ignore")
def test_wandb(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wandb = pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    killed_and_resumed(tmp_path / "run", "wandb")
    runs = list((tmp_path / "run/wandb").glob("offline-run-*"))
    name = (tmp_path / "run/wandb.id").read_text().strip()
    assert len(runs) == 2
    assert all(run.name.endswith(name) for run in runs)  # the second goes on with the first
    assert wandb.run is None


def test_libraries_that_are_missing_and_folders_are_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, module in (("tensorboard", "torch.utils.tensorboard"), ("mlflow", "mlflow"), ("wandb", "wandb")):
        monkeypatch.setitem(sys.modules, module, None)
        with pytest.raises(MissingDependencyError, match=rf"{name}=true .* pip install 'fedgs\[{name}\]'"):
            fedgs.run(TASK, small_federation(), **SMALL, settings={name: True}, out=tmp_path / "run")
        assert not (tmp_path / "run").exists()
    with pytest.raises(ConfigError, match="tensorboard=true needs a folder"):
        fedgs.run(TASK, small_federation(), **SMALL, settings={"tensorboard": True})


def test_settings_by_dotted_keys() -> None:
    assert flat({"a": 1, "b": {"c": 2, "d": {"e": None}}}) == {"a": 1, "b.c": 2, "b.d.e": None}
    assert json.dumps(flat(fedgs.Settings().model_dump()))
