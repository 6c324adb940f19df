import hashlib
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from fedgs.data import DataSet
from fedgs.data.glyphs import camera, load_glyphs
from fedgs.data.glyphs_words import CHARACTERS, LINES
from fedgs.errors import DataError


@pytest.fixture(scope="module")
def few() -> DataSet:
    return load_glyphs(devices=12, samples_per_device=40, seed=3, cache=False)


@pytest.fixture(scope="module")
def many() -> DataSet:
    return load_glyphs(devices=120, samples_per_device=230, cache=False)


def histograms(data: DataSet) -> np.ndarray:
    counts = np.zeros((len(data.client_names), len(data.classes)), int)
    np.add.at(counts, (data.clients, data.labels), 1)
    return counts


def digest(data: DataSet) -> str:
    return hashlib.sha256(data.inputs.tobytes() + data.labels.tobytes() + data.clients.tobytes()).hexdigest()


def test_the_form_is_that_of_every_loader(few: DataSet) -> None:
    assert few.name == "glyphs"
    assert few.inputs.shape == (len(few), 28, 28)
    assert few.inputs.dtype == few.labels.dtype == np.uint8
    assert few.clients.dtype == few.attributes["line"].dtype == np.int32
    assert "".join(few.classes) == "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
    assert few.client_names[0] == "camera-00000"
    assert sorted(few.client_names) == list(few.client_names)
    assert set(few.clients.tolist()) == set(range(12))


def test_a_camera_does_not_depend_on_how_many_others_there_are(few: DataSet) -> None:
    fewer, other = (load_glyphs(devices=5, samples_per_device=40, seed=seed, cache=False) for seed in (3, 4))
    own = few.clients < 5
    assert np.array_equal(fewer.inputs, few.inputs[own])
    assert np.array_equal(fewer.labels, few.labels[own])
    assert digest(other) != digest(fewer)
    assert camera(0, seed=3) != camera(0, seed=4)
    assert np.array_equal(fewer.attributes["line"], few.attributes["line"][:5])


def test_workers_and_processes_do_not_change_a_byte(few: DataSet) -> None:
    program = (
        "import hashlib; from fedgs.data.glyphs import load_glyphs;"
        "d = load_glyphs(devices=12, samples_per_device=40, seed=3, workers=1, cache=False);"
        "print(hashlib.sha256(d.inputs.tobytes() + d.labels.tobytes() + d.clients.tobytes()).hexdigest())"
    )
    environment = {**os.environ, "PYTHONHASHSEED": "7", "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, env=environment)
    assert done.stdout.strip() == digest(few)


def test_ink_is_dark_paper_light_and_every_picture_new(many: DataSet) -> None:
    assert many.inputs.mean() > 180
    for device in range(len(many.client_names)):
        pictures = many.inputs[many.clients == device]
        assert len({picture.tobytes() for picture in pictures}) == len(pictures)  # no two are the same
        pictures = pictures.astype(float)
        corners = pictures[:, [0, 0, -1, -1], [0, -1, 0, -1]]
        assert pictures.mean() > 127
        assert corners.mean() > 150
        # The darkest tenth of the middle is ink: clearly below the paper, in every camera.
        assert np.quantile(pictures[:, 7:21, 7:21], 0.1) < corners.mean() - 40


def test_classes_are_spread_as_in_femnist(many: DataSet) -> None:
    shares = histograms(many).sum(axis=0) / len(many)
    assert shares.min() > 0.001  # every class is there; FEMNIST's rarest has 0.3 %
    assert 0.45 < shares[:10].sum() < 0.55
    assert 0.2 < shares[10:36].sum() < 0.33
    assert 0.17 < shares[36:].sum() < 0.3
    assert shares[:10].max() < 1.5 * shares[:10].min()


def test_sample_counts_have_two_humps_around_the_mean(many: DataSet) -> None:
    counts = np.bincount(many.clients)
    assert counts.mean() == pytest.approx(230, rel=0.08)
    quiet, busy = (counts < 230 * 1.0).sum(), (counts > 230 * 1.05).sum()
    assert quiet + busy > 110
    assert 60 < quiet < 90
    assert counts.min() >= 100


def test_lines_read_what_they_may(many: DataSet) -> None:
    counts, line = histograms(many), many.attributes["line"]
    digits, capitals, small = counts[:, :10].sum(1), counts[:, 10:36].sum(1), counts[:, 36:].sum(1)
    assert LINES == ("digits", "caps", "codes", "mixed")
    assert np.all((digits > 0) == (line != 1))
    assert np.all((capitals > 0) == (line != 0))
    assert np.all((small > 0) == (line == 3))
    # Even a tenth of the park has the lines in proportion, thanks to the golden ratio.
    assert np.all(np.bincount(line[:12], minlength=4) >= 1)


def test_cameras_differ_more_than_femnists_writers(many: DataSet) -> None:
    counts = histograms(many)
    local = counts / counts.sum(axis=1, keepdims=True)
    variation = np.abs(local - counts.sum(axis=0) / counts.sum()).sum(axis=1) / 2
    assert variation.mean() > 0.3  # FEMNIST: 0.26


def test_samples_come_in_the_order_of_the_words(few: DataSet) -> None:
    assert camera(4) == camera(4)
    assert 2 <= len(camera(4).destinations) <= 5
    mixed = int(np.flatnonzero(few.attributes["line"] == LINES.index("mixed"))[0])
    text = "".join(CHARACTERS[label] for label in few.labels[few.clients == mixed])
    assert any(text.startswith(destination) for destination in camera(mixed, seed=3).destinations)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"devices": 0}, "devices=0"),
        ({"devices": 100_001}, "devices=100001"),
        ({"devices": 3.0}, "devices=3.0"),
        ({"devices": True}, "devices=True"),
        ({"samples_per_device": 0}, "samples_per_device=0"),
        ({"samples_per_device": "230"}, "samples_per_device='230'"),
        ({"seed": -1}, "seed=-1"),
        ({"seed": None}, "seed=None"),
        ({"workers": 0}, "workers=0"),
    ],
)
def test_impossible_arguments_are_named(arguments: dict[str, int], words: str) -> None:
    with pytest.raises(DataError) as caught:
        load_glyphs(**{"devices": 1, "samples_per_device": 1, "cache": False, **arguments})
    assert words in str(caught.value)
    assert "give a whole number from" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_the_cache_gives_back_the_same_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDGS_DATA", str(tmp_path / "store"))
    made = load_glyphs(devices=2, samples_per_device=10)
    folders = list((tmp_path / "store").iterdir())
    assert len(folders) == 1  # nothing half-written beside it
    stored = {file: file.stat().st_mtime_ns for file in folders[0].iterdir()}
    read = load_glyphs(devices=2, samples_per_device=10)
    assert {file: file.stat().st_mtime_ns for file in folders[0].iterdir()} == stored
    fresh = load_glyphs(devices=2, samples_per_device=10, cache=False)
    assert digest(made) == digest(read) == digest(fresh)
    assert isinstance(read.inputs, np.memmap)
    assert np.array_equal(read.attributes["line"], fresh.attributes["line"])
    load_glyphs(devices=2, samples_per_device=10, seed=1)
    assert len(list((tmp_path / "store").iterdir())) == 2
