import os
from pathlib import Path

import numpy as np
import pytest
from stored_sets import assert_same, small_set

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
    save_npz(small_set(), tmp_path / "a.npz")
    assert os.listdir(tmp_path) == ["a.npz"]
    assert len(load_npz(tmp_path / "a.npz")) == 5


def test_a_place_that_cannot_be_written(tmp_path: Path) -> None:
    with pytest.raises(OutputError, match=r"nowhere/a.npz: cannot be written \(No such file or directory\)"):
        save_npz(small_set(), tmp_path / "nowhere" / "a.npz")
    (tmp_path / "a.npz").mkdir()
    with pytest.raises(OutputError, match=r"a.npz: cannot be written"):
        save_npz(small_set(), tmp_path / "a.npz")
    assert os.listdir(tmp_path) == ["a.npz"]


def test_an_npz_of_other_arrays(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", x=np.zeros(2))
    with pytest.raises(InputFileError, match=r"a.npz: not written by fedgs .* it holds x"):
        load_npz(tmp_path / "a.npz")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"fedgs_format": np.int64(9)}, "fedgs_format 9 is unknown"),
        ({"targets": np.zeros(3, np.uint8)}, "5 rows of inputs for 3 samples"),
        ({"targets": np.full(5, 7, np.uint8)}, "label 7 has no class"),
        ({"clients": None}, "no 'clients' in it"),
        ({"classes": np.array("no")}, "'classes' has 0 dimensions"),
        ({"inputs": np.uint8(1)}, r"inputs have shape \(\)"),
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


def test_the_next_run_overwrites_what_a_killed_one_left(tmp_path: Path) -> None:
    (tmp_path / ".a.npz.writing").write_bytes(b"half of it")
    save_npz(small_set(), tmp_path / "a.npz")
    assert os.listdir(tmp_path) == ["a.npz"]
