import os
from pathlib import Path

import numpy as np
import pytest
from femnist_files import WRITERS, labels, leaf_file, pictures

from fedgs.data import cache as sets
from fedgs.data.femnist import Layout, convert_femnist, load_femnist, recognise, remember
from fedgs.errors import DataError, InputFileError


@pytest.fixture
def source(tmp_path: Path) -> Path:
    folder = tmp_path / "leaf"
    leaf_file(folder / "all_data" / "all_data_0.json", {name: (pictures(4, name), labels(4, name)) for name in WRITERS})
    return folder


def test_the_second_load_comes_from_the_cache(source: Path, cache: Path) -> None:
    first = load_femnist(source)
    (entry,) = cache.iterdir()
    before = entry.stat().st_mtime_ns
    second = load_femnist(source)
    assert isinstance(second.inputs, np.memmap)
    assert np.array_equal(first.inputs, second.inputs)
    assert entry.stat().st_mtime_ns == before
    assert sets.describe(entry)["source"] == {"path": str(source), "layout": "leaf", "doubles_dropped": 0}


def test_a_changed_source_or_option_is_another_set(source: Path, cache: Path) -> None:
    load_femnist(source)
    load_femnist(source, leaf_compat=True)
    leaf_file(source / "all_data" / "all_data_1.json", {"f0003_03": (pictures(2, "new"), labels(2, "new"))})
    assert len(load_femnist(source)) == 14
    assert len(list(cache.iterdir())) == 3


def test_without_the_cache(source: Path, cache: Path) -> None:
    assert len(load_femnist(source, use_cache=False)) == 12
    assert not cache.exists()


def test_a_folder_of_the_cache_can_be_named(source: Path, cache: Path) -> None:
    load_femnist(source)
    (entry,) = cache.iterdir()
    assert len(load_femnist(entry)) == 12


def test_the_fetched_set_needs_no_path(source: Path, cache: Path) -> None:
    with pytest.raises(InputFileError, match="FEMNIST is not there; run 'fedgs data fetch femnist'"):
        load_femnist()
    remember(convert_femnist(source), source)
    assert len(load_femnist()) == 12
    assert os.listdir(cache) == ["femnist"]


def test_nothing_fits(tmp_path: Path, cache: Path) -> None:
    (tmp_path / "notes.txt").write_text("")
    (tmp_path / "by_class").mkdir()
    with pytest.raises(
        InputFileError, match=r"no FEMNIST here; looked for LEAF .* NIST .* parquet .* TFF .* a .npz with writers"
    ):
        load_femnist(tmp_path)
    with pytest.raises(InputFileError, match="nowhere: there is no such file or folder"):
        load_femnist(tmp_path / "nowhere")
    with pytest.raises(InputFileError, match="nowhere: there is no such file or folder"):
        load_femnist(tmp_path / "nowhere", layout="leaf")


def test_notes_in_json_are_not_leaf(tmp_path: Path) -> None:
    (tmp_path / "notes.json").write_text('{"description": {}}')
    with pytest.raises(InputFileError, match="no FEMNIST here"):
        recognise(tmp_path)
    leaf_file(tmp_path / "mine.json", {"a": (pictures(1), labels(1))})
    with pytest.raises(InputFileError, match=r"notes.json: LEAF's keys are"):
        convert_femnist(tmp_path)


def test_two_layouts_in_one_folder(source: Path) -> None:
    for name in ("by_class", "by_write"):
        (source / name).mkdir()
    with pytest.raises(InputFileError, match="could be leaf or nist; choose with layout="):
        recognise(source)
    assert len(convert_femnist(source, layout="leaf").dataset) == 12
    with pytest.raises(InputFileError, match="by_class: 62 of 62 classes"):
        convert_femnist(source, layout="nist")


@pytest.mark.parametrize(
    ("layout", "message"),
    [
        ("nist", "by_class and by_write"),
        ("parquet", "no parquet files here"),
        ("tff", "no TFF files here"),
        ("npz", "not a readable .npz"),
    ],
)
def test_a_wrong_layout(source: Path, layout: Layout, message: str) -> None:
    with pytest.raises(InputFileError, match=f"leaf: {message}"):
        load_femnist(source, layout=layout)


def test_an_unknown_layout(source: Path) -> None:
    with pytest.raises(DataError, match="layout 'csv' is unknown; choose one of leaf, nist, parquet, tff, npz"):
        load_femnist(source, layout="csv")  # type: ignore[arg-type]


def test_no_workers(source: Path) -> None:
    with pytest.raises(DataError, match="workers=0: there must be at least one"):
        load_femnist(source, workers=0)


def test_a_damaged_cached_set_is_converted_again(source: Path, cache: Path) -> None:
    load_femnist(source)
    (entry,) = cache.iterdir()
    (entry / "images.npy").write_bytes(b"")
    assert len(load_femnist(source)) == 12
    (entry / "set.json").write_text('{"format": 1}')
    assert len(load_femnist(source)) == 12
    assert list(cache.iterdir()) == [entry]
    sets.verify(entry)
