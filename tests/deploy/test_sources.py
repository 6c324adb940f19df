import os
import time
from itertools import islice
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from fedgs.data import DeviceStreams, build_federation
from fedgs.data.npz import save_npz
from fedgs.deploy.sources import FolderWatcher, Source, open_source
from fedgs.errors import DataError, FedgsError, InputFileError
from tests.deploy.processes import write_device
from tests.simulation.small import small_set


def test_an_npz_is_replayed_as_the_simulator_does(tmp_path: Path) -> None:
    federation = build_federation(small_set(), 3)
    streams = DeviceStreams(federation, 5, seed=9)
    device = 4
    source = open_source(
        f"npz:{write_device(federation, device, tmp_path / 'd.npz')}", federation.device_names[device], seed=9
    )
    assert isinstance(source, Source)
    for batch in islice(source.batches(5, 4), 20):  # more than an epoch
        assert batch is not None
        samples = streams.take([device])[0]
        np.testing.assert_array_equal(batch.inputs, federation.inputs[samples])
        np.testing.assert_array_equal(batch.targets, federation.labels[samples])


def test_of_an_npz_with_many_owners_a_device_takes_its_own(tmp_path: Path) -> None:
    data = small_set()
    save_npz(data, tmp_path / "all.npz")
    source = open_source(f"npz:{tmp_path / 'all.npz'},seed=1", "device-03")
    mine = data.inputs[data.clients == 3]
    for batch in islice(source.batches(5, 4), 5):
        assert batch is not None
        assert all((image == mine).all(axis=(1, 2)).any() for image in batch.inputs)
    with pytest.raises(InputFileError, match="holds 12 clients and none is called 'camera-1'"):
        open_source(f"npz:{tmp_path / 'all.npz'}", "camera-1")
    other_bins = next(source.batches(5, 62))  # bins are the task's own matter: of a regression, say
    assert other_bins is not None
    assert set(other_bins.targets.tolist()) <= set(data.labels[data.clients == 3].tolist())


def drop(folder: Path, kind: str, name: str, grey: int, age: float = 10.0) -> Path:
    path = folder / kind / name
    path.parent.mkdir(exist_ok=True, parents=True)
    Image.fromarray(np.full((8, 8), grey, np.uint8)).save(path)
    stamp = time.time() - age
    os.utime(path, (stamp, stamp))
    return path


@pytest.mark.parametrize("used", ["keep", "delete"])
def test_a_folder_is_a_stream_of_what_is_dropped_into_it(tmp_path: Path, used: str) -> None:
    for kind in ("crack", "dent", "good"):
        (tmp_path / kind).mkdir()
    drop(tmp_path, "good", "1.png", 10, age=30)
    drop(tmp_path, "crack", "2.png", 20, age=20)
    batches = open_source(f"folder:{tmp_path},used={used}", "d").batches(2, 3)
    first = next(batches)
    assert first is not None
    assert [first.classes[label] for label in first.targets] == ["good", "crack"]  # the oldest first
    assert first.classes == ("crack", "dent", "good")
    assert first.inputs[:, 0, 0].tolist() == [10, 20]
    assert next(batches) is None
    drop(tmp_path, "dent", "3.png", 30)
    (tmp_path / "dent" / "broken.png").write_bytes(b"not an image")
    os.utime(tmp_path / "dent" / "broken.png", (0, 0))
    assert next(batches) is None  # one image is not a batch of two
    drop(tmp_path, "good", "young.png", 40, age=-60)  # still being written, perhaps
    assert next(batches) is None
    drop(tmp_path, "good", "4.png", 50, age=5)
    second = next(batches)
    assert second is not None
    assert second.inputs[:, 0, 0].tolist() == [30, 50]
    drop(tmp_path, "rust", "5.png", 60)  # a class that came later
    drop(tmp_path, "good", "6.png", 70, age=5)
    third = next(batches)
    assert third is not None
    assert [third.classes[label] for label in third.targets] == ["rust", "good"]
    assert (tmp_path / "good" / "1.png").exists() == (used == "keep")


def test_folders_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputFileError, match="no such folder"):
        FolderWatcher(tmp_path / "nowhere")
    drop(tmp_path, "good", "1.png", 10)
    Image.fromarray(np.zeros((4, 4), np.uint8)).save(tmp_path / "good" / "2.png")
    os.utime(tmp_path / "good" / "2.png", (0, 0))
    with pytest.raises(InputFileError, match="2 different sizes; add size="):
        next(FolderWatcher(tmp_path).batches(2, 1))
    resized = next(FolderWatcher(tmp_path, (6, 7)).batches(2, 1))
    assert resized is not None
    assert resized.inputs.shape == (2, 6, 7)


def test_a_camera_reads_on_for_ever_and_never_twice() -> None:
    batches = [batch for batch in islice(open_source("glyphs:3,seed=1", "d").batches(40, 62), 20) if batch is not None]
    again = next(open_source("glyphs:3", "d", seed=1).batches(40, 62))
    assert again is not None
    np.testing.assert_array_equal(batches[0].inputs, again.inputs)
    pictures = np.concatenate([batch.inputs for batch in batches]).reshape(800, -1)
    assert len(np.unique(pictures, axis=0)) == 800
    assert all(batch.targets.max() < 62 for batch in batches)


def test_a_source_of_your_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mine.py").write_text("class Camera:\n    def batches(self, size, classes):\n        yield None\n")
    monkeypatch.syspath_prepend(tmp_path)
    assert list(open_source("mine:Camera", "d").batches(1, 1)) == [None]
    with pytest.raises(DataError, match="module 'mine' has no 'Nothing'"):
        open_source("mine:Nothing", "d")
    with pytest.raises(DataError, match="module 'nobodys' cannot be imported"):
        open_source("nobodys:Camera", "d")
    with pytest.raises(DataError, match="has no method batches"):
        open_source("builtins:object", "d")


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("camera", "expected npz:FILE"),
        ("glyphs:seven", "camera=seven is not a whole number"),
        ("glyphs:7,speed=3", "has no option 'speed'"),
        ("glyphs:7,seed", "'seed' is not an option"),
        ("folder:.,size=28", "size=28 is not possible"),
        ("folder:.,used=burn", "used=burn is not possible"),
        ("npz:nowhere.npz", "nowhere.npz"),
    ],
)
def test_sources_that_cannot_be_are_refused(text: str, reason: str) -> None:
    with pytest.raises(FedgsError, match=reason):
        open_source(text, "d")
