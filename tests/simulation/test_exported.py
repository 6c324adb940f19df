"""Exported models: the same outputs from every kind of file, and what each says of itself."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import nn

import fedgs
from fedgs.errors import ConfigError, FedgsError, InputFileError, OutputError
from tests.conftest import Here

SHADES = ("dark", "grey", "light")


class SmallNet(nn.Module):
    """Batch normalisation and dropout: both differ between training and testing."""

    def __init__(self, channels: int = 3) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(channels, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Dropout(0.5))
        self.head = nn.Linear(4, len(SHADES))

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.head(self.body(images).mean((2, 3)))
        return found


def images_of(labels: NDArray[np.int64]) -> NDArray[np.uint8]:
    draws = np.random.default_rng(1)
    return np.clip(60 + 70 * labels[:, None, None, None] + draws.normal(0, 9, (len(labels), 8, 8, 3)), 0, 255).astype(
        np.uint8
    )


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run on colour images of three shades, with inputs normalised per channel."""
    labels = np.arange(240) % 3
    federation = fedgs.Federation.from_arrays(
        images_of(labels), np.array(SHADES)[labels], devices=np.arange(240) // 30, factories=2
    )
    task = fedgs.Task(model=f"{__name__}:SmallNet")
    settings = {"data": {"normalise": "per-channel"}}
    history = fedgs.run(
        task, federation, rounds=3, iterations=8, batch_size=8, pick=2, learning_rate=0.3, settings=settings
    )
    return history.save(tmp_path_factory.mktemp("exported") / "run")


@pytest.mark.parametrize("suffix", ["safetensors", "pt2", "onnx"])
def test_a_file_gives_the_outputs_of_the_trained_network(run: Path, tmp_path: Path, suffix: str) -> None:
    images = images_of(np.arange(300) % 3)  # more than one batch
    network = fedgs.load_history(run).model
    with torch.no_grad():
        wanted = network(torch.from_numpy(images).permute(0, 3, 1, 2).float() / 255).numpy()
    file = fedgs.load_history(run).export(tmp_path / f"model.{suffix}")
    model = fedgs.load_model(file)
    said = model.predict(images)
    np.testing.assert_allclose(said.outputs, wanted, atol=1e-5)
    np.testing.assert_allclose(said.probabilities.sum(1), 1)
    assert said.labels == [SHADES[place] for place in wanted.argmax(1)]
    for other in (np.int64, np.uint16, np.float32, np.float64):  # the same numbers as another type
        np.testing.assert_array_equal(model.predict(images.astype(other)).outputs, said.outputs)
    facts = model.facts
    assert (facts.classes, facts.inputs, facts.version) == (list(SHADES), [[8, 8, 3], "uint8"], fedgs.__version__)
    weights = fedgs.load_history(run).weights
    assert facts.normalisation == {name: weights[name].tolist() for name in ("mean_0", "deviation_0")}
    assert sorted(path.name for path in tmp_path.iterdir()) == [file.name]


def test_onnx_says_its_facts_to_anybody(run: Path, tmp_path: Path) -> None:
    import onnxruntime

    file = fedgs.load_history(run).export(tmp_path / "model.onnx")
    session = onnxruntime.InferenceSession(str(file))
    facts = json.loads(session.get_modelmeta().custom_metadata_map["fedgs"])
    assert facts["classes"] == list(SHADES)
    assert len(facts["normalisation"]["mean_0"]) == 3
    assert facts["version"] == fedgs.__version__
    assert session.get_inputs()[0].shape[1:] == [3, 8, 8]


def test_values_and_errors(tmp_path: Path) -> None:
    """A network of two inputs that predicts two values; one that draws its inputs again."""
    draws = np.random.default_rng(0)
    table, more = draws.normal(size=(80, 3)).astype(np.float32), draws.normal(size=(80, 2)).astype(np.float32)
    devices = np.arange(80) // 20

    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.dense = nn.Linear(5, 2)

        def forward(self, left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
            found: torch.Tensor = self.dense(torch.cat([left, right], 1))
            return found

    values = fedgs.Federation.from_arrays((table, more), table[:, :2], devices=devices, factories=1)
    small = {"rounds": 1, "iterations": 2, "batch_size": 4, "pick": 2}
    history = fedgs.run(fedgs.regression(Two, bins=2), values, **small)
    model = fedgs.load_model(history.export(tmp_path / "values.pt2"))
    with torch.no_grad():
        wanted = history.model(torch.from_numpy(table), torch.from_numpy(more)).numpy()
    np.testing.assert_allclose(model.predict((table, more)).outputs, wanted, atol=1e-6)
    with pytest.raises(ConfigError, match="takes inputs of shape 3 and 2, given are 4 and 2"):
        model.predict((np.zeros((1, 4), np.float32), more[:1]))

    plain = fedgs.Federation.from_arrays(table, np.zeros((80, 1), np.float32), devices=devices, factories=1)
    drawn = fedgs.run(fedgs.reconstruction(lambda: nn.Linear(3, 3), by=0, anomalous=None), plain, **small)
    said = fedgs.load_model(drawn.export(tmp_path / "drawn.pt2")).predict(table)
    with torch.no_grad():
        again = drawn.model(torch.from_numpy(table)).numpy()
    np.testing.assert_allclose(said.errors, ((again - table) ** 2).mean(1), rtol=1e-5)


def test_commands(run: Path, tmp_path: Path, here: Here) -> None:
    """Export, then predict a folder of photos of another size, some of them in folders named after their class."""
    for name, shade in (("dark/a.png", 60), ("light/b.png", 200), ("somewhere/c.png", 130)):
        path = tmp_path / "photos" / name
        path.parent.mkdir(parents=True)
        Image.new("RGB", (20, 16), (shade, shade, shade)).save(path)
    code, out, _ = here("export", str(run), "model.pt2")
    assert code == 0
    assert "MB" in out
    for model in ("model.pt2", str(run)):
        code, out, _ = here("predict", model, "photos", "--csv")
        rows = [line.split(",") for line in out.splitlines()]
        assert (code, rows[0], len(rows)) == (0, ["sample", "class", "probability"], 4)
        assert [row[0] for row in rows[1:]] == ["dark/a.png", "light/b.png", "somewhere/c.png"]
    code, out, _ = here("predict", "model.pt2", "photos")
    assert "of 2 samples whose class is known" in out
    np.savez("arrays.npz", inputs=images_of(np.arange(30) % 3), targets=np.arange(30) % 3)
    code, out, _ = here("predict", "model.pt2", "arrays.npz")
    assert code == 0
    assert "20 of 30 samples" in out
    np.save("one.npy", np.zeros((2, 8, 8, 3), np.uint8))
    assert here("predict", "model.pt2", "one.npy", "--csv")[0] == 0


def test_what_cannot_be_done_is_one_line(run: Path, tmp_path: Path, here: Here) -> None:
    shutil.copytree(run, tmp_path / "run")
    (tmp_path / "empty").mkdir()
    (tmp_path / "torn.onnx").write_bytes(b"no model")
    (tmp_path / "torn.pt2").write_bytes(b"no model")
    (tmp_path / "torn.safetensors").write_bytes(b"no model")
    np.save(tmp_path / "flat.npy", np.zeros((2, 5), np.float32))
    image = np.full((1, 8, 8, 3), 7.0)
    wrong = {"half": image / 2, "unit": image / 7, "true": image > 0, "high": image + 249, "below": -image.astype(int)}
    for name, array in {**wrong, "nan": image * np.nan, "infinite": image * np.inf}.items():
        np.save(tmp_path / f"{name}.npy", array)
    for arguments, words in (
        (("export", "nowhere", "a.pt2"), "nowhere"),
        (("export", "run", "a.h5"), "must end in"),
        (("export", "run", "run/config.json/a.pt2"), "cannot make this folder"),
        (("predict", "run", "nowhere"), "no such file"),
        (("predict", "nowhere", "empty"), "no such file"),
        (("predict", "run", "empty"), "no image"),
        (("predict", "run", "flat.npy"), "takes inputs of shape 8×8×3"),
        *((("predict", "run", f"{name}.npy"), "trained on inputs of uint8, given are") for name in wrong),
        (("predict", "run", "nan.npy"), "the inputs hold NaN or infinity"),
        (("predict", "run", "infinite.npy"), "the inputs hold NaN or infinity"),
        (("predict", "run", "run/config.json"), "give a folder of images"),
        (("predict", "torn.onnx", "flat.npy"), "cannot be read as a model"),
        (("predict", "torn.pt2", "flat.npy"), "cannot be read as a model"),
        (("predict", "torn.safetensors", "flat.npy"), "cannot be read as a model"),
        (("predict", "run/config.json", "flat.npy"), "a model is a run's folder"),
    ):
        code, _, error = here(*arguments)
        assert (code, len(error.splitlines())) == (2, 1), (arguments, error)
        assert words in error, (arguments, error)
    assert here("export", "run", "new/folder/a.safetensors")[0] == 0  # as every command does that writes


@pytest.mark.parametrize("suffix", ["safetensors", "pt2", "onnx"])
def test_a_full_disk_is_one_line_and_a_file_is_for_all_to_read(run: Path, tmp_path: Path, suffix: str) -> None:
    command = [sys.executable, "-m", "fedgs", "export", str(run), f"model.{suffix}"]
    here = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}  # where the network is imported from
    full = subprocess.run(
        ["sh", "-c", 'ulimit -f 4; exec "$@"', "sh", *command],  # blocks of 512 bytes
        cwd=tmp_path, env=here, capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert (full.returncode, os.listdir(tmp_path)) == (2, []), full.stderr
    assert re.fullmatch(rf"fedgs: error: model\.{suffix}: cannot be written .*\n", full.stderr)
    assert subprocess.run(command, cwd=tmp_path, env=here, timeout=120, stdout=subprocess.DEVNULL).returncode == 0
    assert (tmp_path / f"model.{suffix}").stat().st_mode & 0o444 == 0o444


def test_what_is_torn_is_one_line_on_a_real_stderr(run: Path, tmp_path: Path) -> None:
    """Torch logs whole tracebacks of its own."""
    fedgs.load_history(run).export(tmp_path / "model.pt2")
    content = (tmp_path / "model.pt2").read_bytes()
    (tmp_path / "torn.pt2").write_bytes(content[: len(content) // 2])
    np.save(tmp_path / "one.npy", np.zeros((1, 8, 8, 3), np.uint8))
    done = subprocess.run(
        [sys.executable, "-m", "fedgs", "predict", "torn.pt2", "one.npy"],
        cwd=tmp_path, capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert done.returncode == 2
    assert re.fullmatch(r"fedgs: error: torn\.pt2: cannot be read as a model .*\n", done.stderr)


def test_a_stranger_s_file_and_a_notebook_s_network(tmp_path: Path) -> None:
    from safetensors.torch import save_file

    save_file({"weight": torch.zeros(2)}, tmp_path / "other.safetensors")
    with pytest.raises(InputFileError, match="not exported by fedgs"):
        fedgs.load_model(tmp_path / "other.safetensors")

    class Local(nn.Linear):
        """Cannot be imported, as in a notebook."""

    draws = np.random.default_rng(0)
    federation = fedgs.Federation.from_arrays(
        draws.normal(size=(40, 4)), draws.integers(0, 2, 40), devices=np.arange(40) // 10, factories=1
    )
    task = fedgs.classification(lambda: Local(4, 2), classes=["no", "yes"])
    history = fedgs.run(task, federation, rounds=1, iterations=1, batch_size=4, pick=2)
    file = history.export(tmp_path / "local.safetensors")
    with pytest.raises(FedgsError, match="give its task"):
        fedgs.load_model(file)
    assert set(fedgs.load_model(file, task).predict(np.zeros((3, 4))).labels) <= {"no", "yes"}
    with pytest.raises(OutputError, match="must end in"):
        history.export(tmp_path / "local.bin")
