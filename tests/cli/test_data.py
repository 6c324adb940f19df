import json
import os
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from fedgs.data import DataSet, cache, glyphs
from fedgs.data.femnist import CLASSES
from fedgs.data.npz import load_npz, save_npz
from fedgs.rng import stream
from tests.conftest import Here, error_of


@pytest.fixture
def fedgs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, here: Here) -> Here:
    """Run ``fedgs data …`` with a cache of its own."""
    monkeypatch.setenv("FEDGS_DATA", str(tmp_path / "cache"))
    monkeypatch.setenv("no_proxy", "*")
    return partial(here, "data")


@pytest.fixture
def file(tmp_path: Path) -> Path:
    images = np.full((6, 28, 28), 255, np.uint8)
    images[:, 8:20, 8:20] = stream(0, "cli").integers(0, 256, (6, 12, 12))
    labels = np.uint8([0, 0, 0, 10, 10, 61])
    dataset = DataSet("femnist", images, labels, np.int32([0, 0, 0, 0, 1, 1]), ("f0000_14", "f2100_01"), CLASSES)
    return save_npz(dataset, tmp_path / "small.npz")


def write_leaf(dataset: DataSet, path: Path) -> None:
    users: dict[str, dict[str, list[object]]] = {}
    for image, label, client in zip(dataset.inputs, dataset.labels, dataset.clients, strict=True):
        user = users.setdefault(dataset.client_names[client], {"x": [], "y": []})
        user["x"].append((image.reshape(-1) / 255).tolist())
        user["y"].append(int(label))
    counts = [len(user["y"]) for user in users.values()]
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps({"users": list(users), "num_samples": counts, "user_data": users}))


def test_inspect_a_file(file: Path, fedgs: Here) -> None:
    done = fedgs("inspect", file)
    assert done.code == 0, done.err
    rows = {tuple(cell.strip() for cell in line.split("│")[1:4]) for line in done.out.splitlines()}
    assert ("0", "3", "0.5") in rows
    assert ("z", "1", "0.166667") in rows
    assert ("b", "0", "0.0") in rows
    assert ("samples", "6") in {row[:2] for row in rows}
    assert "contact_sheet.png" not in done.out
    done = fedgs("inspect", file, "--out", file.parent / "pictures")
    assert "contact_sheet.png" in done.out
    assert (file.parent / "pictures" / "contact_sheet.png").read_bytes().startswith(b"\x89PNG")


def test_convert(file: Path, tmp_path: Path, fedgs: Here) -> None:
    done = fedgs("convert", file, tmp_path / "out.npz")
    assert done.code == 0, done.err
    assert done.out.startswith("femnist: 6 images of 2 clients, written to")
    assert np.array_equal(load_npz(tmp_path / "out.npz").inputs, load_npz(file).inputs)


def test_fetch_what_is_there_then_use_its_name(file: Path, tmp_path: Path, fedgs: Here) -> None:
    trees = tmp_path / "dir"
    write_leaf(load_npz(file), trees / "all_data" / "all_data_0.json")
    data = tmp_path / "cache"
    done = fedgs("fetch", "femnist", "--dir", trees, "--url", "http://127.0.0.1:9")
    assert done.code == 0, done.err
    assert "6 images of 2 clients, from leaf files" in done.out
    assert "cached in" in done.out
    assert "6" in fedgs("inspect", "femnist").out
    assert fedgs("convert", "femnist", tmp_path / "out.npz").code == 0
    listed = fedgs("list", "--verify")
    assert "femnist" in listed.out
    assert "checksums compared" in listed.out
    (data / "femnist" / "images.npy").write_bytes(b"")
    broken = fedgs("list", "--verify")
    assert broken.code == 2
    assert "images.npy: its checksum is wrong" in broken.err


def test_an_empty_cache(tmp_path: Path, fedgs: Here) -> None:
    done = fedgs("list")
    assert (done.code, done.out.strip()) == (0, f"no sets in {tmp_path / 'cache'}")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["inspect", "nothing"],
            "nothing: no such file or folder, and no set of this name; "
            "names are glyphs, bearings, bearings-severity, bearings-anomaly, femnist, those of: fedgs data list",
        ),
        (["inspect", "bearing"], "did you mean 'bearings'?"),
        (["inspect", "femnist"], "run 'fedgs data fetch femnist'"),
        (["inspect", "{file}", "--layout", "csv"], "--layout csv: unknown; choose one of leaf, nist"),
        (["inspect", "{folder}", "--layout", "tff"], "no TFF files (fed_emnist_train.h5"),
        (["inspect", "{file}", "--leaf-compat"], "converted already; layout, leaf_compat and invert are for"),
        (["inspect", "femnist", "--invert"], "femnist: converted already"),
        (["convert", "{file}", "out.txt"], "out.txt: the name of the output must end in .npz"),
        (["convert", "{file}", "{file}/out.npz"], "cannot make this folder"),
        (
            ["convert", "{folder}", "{folder}/out.npz"],
            "a folder without images; fedgs reads folders of images (device/",
        ),
        (["convert", "{file}"], "Missing argument 'OUT.npz'"),
        (["convert", "{file}", "{folder}/out.npz", "--workers", "0"], "--workers"),
        (["convert", "{file}", "{folder}/out.npz", "--invert"], "converted already; layout"),
        (["convert", "{file}", "{folder}/out.npz", "--size", "9"], "--size 9 is not possible"),
        (["convert", "{file}", "{folder}/out.npz", "--size", "9x9"], "are for folders of images"),
        (["fetch", "femnist", "--dir", "{folder}", "--layout", "leaf"], "no LEAF JSON (train/*.json"),
        (["fetch", "femnist", "--layout", "csv"], "--layout csv: unknown"),
        (["fetch", "mnist"], "'mnist' cannot be fetched; femnist can"),
        (["fetch", "femnist", "--url", "http://127.0.0.1:9"], "by_write.zip by hand into"),
        (["fetch", "femnist", "--dir", "{file}"], "cannot be made"),
        (["nonsense"], "No such command 'nonsense'"),
    ],
)
def test_wrong_arguments_are_one_line(
    file: Path, tmp_path: Path, fedgs: Here, arguments: list[str], message: str
) -> None:
    folder = tmp_path / "empty"
    folder.mkdir()
    filled = [argument.format(file=file, folder=folder) for argument in arguments]
    assert message in error_of(fedgs(*filled))
    assert not os.listdir(folder)
    assert not list((tmp_path / "cache").glob("*/set.json"))


def test_one_broken_set_does_not_hide_the_others(file: Path, tmp_path: Path, fedgs: Here) -> None:
    for name, text in (("broken", '{"format": 1}'), ("worse", '{"format": 1, "files": []}')):
        (tmp_path / "cache" / name).mkdir(parents=True)
        (tmp_path / "cache" / name / "set.json").write_text(text)
    cache.store(load_npz(file), "whole", {})
    for options in ([], ["--verify"]):
        done = fedgs("list", *options)
        assert done.code == 2
        assert done.err.startswith("fedgs: error: 2 of 3 sets broken: ")
        rows = {line.split("│")[1].strip(): line for line in done.out.splitlines() if line.startswith("│")}
        assert "broken" in rows["worse"]
        assert "6" in rows["whole"]


def own_arrays(path: Path) -> Path:
    np.savez(path, images=np.zeros((4, 5, 5), np.uint8), labels=["a", "b", "a", "c"], clients=["x", "x", "y", "y"])
    return path


def test_own_arrays_are_inspected_and_converted(tmp_path: Path, fedgs: Here) -> None:
    mine = own_arrays(tmp_path / "mine.npz")
    assert "5 × 5" in fedgs("inspect", mine).out
    done = fedgs("convert", mine, tmp_path / "out.npz")
    assert done.out.startswith("mine: 4 images of 2 clients")
    assert load_npz(tmp_path / "out.npz").classes == ("a", "b", "c")


def test_convert_takes_what_inspect_takes(
    file: Path, tmp_path: Path, fedgs: Here, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = cache.store(load_npz(file), "femnist", {})
    pictures = tmp_path / "pictures" / "camera" / "nut"
    pictures.mkdir(parents=True)
    Image.new("L", (3, 3)).save(pictures / "1.png")
    assert fedgs("convert", tmp_path / "pictures", tmp_path / "small.npz", "--size", "2x4").code == 0
    assert load_npz(tmp_path / "small.npz").inputs.shape == (1, 2, 4)
    monkeypatch.setattr(glyphs, "load_glyphs", lambda *_: load_npz(file))
    for what in (folder, tmp_path / "pictures", "femnist", "glyphs"):
        for command in (["inspect", what], ["convert", what, tmp_path / "out.npz"]):
            assert fedgs(*command).code == 0, command


def test_a_name_comes_before_a_folder_of_the_same_name(
    file: Path, tmp_path: Path, fedgs: Here, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache.store(load_npz(file), "parts", {})
    pictures = tmp_path / "parts" / "camera" / "nut"
    pictures.mkdir(parents=True)
    Image.new("L", (3, 3)).save(pictures / "1.png")
    monkeypatch.chdir(tmp_path)
    for command, name, size in (("inspect", "parts", "28 × 28"), ("inspect", "./parts", "3 × 3")):
        assert size in fedgs(command, name).out
    assert fedgs("convert", "parts", "out.npz").out.startswith("femnist: 6 images")
    assert fedgs("convert", "./parts", "out.npz").out.startswith("parts: 1 images")


def test_half_a_leaf_split_is_named(file: Path, tmp_path: Path, fedgs: Here) -> None:
    write_leaf(load_npz(file), tmp_path / "leaf" / "train" / "all.json")
    for command in (["inspect", tmp_path / "leaf"], ["fetch", "femnist", "--dir", tmp_path / "leaf"]):
        assert "leaf/test: no JSON there, but beside it" in error_of(fedgs(*command))


def test_fetch_takes_a_single_npz_white_on_black(file: Path, tmp_path: Path, fedgs: Here) -> None:
    folder = tmp_path / "dir"
    folder.mkdir()
    known = load_npz(file)
    save_npz(replace(known, inputs=255 - known.inputs), folder / "mine.npz")
    done = fedgs("fetch", "femnist", "--dir", folder, "--url", "http://127.0.0.1:9", "--invert")
    assert done.code == 0, done.err
    assert np.array_equal(cache.load(tmp_path / "cache" / "femnist").inputs, known.inputs)
    write_leaf(known, folder / "all_data" / "all_data_0.json")
    assert "could be leaf or npz" in fedgs("fetch", "femnist", "--dir", folder).err
    assert "from leaf files" in fedgs("fetch", "femnist", "--dir", folder, "--layout", "leaf").out
