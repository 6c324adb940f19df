import os
from pathlib import Path

import numpy as np
import pytest
from femnist_files import WRITERS, labels, pictures

from fedgs.data.femnist import CLASSES, convert_femnist, load_femnist, recognise
from fedgs.data.npz import save_npz
from fedgs.errors import InputFileError


def arrays() -> dict[str, np.ndarray]:
    """Three writers, not in the order of their names, the second sample of each a copy of the first."""
    pick = np.array([0, 0, 1, 2, 3, 3, 4, 5, 6, 6, 7, 8])
    return {
        "images": pictures(9, "npz")[pick],
        "labels": labels(9, "npz")[pick].astype(np.uint8),
        "writers": np.repeat(np.int32([0, 1, 2]), 4),
        "writer_names": np.array([WRITERS[2], WRITERS[0], WRITERS[1]]),
        "writer_hsf": np.uint8([4, 0, 1]),
        "leaf_dup": np.tile([False, True, False, False], 3),
        "classes": np.array(CLASSES),
    }


def test_writers_are_sorted_and_copies_dropped(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", **arrays())
    assert recognise(tmp_path / "a.npz") == "npz"
    done = convert_femnist(tmp_path / "a.npz")
    assert done.doubles_dropped == 3
    assert done.dataset.client_names == WRITERS
    assert done.dataset.attributes["hsf"].tolist() == [0, 1, 4]
    assert done.dataset.clients.tolist() == [0] * 3 + [1] * 3 + [2] * 3
    assert np.array_equal(done.dataset.inputs, pictures(9, "npz")[[3, 4, 5, 6, 7, 8, 0, 1, 2]])
    assert np.array_equal(done.dataset.labels, labels(9, "npz")[[3, 4, 5, 6, 7, 8, 0, 1, 2]])


def test_leaf_compat(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", **arrays())
    kept = load_femnist(tmp_path / "a.npz", leaf_compat=True, use_cache=False)
    assert len(kept) == 12
    assert np.array_equal(kept.inputs[0], kept.inputs[1])


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"writers": None}, "no 'writers' in it; it holds classes, images"),
        ({"classes": np.array(CLASSES[:10])}, "its 10 classes are not the 62"),
        ({"images": np.zeros((12, 32, 32), np.uint8)}, r"images are uint8 \(12, 32, 32\)"),
        ({"images": np.zeros((12, 28, 28), np.float32)}, "images are float32"),
        ({"images": pictures(11)}, "11 entries in 'images' but 12 in 'labels'"),
        ({"labels": np.full(12, 62)}, "label 62 of sample 0"),
        ({"writers": np.repeat(np.int32([0, 2]), 6)}, "writer 'f0000_14' has no samples"),
        ({"writers": np.repeat(np.int32([0, 1, 2, 3]), 3)}, "a client number lies outside the 3 client names"),
        ({"writer_names": np.array(["a", "b", "a"])}, "the client name 'a' is there twice"),
        ({"writer_hsf": np.uint8([1])}, "1 entries in 'writer_hsf' but 3 in 'writer_names'"),
        ({"leaf_dup": np.zeros(3, bool)}, "3 entries in 'leaf_dup'"),
        ({"classes": np.array("0")}, "'classes' has 0 dimensions"),
        ({"labels": np.zeros(12)}, "'labels' must be a list of small whole numbers"),
        ({"writer_hsf": np.int64([0, 1, 2**40])}, "'writer_hsf' must be a list of small whole numbers"),
    ],
)
def test_bad_contents(tmp_path: Path, cache: Path, changes: dict[str, np.ndarray | None], message: str) -> None:
    wrong = {key: value for key, value in (arrays() | changes).items() if value is not None}
    np.savez(tmp_path / "odd.npz", **wrong)
    with pytest.raises(InputFileError, match=f"odd.npz: .*{message}"):
        load_femnist(tmp_path / "odd.npz")
    assert not cache.exists()


def test_own_form(tmp_path: Path, cache: Path) -> None:
    np.savez(tmp_path / "a.npz", **arrays())
    dataset = convert_femnist(tmp_path / "a.npz").dataset
    save_npz(dataset, tmp_path / "own.npz")
    again = load_femnist(tmp_path / "own.npz")
    assert np.array_equal(again.inputs, dataset.inputs)
    assert again.attributes["hsf"].tolist() == [0, 1, 4]


def test_real_writers(cache: Path) -> None:
    path = os.environ.get("FEDGS_FEMNIST")
    if not path or not Path(path).exists():
        pytest.skip("FEDGS_FEMNIST does not name a .npz of real FEMNIST")
    dataset = load_femnist(path)
    mapped = load_femnist(path)
    assert np.array_equal(dataset.inputs, mapped.inputs)
    assert len(load_femnist(path, leaf_compat=True)) - len(dataset) == len(dataset.client_names)
    seen = {(int(client), image.tobytes()) for client, image in zip(dataset.clients, dataset.inputs, strict=True)}
    assert len(seen) == len(dataset)  # no writer has an image twice
    from fedgs.data.femnist.form import partition_of

    assert dataset.attributes["hsf"].tolist() == [partition_of(name) for name in dataset.client_names]
