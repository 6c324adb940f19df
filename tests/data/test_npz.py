import os
import shutil
from pathlib import Path

import numpy as np
import pytest
from small_sets import assert_same, number_images, small_set

from fedgs.data import from_npz
from fedgs.data.npz import load_npz, save_npz
from fedgs.errors import InputFileError, OutputError


@pytest.mark.parametrize("split", [True, False])
@pytest.mark.parametrize("channels", [(), (3,)])
def test_round_trip(tmp_path: Path, channels: tuple[int, ...], split: bool) -> None:
    dataset = small_set(channels, split)
    assert_same(dataset, load_npz(save_npz(dataset, tmp_path / "a.npz")))


def test_files_of_form_1_are_read(tmp_path: Path) -> None:
    """They call inputs images and targets labels."""
    dataset, file = small_set((3,)), tmp_path / "a.npz"
    with np.load(save_npz(dataset, file)) as opened:
        arrays = {key: opened[key] for key in opened.files}
    arrays |= {"fedgs_format": np.int64(1), "images": arrays.pop("inputs"), "labels": arrays.pop("targets")}
    np.savez(file, **arrays)
    assert_same(dataset, load_npz(file))


def test_only_the_file_is_left_and_an_older_one_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "a.npz").write_bytes(b"older")
    (tmp_path / ".a.npz.writing").write_bytes(b"what a killed process left")
    save_npz(small_set(), tmp_path / "a.npz")
    assert os.listdir(tmp_path) == ["a.npz"]
    assert len(load_npz(tmp_path / "a.npz")) == 5


def test_a_place_that_cannot_be_written(tmp_path: Path) -> None:
    save_npz(small_set(), tmp_path / "new" / "folder" / "b.npz")
    with pytest.raises(OutputError, match="cannot make this folder"):
        save_npz(small_set(), tmp_path / "new" / "folder" / "b.npz" / "c.npz")
    shutil.rmtree(tmp_path / "new")
    (tmp_path / "a.npz").mkdir()
    with pytest.raises(OutputError, match=r"a.npz: cannot be written"):
        save_npz(small_set(), tmp_path / "a.npz")
    assert os.listdir(tmp_path) == ["a.npz"]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"fedgs_format": None}, "not written by fedgs .* it holds attribute_line, classes"),
        ({"fedgs_format": np.int64(9)}, "fedgs_format 9 is unknown"),
        ({"targets": np.zeros(3, np.uint8)}, "5 rows of inputs, 3 rows of targets"),
        ({"clients": None}, "no array 'clients' or 'owners'; it holds"),
        ({"classes": np.array("no")}, "'classes' has 0 dimensions"),
        ({"fedgs_format": np.int64([1, 1])}, "fedgs_format .1 1. is unknown"),
    ],
)
def test_inconsistent_contents(tmp_path: Path, changes: dict[str, np.ndarray | None], message: str) -> None:
    file = save_npz(small_set(), tmp_path / "a.npz")
    with np.load(file) as opened:
        arrays = {key: opened[key] for key in opened.files} | changes
    np.savez(file, **{key: value for key, value in arrays.items() if value is not None})
    with pytest.raises(InputFileError, match=f"a.npz: .*{message}"):
        load_npz(file)


def test_nan_is_named_by_the_row_of_the_file(tmp_path: Path) -> None:
    inputs = np.zeros((6, 2), np.float32)
    inputs[4, 1] = np.nan
    np.savez(tmp_path / "mine.npz", inputs=inputs, targets=np.arange(6) % 2, devices=["c", "b", "a", "c", "b", "a"])
    with pytest.raises(InputFileError, match=r"mine.npz: .*inputs of sample 4 \(device 'b'\) hold NaN"):
        from_npz(tmp_path / "mine.npz")


def test_a_file_of_ones_own(tmp_path: Path) -> None:
    file = tmp_path / "mine.npz"
    np.savez(
        file,
        images=number_images(3),
        labels=[1, 0, 1],
        clients=[0, 1, 1],
        client_names=["b", "a"],
        attribute_line=[7, 3],
        classes=["no", "yes"],
        test=[0, 1, 0],
    )
    dataset = from_npz(file)
    assert dataset.name == "mine"
    assert dataset.client_names == ("a", "b")
    assert dataset.attributes["line"].tolist() == [3, 7]
    assert dataset.labels.tolist() == [0, 1, 1]
    assert dataset.classes == ("no", "yes")
    assert dataset.test is not None
    assert dataset.test.tolist() == [True, False, False]


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"images": number_images(3)}, "no array 'targets' or 'labels'; it holds images"),
        ({"images": number_images(2), "labels": [0, -1], "classes": ["a", "b"]}, ".*label -1 is negative"),
        (
            {"images": number_images(2), "labels": [0, 1], "classes": "ab"},
            "'classes' has 0 dimensions",
        ),
        ({"images": np.array([None]), "labels": [0]}, "not a readable .npz"),
    ],
)
def test_bad_npz(tmp_path: Path, arrays: dict[str, object], message: str) -> None:
    np.savez(tmp_path / "odd.npz", **arrays)  # type: ignore[arg-type]
    with pytest.raises(InputFileError, match=rf"odd\.npz: {message}"):
        from_npz(tmp_path / "odd.npz")


def test_files_that_are_no_npz(tmp_path: Path) -> None:
    with pytest.raises(InputFileError, match=r"none\.npz: no such file"):
        from_npz(tmp_path / "none.npz")
    np.savez(tmp_path / "whole.npz", images=number_images(3))
    whole = (tmp_path / "whole.npz").read_bytes()
    for content in (b"hello", b"", whole[: len(whole) // 2]):
        (tmp_path / "odd.npz").write_bytes(content)
        with pytest.raises(InputFileError, match=r"odd\.npz: not a readable"):
            from_npz(tmp_path / "odd.npz")
    np.save(tmp_path / "one.npy", np.zeros(3))
    with pytest.raises(InputFileError, match=r"one\.npy: holds a single array"):
        from_npz(tmp_path / "one.npy")
