"""Runs that start from a trained model: the same first weights whatever the kind of file, or one line."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

import fedgs
from fedgs.errors import ConfigError, FedgsError, InputFileError
from tests.conftest import Here, error_of
from tests.simulation.small import small_config

SHORT: dict[str, Any] = {"rounds": 1, "iterations": 2, "batch_size": 4, "pick": 2, "device": "cpu"}


def federation(classes: tuple[str, ...] = ("no", "yes"), inputs: int = 4) -> fedgs.Federation:
    draws = np.random.default_rng(0)
    return fedgs.Federation.from_arrays(
        draws.normal(2, 3, size=(60, inputs)), draws.integers(0, len(classes), 60), devices=np.arange(60) // 10,
        factories=2, classes=classes,
    )  # fmt: skip


def task(frozen: bool = False) -> fedgs.Task:
    def network() -> nn.Module:
        made = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3), nn.Linear(3, 2))
        made[0].requires_grad_(not frozen)
        return made

    return fedgs.classification(network)


def first_weights(history: fedgs.History) -> dict[str, torch.Tensor]:
    """The weights of a run without rounds are those it starts from."""
    assert len(history) == 0
    return history.weights


def the_same(one: Any, other: Any) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> fedgs.History:
    return fedgs.run(task(), federation(), **SHORT, out=tmp_path_factory.mktemp("trained") / "run")


@pytest.mark.parametrize(
    ("algorithm", "kind"),
    [
        *(("fedgs", kind) for kind in ("folder", "safetensors", "pt2", "pt", "plain.safetensors")),
        *((name, "folder") for name in ("fedavg", "fedadam", "fedfusion+multi")),
    ],
)
def test_every_kind_of_model_starts_a_run(trained: fedgs.History, algorithm: str, kind: str, tmp_path: Path) -> None:
    assert trained.folder is not None
    model = {"folder": trained.folder}.get(kind, tmp_path / f"model.{kind}")
    if kind in ("safetensors", "pt2"):
        trained.export(model)
    elif kind == "pt":
        torch.save(trained.model.state_dict(), model)
    elif kind == "plain.safetensors":
        save_file(dict(trained.model.state_dict()), model)
    options = SHORT | {"rounds": 0, "seed": 5, "algorithm": algorithm, "init": model}
    fuses = fedgs.classification(task().model, features="0") if algorithm.startswith("fedfusion") else task()
    found = first_weights(fedgs.run(fuses, federation(), **options))
    plain = {name: value for name, value in found.items() if name in trained.weights}
    assert the_same(plain, trained.weights)
    assert not the_same(first_weights(fedgs.run(task(), federation(), **SHORT | {"rounds": 0})), trained.weights)


def test_normalised_inputs(trained: fedgs.History, tmp_path: Path) -> None:
    """A plain state_dict goes behind the normalisation; a model that has its own keeps it."""
    options = SHORT | {"rounds": 0, "settings": {"data": {"normalise": "per-channel"}}}
    torch.save(trained.model.state_dict(), tmp_path / "plain.pt")
    found = first_weights(fedgs.run(task(), federation(), **options, init=tmp_path / "plain.pt"))
    assert the_same({name: found[f"network.{name}"] for name in trained.weights}, trained.weights)
    assert 1.5 < float(found["mean_0"].mean()) < 2.5
    shifted = found | {"mean_0": torch.full((4,), 7.0)}
    save_file(shifted, tmp_path / "shifted.safetensors")
    again = first_weights(fedgs.run(task(), federation(), **options, init=tmp_path / "shifted.safetensors"))
    assert the_same(again, shifted)


def test_models_that_do_not_fit_are_one_line(trained: fedgs.History, tmp_path: Path) -> None:
    weights = dict(trained.model.state_dict())
    less = {name: value for name, value in weights.items() if name != "2.bias"}
    for name, content in {
        "less.pt": less,
        "more.pt": weights | {"3.bias": torch.zeros(2)},
        "other.pt": weights | {"2.bias": torch.zeros(3)},
        "nan.pt": weights | {"2.bias": torch.tensor([1.0, float("nan")])},
        "nested.pt": {"state_dict": weights},
        "module.pt": trained.model,
    }.items():
        torch.save(content, tmp_path / name)
    (tmp_path / "torn.pt").write_bytes(b"no model")
    (tmp_path / "torn.safetensors").write_bytes(b"no model")
    (tmp_path / "torn.pt2").write_bytes(b"no model")
    (tmp_path / "model.onnx").write_bytes(b"")
    (tmp_path / "empty").mkdir()
    for name, words in {
        "less.pt": "has no weight '2.bias'",
        "more.pt": "weight '3.bias' is not in the network; did you mean",
        "other.pt": r"weight '2.bias' has shape \(3,\), in the network \(2,\)",
        "nan.pt": "weight '2.bias' holds NaN",
        "nested.pt": "something else than the tensors of a state_dict",
        "module.pt": "cannot be read as a state_dict; save one with",
        "torn.pt": "cannot be read as a state_dict",
        "torn.safetensors": "cannot be read as a model",
        "torn.pt2": "cannot be read as a model",
        "model.onnx": "export the model as .safetensors or .pt2",
        "empty": "give the folder of a finished run",
        "nowhere": "no such file or folder",
    }.items():
        with pytest.raises((ConfigError, InputFileError), match=words) as error:
            fedgs.run(task(), federation(), **SHORT, init=tmp_path / name, out=tmp_path / "run")
        assert "\n" not in str(error.value)
        assert not (tmp_path / "run").exists()
    for classes, words in ((("yes", "no"), "its classes are no, yes, those of the data yes, no"),):
        with pytest.raises(ConfigError, match=words):
            fedgs.run(task(), federation(classes), **SHORT, init=trained.folder)
    torch.save({name: value + 1 for name, value in weights.items()}, tmp_path / "moved.pt")
    with pytest.raises(ConfigError, match=r"weight '0.weight' is frozen .* load it where the network is made"):
        fedgs.run(task(frozen=True), federation(), **SHORT, init=tmp_path / "moved.pt")


def test_pretrained_models_of_two_kinds_are_one_too_many(trained: fedgs.History) -> None:
    algorithm = {"name": "cgau", "options": {"pretrain_model": str(trained.folder)}}
    with pytest.raises(FedgsError, match=r"the run has init=.* already; give one of them"):
        fedgs.run(
            fedgs.classification(task().model, head="2"), federation(), **SHORT, init=trained.folder,
            settings={"algorithm": algorithm},
        )  # fmt: skip


@pytest.mark.usefixtures("unpainted")
def test_the_command_repeats_and_resumes(tmp_path: Path, here: Here) -> None:
    """The stacked networks of built-in CNNs start from the model too; the model is needed no more once a run began."""
    config = small_config(tmp_path, "training.rounds=1")
    assert here("run", *config, "--out", "a").code == 0
    before = load_file(tmp_path / "a/model.safetensors")
    none = small_config(tmp_path, "training.rounds=0", "algorithm.name=fedavg")
    assert here("run", *none, "--init", "a", "--out", "b").code == 0
    assert the_same(load_file(tmp_path / "b/model.safetensors"), before)

    two = small_config(tmp_path, "training.rounds=2")
    assert here("run", *two, "--init", "a", "--out", "whole").code == 0
    assert here("run", "whole/config.json", "--out", "part").code == 0
    # As if it had been killed after its first round.
    (tmp_path / "part/checkpoints/round-000002").rename(tmp_path / "gone")
    for file in ("summary.json", "model.safetensors"):
        (tmp_path / "part" / file).unlink()
    (tmp_path / "a").rename(tmp_path / "elsewhere")
    assert here("resume", "part").code == 0
    for file in ("metrics.jsonl", "model.safetensors"):
        assert (tmp_path / "part" / file).read_bytes() == (tmp_path / "whole" / file).read_bytes()

    # The path of the model is kept whole, from a settings file too.
    (tmp_path / "elsewhere").rename(tmp_path / "a")
    for given in (["--init", "a"], ["park.toml"]):
        (tmp_path / "park.toml").write_text('init = "a"\n')
        assert here("run", *given, *none, "--out", "c", "--overwrite").code == 0
        assert json.loads((tmp_path / "c/config.json").read_text())["init"] == str(tmp_path / "a")
    (tmp_path / "a").rename(tmp_path / "elsewhere")

    assert "init='a': no such file or folder" in error_of(here("run", *two, "--init", "a"))
    assert not (tmp_path / "runs/quick-init").exists()


@pytest.mark.usefixtures("unpainted")
def test_a_run_that_starts_from_a_model_has_its_classes(tmp_path: Path, here: Here) -> None:
    """A plant need not have every fault; a class that the model does not know is refused."""
    rows = np.arange(80)
    inputs, names = np.random.default_rng(0).normal(size=(80, 4)), np.array(["crack", "dent", "ok"])
    for file, classes in (("all", [0, 1, 2]), ("some", [2, 1]), ("more", [0, 3])):
        targets = np.array([*names, "hole"])[np.array(classes)[rows % len(classes)]]
        np.savez(tmp_path / f"{file}.npz", inputs=inputs, targets=targets, clients=rows % 8)
    options = ["--set", "training.rounds=1", "--set", "training.iterations=1", "--set", "training.batch_size=4"]
    assert here("run", "--data", "all.npz", *options, "--out", "a").code == 0
    assert here("run", "--data", "some.npz", *options, "--init", "a", "--out", "b").code == 0
    assert json.loads((tmp_path / "b/task.json").read_text())["classes"] == ["crack", "dent", "ok"]
    assert load_file(tmp_path / "b/model.safetensors").keys() == load_file(tmp_path / "a/model.safetensors").keys()
    assert here("run", "b/config.json", "--out", "c").code == 0  # without --data
    done = here("run", "--data", "more.npz", *options, "--init", "a", "--out", "d")
    assert done.code == 2
    assert "its classes are crack, dent, ok, those of the data crack, hole" in done.err
