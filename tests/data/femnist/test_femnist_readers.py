"""LEAF's JSON, parquet, TFF's HDF5 and .npz: the same writers come out of each, and what is wrong is one line."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from femnist_files import (
    WRITERS,
    Samples,
    clients,
    hdf5_file,
    labels,
    leaf_file,
    npz_arrays,
    parquet_file,
    pictures,
    png,
    rows,
    user,
)  # fmt: skip

from fedgs.data import DataSet
from fedgs.data.femnist import CLASSES, convert_femnist, load_femnist, recognise
from fedgs.data.femnist.form import partition_of
from fedgs.data.femnist.leaf_json import read_file
from fedgs.data.npz import save_npz
from fedgs.errors import DataError, InputFileError

Clients = dict[str, Samples]


@pytest.fixture
def everybody() -> Clients:
    return {name: user(name, 5 + number, doubled=number > 0) for number, name in enumerate(WRITERS)}


def all_data(folder: Path, users: Clients) -> Path:
    """Two files, with the users in no order."""
    names = list(users)
    leaf_file(folder / "all_data" / "all_data_0.json", {names[2]: users[names[2]], names[0]: users[names[0]]})
    leaf_file(folder / "all_data" / "all_data_1.json", {names[1]: users[names[1]]})
    return folder


def split(folder: Path, users: Clients, test_samples: list[int]) -> Path:
    def part(choose_test: bool) -> Clients:
        chosen = {name: np.isin(np.arange(len(y)), test_samples) == choose_test for name, (_, y) in users.items()}
        return {name: (x[chosen[name]], y[chosen[name]]) for name, (x, y) in users.items()}

    leaf_file(folder / "train" / "all_data_0_niid_1_keep_0_train_9.json", part(False))
    leaf_file(folder / "test" / "all_data_0_niid_1_keep_0_test_9.json", part(True))
    return folder


@pytest.fixture
def parquets(tmp_path: Path) -> Path:
    """Writers out of order, one of them in both files, as no promise of the source forbids."""
    first, second, third = (rows(writer, partition, 5) for writer, partition in zip(WRITERS, (0, 0, 4), strict=True))
    parquet_file(tmp_path / "data" / "train-00000-of-00002.parquet", third + first[:2])
    parquet_file(tmp_path / "data" / "train-00001-of-00002.parquet", first[2:] + second)
    return tmp_path


@pytest.fixture
def hdf5(tmp_path: Path) -> Path:
    hdf5_file(tmp_path / "fed_emnist_train.h5", clients("train", 5))
    hdf5_file(tmp_path / "fed_emnist_test.h5", clients("test", 2), column=True)
    return tmp_path


def assert_writers(dataset: DataSet, sizes: list[int], hsf: list[int]) -> None:
    """Every writer's pictures and labels, in order."""
    assert dataset.client_names == WRITERS
    assert np.bincount(dataset.clients).tolist() == sizes
    assert dataset.attributes["hsf"].tolist() == hsf
    for number, (name, size) in enumerate(zip(WRITERS, sizes, strict=True)):
        assert np.array_equal(dataset.inputs[dataset.clients == number], pictures(size, name))
        assert np.array_equal(dataset.labels[dataset.clients == number], labels(size, name))


def test_leaf_all_data(tmp_path: Path, everybody: Clients) -> None:
    done = convert_femnist(all_data(tmp_path, everybody))
    assert (done.layout, done.doubles_dropped, done.dataset.test) == ("leaf", 2, None)
    assert_writers(done.dataset, [5, 6, 7], [0, 0, 4])
    kept = convert_femnist(tmp_path, leaf_compat=True)
    assert kept.doubles_dropped == 0
    assert np.bincount(kept.dataset.clients).tolist() == [5, 7, 8]
    for path in (tmp_path, tmp_path / "all_data", tmp_path / "all_data" / "all_data_1.json"):
        assert recognise(path) == "leaf"


def test_a_double_across_leafs_split_does_not_leak(tmp_path: Path, everybody: Clients) -> None:
    path = split(tmp_path, everybody, [1, 4])  # sample 1 is the copy of sample 0
    done = convert_femnist(path)
    dataset = done.dataset
    assert done.doubles_dropped == 2
    assert dataset.test is not None
    assert dataset.test[dataset.clients == 0].tolist() == [False] * 3 + [True] * 2
    assert np.array_equal(dataset.inputs[dataset.clients == 0], pictures(5, WRITERS[0])[[0, 2, 3, 1, 4]])
    for client in range(3):
        mine = dataset.clients == client
        train = {image.tobytes() for image in dataset.inputs[mine & ~dataset.test]}
        test = {image.tobytes() for image in dataset.inputs[mine & dataset.test]}
        assert train
        assert test
        assert not train & test
    assert len(convert_femnist(path, leaf_compat=True).dataset) == len(dataset) + 2


def test_all_data_beside_a_split_is_not_read_twice(tmp_path: Path, everybody: Clients) -> None:
    split(all_data(tmp_path, everybody), everybody, [4])
    assert convert_femnist(tmp_path).dataset.test is not None
    assert convert_femnist(tmp_path / "all_data").dataset.test is None


def test_order_of_keys_does_not_matter(tmp_path: Path, everybody: Clients) -> None:
    file = leaf_file(tmp_path / "a.json", everybody, extra=[12345, {"users": '}\\"{'}], hierarchies=None, n=123456)
    content = json.loads(file.read_text())
    file.write_text(json.dumps(dict(reversed(content.items())), indent=1))
    assert {piece.writer for piece in read_file(file)} == set(WRITERS)


def test_parquet_rows_are_grouped_by_writer(parquets: Path) -> None:
    assert recognise(parquets) == "parquet"
    dataset = convert_femnist(parquets).dataset
    assert dataset.test is None
    assert_writers(dataset, [5, 5, 5], [0, 0, 4])
    assert len(convert_femnist(parquets / "data" / "train-00001-of-00002.parquet").dataset) == 8


def test_workers_change_nothing(parquets: Path) -> None:
    for name in WRITERS:
        leaf_file(parquets / "leaf" / f"{name}.json", {name: (pictures(4, name), labels(4, name))})
    assert_writers(convert_femnist(parquets, workers=2).dataset, [5, 5, 5], [0, 0, 4])
    assert_writers(convert_femnist(parquets / "leaf", workers=2).dataset, [4, 4, 4], [0, 0, 4])


def test_tffs_own_split_is_kept(hdf5: Path) -> None:
    assert recognise(hdf5) == "tff"
    for path in (hdf5, hdf5 / "fed_emnist_test.h5"):  # naming one of the pair reads both
        dataset = convert_femnist(path).dataset
        assert dataset.client_names == WRITERS
        assert dataset.test is not None
        assert dataset.test.tolist() == ([False] * 5 + [True] * 2) * 3
    for number, name in enumerate(WRITERS):
        mine = dataset.clients == number
        assert np.array_equal(dataset.inputs[mine & ~dataset.test], pictures(5, name, "train"))
        assert np.array_equal(dataset.inputs[mine & dataset.test], pictures(2, name, "test"))
        assert np.array_equal(dataset.labels[mine & dataset.test], labels(2, name, "test"))


def test_other_files_of_tff(hdf5: Path) -> None:
    hdf5_file(hdf5 / "fed_emnist_digitsonly_train.h5", clients("digits", 1))
    hdf5_file(hdf5 / "fed_emnist_digitsonly_test.h5", clients("more digits", 1))
    assert len(convert_femnist(hdf5).dataset) == 21
    assert len(convert_femnist(hdf5 / "fed_emnist_digitsonly_train.h5").dataset) == 6
    (hdf5 / "fed_emnist_test.h5").unlink()
    alone = convert_femnist(hdf5).dataset
    assert (len(alone), alone.test) == (15, None)
    hashed = hdf5_file(hdf5 / "copy.h5", clients("train", 2, prefix="0123456789abcdef:"))
    assert convert_femnist(hashed).dataset.client_names == WRITERS


def test_npz_writers_are_sorted_and_copies_dropped(tmp_path: Path, cache: Path) -> None:
    np.savez(tmp_path / "a.npz", **npz_arrays())
    assert recognise(tmp_path / "a.npz") == "npz"
    done = convert_femnist(tmp_path / "a.npz")
    assert done.doubles_dropped == 3
    assert done.dataset.client_names == WRITERS
    assert done.dataset.attributes["hsf"].tolist() == [0, 1, 4]
    assert done.dataset.clients.tolist() == [0] * 3 + [1] * 3 + [2] * 3
    assert np.array_equal(done.dataset.inputs, pictures(9, "npz")[[3, 4, 5, 6, 7, 8, 0, 1, 2]])
    assert np.array_equal(done.dataset.labels, labels(9, "npz")[[3, 4, 5, 6, 7, 8, 0, 1, 2]])
    kept = load_femnist(tmp_path / "a.npz", leaf_compat=True, use_cache=False)
    assert len(kept) == 12
    assert np.array_equal(kept.inputs[0], kept.inputs[1])
    again = load_femnist(save_npz(done.dataset, tmp_path / "own.npz"))
    assert np.array_equal(again.inputs, done.dataset.inputs)
    assert again.attributes["hsf"].tolist() == [0, 1, 4]


def test_real_writers(cache: Path) -> None:
    path = os.environ.get("FEDGS_FEMNIST")
    if not path or not Path(path).exists():
        pytest.skip("FEDGS_FEMNIST does not name a .npz of real FEMNIST")
    dataset = load_femnist(path)
    assert np.array_equal(dataset.inputs, load_femnist(path).inputs)
    assert len(load_femnist(path, leaf_compat=True)) - len(dataset) == len(dataset.client_names)
    seen = {(int(client), image.tobytes()) for client, image in zip(dataset.clients, dataset.inputs, strict=True)}
    assert len(seen) == len(dataset)  # no writer has an image twice
    assert dataset.attributes["hsf"].tolist() == [partition_of(name) for name in dataset.client_names]


def test_white_on_black_is_refused_and_can_be_inverted(tmp_path: Path) -> None:
    x, y = user("a", 4, doubled=False)
    file = leaf_file(tmp_path / "inverted.json", {"a": (255 - x, y)})
    with pytest.raises(ValueError, match=r"inverted.json: the images are white on black"):
        convert_femnist(file)
    assert np.array_equal(convert_femnist(file, invert=True).dataset.inputs, x)


X, Y = pictures(2, "a").reshape(2, -1) / 255, [1, 2]
PNG = png(pictures(1)[0])


def leaf(**changes: object) -> Callable[[Path], Path]:
    return lambda folder: leaf_file(folder / "odd.json", {"a": (pictures(2, "a"), np.array(Y))}, **changes)


def leaf_user(x: object, y: object) -> Callable[[Path], Path]:
    return leaf(user_data={"a": {"x": x, "y": y}}, num_samples=[len(y)])  # type: ignore[arg-type]


def text(content: str) -> Callable[[Path], Path]:
    def make(folder: Path) -> Path:
        (folder / "odd.json").write_bytes(content.encode("latin-1"))
        return folder / "odd.json"

    return make


def parquet(*row: Any) -> Callable[[Path], Path]:
    return lambda folder: parquet_file(folder / "odd.parquet", [*rows("f0001_41", 0, 5), row])


def tff(x: Any, y: Any, *names: str) -> Callable[[Path], Path]:
    return lambda folder: hdf5_file(folder / "odd.h5", dict.fromkeys(names or ("a",), (x, y)))


def groups(*paths: str) -> Callable[[Path], Path]:
    def make(folder: Path) -> Path:
        with h5py.File(folder / "odd.h5", "w") as file:
            for path in paths:
                if path.endswith("/"):
                    file.create_group(path)
                else:
                    file[path] = np.zeros(3)
        return folder / "odd.h5"

    return make


def npz(**changes: np.ndarray | None) -> Callable[[Path], Path]:
    def make(folder: Path) -> Path:
        arrays = npz_arrays() | changes
        np.savez(folder / "odd.npz", **{key: value for key, value in arrays.items() if value is not None})
        return folder / "odd.npz"

    return make


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (leaf_user([[1.0] * 783, [1.0] * 784], Y), "user 'a': image 0 has 783 pixels"),
        (leaf_user([[1.0] * 783] * 2, Y), r"user 'a': pixels are \(2, 783\) for 2 labels"),
        (leaf_user(X.tolist(), [1, 62]), "user 'a': label 62 of sample 1"),
        (leaf_user(X.tolist(), [1, -1]), "user 'a': label -1"),
        (leaf_user(X.tolist(), [1, 1.5]), "labels must be whole numbers"),
        (leaf_user(X.tolist(), [1]), "lists of the same length"),
        (leaf(user_data={"a": {"x": X.tolist()}}), "user 'a' has no 'x' and 'y'"),
        (leaf_user([], []), "user 'a' has no samples"),
        (leaf_user([["1"] * 784] * 2, ["a", "b"]), "pixels must be numbers"),
        (leaf_user((X * 255).tolist(), Y), "pixels must lie in 0..1"),
        (
            leaf_user([[0.5] * 784], [1]),
            "user 'a': a pixel is 0.50 off FEMNIST's 256 grey levels",
        ),
        *((leaf_user([[pixel] * 784], [1]), "user 'a': pixels must be numbers") for pixel in ("0.5", True, None)),
        (leaf_user([[[0.5]] * 784], [1]), "user 'a': pixels are"),
        (leaf(num_samples=[3]), "num_samples of user 'a' is 3, but there are 2"),
        (leaf(num_samples=[2, 2]), "'num_samples' 2"),
        (leaf(users=["b"]), "must name the same ones"),
        (leaf(users="a"), "'users' must be a list of names"),
        (leaf(user_data=[]), "must name the same ones"),
        *((text(content), "") for content in ("", "[]", "{}", '{"users": ["a"]}', "{1: 2}", '{"a" 1}')),
        *((text(content), "") for content in ('{"users": []} x', '{"user_data": {"a": 1}}', "\xff")),
        (text('{"users": ' + "[" * 2_000), "broken or truncated JSON"),
        (parquet("f0001_41", 0, 62, PNG), "label 62 of sample 5"),
        (parquet("f0001_41", 0, 3, b"not a png"), "image of row 5: not a readable PNG"),
        (parquet("f0001_41", 0, 3, PNG[:90]), "image of row 5: not a readable PNG"),
        (parquet("f0001_41", 0, 3, png(np.full((32, 28), 255, np.uint8))), "image of row 5 has 28x32 pixels"),
        (parquet("f0001_41", 0, 3, None), "image of row 5 has no bytes"),
        (parquet(None, 0, 3, PNG), "row 5 has no writer_id"),
        (parquet("f0001_41", None, 3, PNG), "hsf_id of row 5 is None"),
        (parquet("f0001_41", 0, None, PNG), "character of row 5 is None"),
        (parquet("f0001_41", 2**40, 1, PNG), "hsf_id of row 5 is 1099511627776; a small whole number"),
        (lambda folder: parquet_file(folder / "odd.parquet", []), "there is not one row"),
        (tff(pictures(0), labels(0)), "client 'a' has no samples"),
        (tff(pictures(2), np.array([1, 62])), "client 'a': label 62 of sample 1"),
        (tff(pictures(3), labels(2)), r"client 'a': pixels are \(3, 28, 28\) for 2 labels"),
        (tff(np.full((2, 32, 32), 255, np.uint8), labels(2)), r"client 'a': pixels are \(2, 32, 32\)"),
        (tff(pictures(1), labels(1), "a", "0123456789abcdef:a"), "there twice"),
        (groups("examples/"), "there is not one client"),
        (groups("weights"), "no group 'examples'"),
        (groups("examples"), "no group 'examples'"),
        (groups("examples/one"), "client 'one' has no 'pixels' and 'label'"),
        (groups("examples/one/pixels/", "examples/one/label"), "client 'one' has no 'pixels' and 'label'"),
        (groups("examples/one/pixels"), "client 'one' has no 'pixels' and 'label'"),
        (npz(writers=None), "no 'writers' in it; it holds classes, images"),
        (npz(classes=np.array(CLASSES[:10])), "its 10 classes are not the 62"),
        (npz(classes=np.array("0")), "'classes' has 0 dimensions"),
        (npz(images=np.zeros((12, 32, 32), np.uint8)), r"images are uint8 \(12, 32, 32\)"),
        (npz(images=np.zeros((12, 28, 28), np.float32)), "images are float32"),
        (npz(labels=labels(11)), "11 entries in 'labels' but 12 in 'images'"),
        (npz(labels=np.full(12, 62)), "label 62 of sample 0"),
        (npz(labels=np.zeros(12)), "'labels' must be a list of small whole numbers"),
        (npz(writers=np.repeat(np.int32([0, 2]), 6)), "writer 'f0000_14' has no samples"),
        (npz(writers=np.repeat(np.int32([0, 1, 2, 3]), 3)), "outside the 3 writer names"),
        (npz(writer_names=np.array(["a", "b", "a"])), "a writer's name is there twice"),
        (npz(writer_hsf=np.uint8([1])), "1 entries in 'writer_hsf' but 3 in 'writer_names'"),
        (npz(writer_hsf=np.int64([0, 1, 2**40])), "'writer_hsf' must be a list of small whole numbers"),
        (npz(leaf_dup=np.zeros(3, bool)), "3 entries in 'leaf_dup'"),
    ],
)
def test_bad_contents_name_the_file(tmp_path: Path, cache: Path, make: Callable[[Path], Path], message: str) -> None:
    with pytest.raises(InputFileError, match=rf"odd\.\w+: .*{message}"):
        load_femnist(make(tmp_path))
    assert not cache.exists()


@pytest.mark.parametrize(
    ("file", "writers", "message"),
    [
        ("test/all_data_0_niid_1_keep_0_test_9.json", WRITERS[:2],
         r"train_9.json: writer 'f2100_70' .* in train but not in test"),
        ("test/more.json", ("f0009_09",), r"more.json: writer 'f0009_09' .* in test but not in train"),
        ("train/more.json", WRITERS[:1], r"more.json: user 'f0000_14' is in all_data_0_niid_1_keep_0_train_9.json"),
    ],
)  # fmt: skip
def test_a_split_whose_users_do_not_fit(
    tmp_path: Path, everybody: Clients, cache: Path, file: str, writers: tuple[str, ...], message: str
) -> None:
    split(tmp_path, everybody, [4])
    leaf_file(tmp_path / file, {name: user(name, 2) for name in writers})
    with pytest.raises(InputFileError, match=message):
        load_femnist(tmp_path)
    assert not cache.exists()


@pytest.mark.parametrize("part", [0.1, 0.5, 0.9, 0.9999])
def test_truncated_json(tmp_path: Path, everybody: Clients, cache: Path, part: float) -> None:
    file = leaf_file(tmp_path / "all_data_7.json", everybody)
    content = file.read_text()
    file.write_text(content[: int(len(content) * part)])
    with pytest.raises(InputFileError, match=r"all_data_7.json: broken or truncated JSON"):
        load_femnist(file)
    assert not cache.exists()


def test_no_user_at_all_names_a_file(tmp_path: Path) -> None:
    leaf_file(tmp_path / "all_data" / "none.json", {})
    with pytest.raises(InputFileError, match=r"none\.json: 'users' is empty"):
        convert_femnist(tmp_path)
    leaf_file(tmp_path / "all_data" / "some.json", {"a": user("a", 2)})
    assert convert_femnist(tmp_path).dataset.client_names == ("a",)


@pytest.mark.parametrize(("there", "missing"), [("train", "test"), ("test", "train")])
def test_half_a_split(tmp_path: Path, there: str, missing: str) -> None:
    leaf_file(tmp_path / there / "a.json", {"a": user("a", 2)})
    with pytest.raises(InputFileError, match=f"{missing}: no JSON there, but beside it"):
        convert_femnist(tmp_path)


def test_clients_of_tff_must_agree(hdf5: Path) -> None:
    fewer = clients("test", 2)
    fewer.pop(WRITERS[1])
    hdf5_file(hdf5 / "fed_emnist_test.h5", fewer)
    with pytest.raises(InputFileError, match=r"fed_emnist_train.h5: writer 'f0001_41' .* in train but not in test"):
        convert_femnist(hdf5)


def test_parquet_files_that_cannot_be_read(parquets: Path, cache: Path) -> None:
    with pytest.raises(DataError, match="parquet files never have them"):
        convert_femnist(parquets, leaf_compat=True)
    file = parquets / "data" / "train-00000-of-00002.parquet"
    whole = file.read_bytes()
    for damage in (slice(-20, None), slice(4, 400)):
        content = bytearray(whole)
        content[damage] = b"\xff" * len(content[damage])
        file.write_bytes(content)
        with pytest.raises(InputFileError, match=f"{file.name}: "):
            load_femnist(parquets)
    assert not cache.exists()
    pq.write_table(pa.table({"image": [b""], "writer_id": ["a"], "hsf_id": [0]}), file)
    with pytest.raises(InputFileError, match=r"parquet: no column 'character'"):
        load_femnist(parquets)


def test_no_hdf5_file(tmp_path: Path) -> None:
    (tmp_path / "a.h5").write_bytes(b"nothing of the kind")
    with pytest.raises(InputFileError, match=r"a.h5: not a readable HDF5 file"):
        load_femnist(tmp_path / "a.h5")
