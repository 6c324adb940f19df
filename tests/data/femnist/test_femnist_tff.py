from pathlib import Path

import numpy as np
import pytest
from femnist_files import WRITERS, hdf5_file, labels, pictures
from numpy.typing import NDArray

from fedgs.data.femnist import convert_femnist, load_femnist, recognise
from fedgs.errors import InputFileError

h5py = pytest.importorskip("h5py")
Clients = dict[str, tuple[NDArray[np.uint8], NDArray[np.int64]]]


def clients(part: str, count: int, prefix: str = "") -> Clients:
    return {prefix + name: (pictures(count, name, part), labels(count, name, part)) for name in reversed(WRITERS)}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    hdf5_file(tmp_path / "fed_emnist_train.h5", clients("train", 5))
    hdf5_file(tmp_path / "fed_emnist_test.h5", clients("test", 2), column=True)
    return tmp_path


def test_tffs_own_split_is_kept(folder: Path) -> None:
    assert recognise(folder) == "tff"
    dataset = convert_femnist(folder).dataset
    assert dataset.client_names == WRITERS
    assert dataset.test is not None
    assert dataset.test.tolist() == ([False] * 5 + [True] * 2) * 3
    for number, name in enumerate(WRITERS):
        mine = dataset.clients == number
        assert np.array_equal(dataset.inputs[mine & ~dataset.test], pictures(5, name, "train"))
        assert np.array_equal(dataset.inputs[mine & dataset.test], pictures(2, name, "test"))
        assert np.array_equal(dataset.labels[mine & dataset.test], labels(2, name, "test"))


def test_naming_one_of_the_pair_reads_both(folder: Path) -> None:
    assert len(convert_femnist(folder / "fed_emnist_test.h5").dataset) == 21


def test_one_file_alone_is_not_split(folder: Path) -> None:
    (folder / "fed_emnist_test.h5").unlink()
    dataset = convert_femnist(folder).dataset
    assert dataset.test is None
    assert len(dataset) == 15


def test_digits_only_are_read_when_named(folder: Path) -> None:
    hdf5_file(folder / "fed_emnist_digitsonly_train.h5", clients("digits", 1))
    hdf5_file(folder / "fed_emnist_digitsonly_test.h5", clients("more digits", 1))
    assert len(convert_femnist(folder).dataset) == 21
    assert len(convert_femnist(folder / "fed_emnist_digitsonly_train.h5").dataset) == 6


def test_the_hash_before_a_clients_name_is_taken_off(tmp_path: Path) -> None:
    file = hdf5_file(tmp_path / "copy.h5", clients("train", 2, prefix="0123456789abcdef:"))
    assert convert_femnist(file).dataset.client_names == WRITERS


def test_clients_must_agree(folder: Path, cache: Path) -> None:
    fewer = clients("test", 2)
    fewer.pop(WRITERS[1])
    hdf5_file(folder / "fed_emnist_test.h5", fewer)
    with pytest.raises(InputFileError, match=r"fed_emnist_train.h5: writer 'f0001_41' .* in train but not in test"):
        load_femnist(folder)
    assert not cache.exists()


def one(x: NDArray[np.uint8], y: NDArray[np.int64]) -> Clients:
    return {"a": (x, y)}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (one(pictures(0), labels(0)), "client 'a' has no samples"),
        (one(pictures(2), np.array([1, 62])), "client 'a': label 62 of sample 1"),
        (one(pictures(3), labels(2)), r"client 'a': pixels are \(3, 28, 28\) for 2 labels"),
        (one(np.full((2, 32, 32), 255, np.uint8), labels(2)), r"client 'a': pixels are \(2, 32, 32\)"),
        ({}, "there is not one client"),
        (
            {"a": one(pictures(1), labels(1))["a"], "0123456789abcdef:a": one(pictures(1), labels(1))["a"]},
            "there twice",
        ),
    ],
)
def test_bad_contents(tmp_path: Path, cache: Path, content: Clients, message: str) -> None:
    with pytest.raises(InputFileError, match=f"odd.h5: .*{message}"):
        load_femnist(hdf5_file(tmp_path / "odd.h5", content))
    assert not cache.exists()


@pytest.mark.parametrize(
    ("groups", "arrays", "message"),
    [
        ([], ["weights"], "no group 'examples'"),
        ([], ["examples"], "no group 'examples'"),
        ([], ["examples/someone"], "client 'someone' has no 'pixels' and 'label'"),
        (["examples/someone/pixels"], ["examples/someone/label"], "client 'someone' has no 'pixels' and 'label'"),
        ([], ["examples/someone/pixels"], "client 'someone' has no 'pixels' and 'label'"),
    ],
)
def test_other_hdf5_files(tmp_path: Path, groups: list[str], arrays: list[str], message: str) -> None:
    with h5py.File(tmp_path / "a.h5", "w") as file:
        for name in groups:
            file.create_group(name)
        for name in arrays:
            file[name] = np.zeros(3)
    with pytest.raises(InputFileError, match=f"a.h5: {message}"):
        load_femnist(tmp_path / "a.h5")


def test_no_hdf5_file(tmp_path: Path) -> None:
    (tmp_path / "a.h5").write_bytes(b"nothing of the kind")
    with pytest.raises(InputFileError, match=r"a.h5: not a readable HDF5 file"):
        load_femnist(tmp_path / "a.h5")
