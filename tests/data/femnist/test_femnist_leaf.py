import json
from pathlib import Path

import numpy as np
import pytest
from femnist_files import WRITERS, labels, leaf_file, pictures
from numpy.typing import NDArray

from fedgs.data.femnist import convert_femnist, load_femnist, recognise
from fedgs.data.femnist.leaf_json import read_file
from fedgs.errors import InputFileError

User = tuple[NDArray[np.uint8], NDArray[np.int64]]


def user(name: str, count: int, doubled: bool = True) -> User:
    """A writer as LEAF leaves them: the first image twice."""
    x, y = pictures(count, name), labels(count, name)
    return (np.insert(x, 0, x[0], 0), np.insert(y, 0, y[0])) if doubled else (x, y)


@pytest.fixture
def everybody() -> dict[str, User]:
    return {name: user(name, 5 + number, doubled=number > 0) for number, name in enumerate(WRITERS)}


def all_data(folder: Path, users: dict[str, User]) -> Path:
    """Two files, with the users in no order."""
    names = list(users)
    leaf_file(folder / "all_data" / "all_data_0.json", {names[2]: users[names[2]], names[0]: users[names[0]]})
    leaf_file(folder / "all_data" / "all_data_1.json", {names[1]: users[names[1]]})
    return folder


def test_all_data(tmp_path: Path, everybody: dict[str, User]) -> None:
    done = convert_femnist(all_data(tmp_path, everybody))
    dataset = done.dataset
    assert (done.layout, done.doubles_dropped) == ("leaf", 2)
    assert dataset.client_names == WRITERS
    assert np.bincount(dataset.clients).tolist() == [5, 6, 7]
    assert dataset.attributes["hsf"].tolist() == [0, 0, 4]
    assert dataset.test is None
    for number, name in enumerate(WRITERS):
        mine = dataset.clients == number
        assert np.array_equal(dataset.inputs[mine], pictures(5 + number, name))
        assert np.array_equal(dataset.labels[mine], labels(5 + number, name))


def test_leaf_compat_keeps_the_doubles(tmp_path: Path, everybody: dict[str, User]) -> None:
    done = convert_femnist(all_data(tmp_path, everybody), leaf_compat=True)
    assert done.doubles_dropped == 0
    assert np.bincount(done.dataset.clients).tolist() == [5, 7, 8]


def split(folder: Path, users: dict[str, User], test_samples: list[int]) -> Path:
    def part(choose_test: bool) -> dict[str, User]:
        chosen = {name: np.isin(np.arange(len(y)), test_samples) == choose_test for name, (_, y) in users.items()}
        return {name: (x[chosen[name]], y[chosen[name]]) for name, (x, y) in users.items()}

    leaf_file(folder / "train" / "all_data_0_niid_1_keep_0_train_9.json", part(False))
    leaf_file(folder / "test" / "all_data_0_niid_1_keep_0_test_9.json", part(True))
    return folder


def test_a_split_folder_keeps_its_split(tmp_path: Path, everybody: dict[str, User]) -> None:
    dataset = convert_femnist(split(tmp_path, everybody, [3, 4])).dataset
    assert dataset.test is not None
    assert dataset.test[dataset.clients == 0].tolist() == [False] * 3 + [True] * 2
    assert np.array_equal(dataset.inputs[dataset.clients == 0], pictures(5, WRITERS[0]))


def test_a_double_across_the_split_does_not_leak(tmp_path: Path, everybody: dict[str, User]) -> None:
    path = split(tmp_path, everybody, [1, 4])  # sample 1 is the copy of sample 0
    done = convert_femnist(path)
    dataset = done.dataset
    assert done.doubles_dropped == 2
    assert dataset.test is not None
    for client in range(3):
        mine = dataset.clients == client
        train = {image.tobytes() for image in dataset.inputs[mine & ~dataset.test]}
        test = {image.tobytes() for image in dataset.inputs[mine & dataset.test]}
        assert train
        assert test
        assert not train & test
    kept = convert_femnist(path, leaf_compat=True).dataset
    assert len(kept) == len(dataset) + 2


def test_all_data_beside_a_split_is_not_read_twice(tmp_path: Path, everybody: dict[str, User]) -> None:
    split(all_data(tmp_path, everybody), everybody, [4])
    assert convert_femnist(tmp_path).dataset.test is not None
    assert convert_femnist(tmp_path / "all_data").dataset.test is None


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
    tmp_path: Path, everybody: dict[str, User], cache: Path, file: str, writers: tuple[str, ...], message: str
) -> None:
    split(tmp_path, everybody, [4])
    leaf_file(tmp_path / file, {name: user(name, 2) for name in writers})
    with pytest.raises(InputFileError, match=message):
        load_femnist(tmp_path)
    assert not cache.exists()


@pytest.mark.parametrize("part", [0.1, 0.5, 0.9, 0.9999])
def test_truncated_json(tmp_path: Path, everybody: dict[str, User], cache: Path, part: float) -> None:
    file = leaf_file(tmp_path / "all_data_7.json", everybody)
    text = file.read_text()
    file.write_text(text[: int(len(text) * part)])
    with pytest.raises(InputFileError, match=r"all_data_7.json: broken or truncated JSON"):
        load_femnist(file)
    assert not cache.exists()


X, Y = pictures(2, "a").reshape(2, -1) / 255, [1, 2]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"user_data": {"a": {"x": [[1.0] * 783, [1.0] * 784], "y": Y}}}, "user 'a': image 0 has 783 pixels"),
        ({"user_data": {"a": {"x": X.tolist(), "y": [1, 62]}}}, "user 'a': label 62 of sample 1"),
        ({"user_data": {"a": {"x": X.tolist(), "y": [1, -1]}}}, "user 'a': label -1"),
        ({"user_data": {"a": {"x": X.tolist(), "y": [1, 1.5]}}}, "labels must be whole numbers"),
        ({"user_data": {"a": {"x": X.tolist(), "y": [1]}}}, "lists of the same length"),
        ({"user_data": {"a": {"x": X.tolist()}}}, "user 'a' has no 'x' and 'y'"),
        ({"user_data": {"a": {"x": [], "y": []}}, "num_samples": [0]}, "user 'a' has no samples"),
        (
            {"user_data": {"a": {"x": [["1"] * 784] * 2, "y": ["a", "b"]}}},
            "whole numbers|numbers only|lists of numbers",
        ),
        ({"user_data": {"a": {"x": (X * 255).tolist(), "y": Y}}}, "pixels must lie in 0..1"),
        ({"num_samples": [3]}, "num_samples of user 'a' is 3, but there are 2"),
        ({"num_samples": [2, 2]}, "'num_samples' 2"),
        ({"users": ["b"]}, "must name the same ones"),
        ({"users": "a"}, "'users' must be a list of names"),
        ({"user_data": []}, "must name the same ones"),
    ],
)
def test_bad_contents_name_the_file(tmp_path: Path, cache: Path, changes: dict[str, object], message: str) -> None:
    file = leaf_file(tmp_path / "odd.json", {"a": (pictures(2, "a"), np.array(Y))}, **changes)
    with pytest.raises(InputFileError, match=f"odd.json: .*{message}"):
        load_femnist(file)
    assert not cache.exists()


@pytest.mark.parametrize(
    "text",
    ["", "[]", "{}", '{"users": ["a"]}', "{1: 2}", '{"a" 1}', '{"users": []} x', '{"user_data": {"a": 1}}', "\xff"],
)
def test_files_that_are_not_leaf(tmp_path: Path, text: str) -> None:
    file = tmp_path / "odd.json"
    file.write_bytes(text.encode("latin-1"))
    with pytest.raises(InputFileError, match=r"odd.json: "):
        read_file(file)


def test_white_on_black_is_refused_and_can_be_inverted(tmp_path: Path) -> None:
    x, y = user("a", 4, doubled=False)
    file = leaf_file(tmp_path / "inverted.json", {"a": (255 - x, y)})
    with pytest.raises(ValueError, match=r"inverted.json: the images are white on black"):
        convert_femnist(file)
    assert np.array_equal(convert_femnist(file, invert=True).dataset.inputs, x)


def test_order_of_keys_does_not_matter(tmp_path: Path, everybody: dict[str, User]) -> None:
    file = leaf_file(tmp_path / "a.json", everybody, extra=[12345, {"users": '}\\"{'}], hierarchies=None, n=123456)
    content = json.loads(file.read_text())
    file.write_text(json.dumps(dict(reversed(content.items())), indent=1))
    assert set(read_file(file)) == set(WRITERS)


def test_recognised(tmp_path: Path, everybody: dict[str, User]) -> None:
    assert recognise(all_data(tmp_path, everybody)) == "leaf"
    assert recognise(tmp_path / "all_data") == "leaf"
    assert recognise(tmp_path / "all_data" / "all_data_1.json") == "leaf"


def test_deep_nesting_is_no_traceback(tmp_path: Path) -> None:
    (tmp_path / "deep.json").write_text('{"users": ' + "[" * 2_000)
    with pytest.raises(InputFileError, match=r"deep\.json: broken or truncated JSON"):
        convert_femnist(tmp_path / "deep.json")


@pytest.mark.parametrize("pixel", ["0.5", [0.5], True, None])
def test_pixels_that_are_not_plain_numbers(tmp_path: Path, pixel: object) -> None:
    file = leaf_file(tmp_path / "odd.json", {"a": user("a", 1)}, user_data={"a": {"x": [[pixel] * 784], "y": [1]}})
    with pytest.raises(InputFileError, match=r"odd\.json: user 'a': .*(flat lists of numbers|numbers only)"):
        convert_femnist(file)


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
