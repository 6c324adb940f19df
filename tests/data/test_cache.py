import json
import multiprocessing
import os
import time
from pathlib import Path

import numpy as np
import pytest
from stored_sets import assert_same, small_set

from fedgs.data import cache as sets
from fedgs.data.dataset import DataSet
from fedgs.errors import InputFileError, OutputError


def test_round_trip_with_mapped_images(cache: Path) -> None:
    dataset = small_set()
    folder = sets.store(dataset, "small", {"path": "somewhere"})
    assert folder == cache / "small"
    loaded = sets.load(folder)
    assert_same(dataset, loaded)
    assert isinstance(loaded.images, np.memmap)
    with pytest.raises(ValueError, match="read-only"):
        loaded.images[0] = 0
    assert sets.describe(folder)["source"] == {"path": "somewhere"}
    assert sets.cached_sets() == ["small"]
    sets.verify(folder)


def test_nothing_else_is_left_in_the_cache(cache: Path) -> None:
    sets.store(small_set(), "small", {})
    sets.store(small_set(split=False), "small", {})
    assert os.listdir(cache) == ["small"]
    assert sets.load(cache / "small").test is None
    assert "test.npy" not in os.listdir(cache / "small")


def test_who_has_the_old_set_keeps_it(cache: Path) -> None:
    old = sets.load(sets.store(small_set(), "small", {}))
    before = old.images.copy()
    other = small_set()
    sets.store(
        DataSet(other.name, 255 - other.images, other.labels, other.owners, other.owner_names, other.classes),
        "small",
        {},
    )
    assert np.array_equal(old.images, before)
    assert np.array_equal(sets.load(cache / "small").images, 255 - before)


def test_where_the_cache_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/somebody")
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.delenv("FEDGS_DATA", raising=False)
    assert sets.cache_dir() == Path("/home/somebody/.cache/fedgs")
    monkeypatch.setenv("XDG_CACHE_HOME", "/var/cache")
    assert sets.cache_dir() == Path("/var/cache/fedgs")
    monkeypatch.setenv("FEDGS_DATA", "~/data")
    assert sets.cache_dir() == Path("/home/somebody/data")


def test_a_broken_write_leaves_nothing(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sets.store(small_set(), "small", {})

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OutputError, match=r"other: cannot be written \(No space left on device\); FEDGS_DATA names"):
        sets.store(small_set(), "other", {})
    with pytest.raises(OutputError, match="No space left"):
        sets.store(small_set(split=False), "small", {})
    assert os.listdir(cache) == ["small"]
    assert_same(sets.load(cache / "small"), small_set())  # the old set is untouched


def test_an_interrupted_write_leaves_nothing(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "fsync", interrupted)
    with pytest.raises(KeyboardInterrupt):
        sets.store(small_set(), "small", {})
    assert os.listdir(cache) == []


def test_what_a_killed_process_left_is_swept_up_a_day_later(cache: Path) -> None:
    young, old = cache / ".femnist.0000aaaa", cache / ".femnist.0000bbbb"
    young.mkdir(parents=True)
    old.mkdir()
    long_ago = time.time() - 2 * 24 * 3600
    os.utime(old, (long_ago, long_ago))
    sets.store(small_set(), "small", {})
    assert sorted(os.listdir(cache)) == [young.name, "small"]
    assert sets.cached_sets() == ["small"]


def test_a_cache_that_cannot_be_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("FEDGS_DATA", str(tmp_path / "file" / "cache"))
    with pytest.raises(OutputError, match=r"cache/small: cannot be written .* FEDGS_DATA names another folder"):
        sets.store(small_set(), "small", {})


def test_damaged_sets(cache: Path) -> None:
    folder = sets.store(small_set(), "small", {})
    images = folder / "images.npy"
    content = bytearray(images.read_bytes())
    content[-1] ^= 1
    images.write_bytes(content)
    with pytest.raises(InputFileError, match=r"images.npy: its checksum is wrong"):
        sets.verify(folder)
    images.write_bytes(content[:-1])
    with pytest.raises(InputFileError, match=r"images.npy: \d+ bytes instead of \d+; convert again"):
        sets.load(folder)
    images.unlink()
    with pytest.raises(InputFileError, match="small: broken"):
        sets.load(folder)
    with pytest.raises(InputFileError, match=r"images.npy: cannot be read"):
        sets.verify(folder)


def test_damaged_descriptions(cache: Path) -> None:
    folder = sets.store(small_set(), "small", {})
    file = folder / "set.json"
    facts = json.loads(file.read_text())
    for text, message in [
        ("{", "broken"),
        ("[]", "not of format 1"),
        (json.dumps(facts | {"format": 2}), "not of format 1"),
        (json.dumps(facts | {"classes": ["no"]}), "broken"),
        (json.dumps({"format": 1}), "broken"),
    ]:
        file.write_text(text)
        with pytest.raises(InputFileError, match=f"small.*{message}"):
            sets.load(folder)
    with pytest.raises(InputFileError, match="is 'absent' in the cache"):
        sets.load(cache / "absent")


def _store_often(number: int) -> None:
    for _ in range(10):
        sets.load(sets.store(small_set(split=number == 0), f"own-{number}", {}))
        sets.store(small_set(split=number == 0), "shared", {"by": number})


def test_two_processes_at_once(cache: Path) -> None:
    context = multiprocessing.get_context("spawn")
    processes = [context.Process(target=_store_often, args=(number,)) for number in range(2)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(60)
    assert [process.exitcode for process in processes] == [0, 0]
    assert sorted(os.listdir(cache)) == ["own-0", "own-1", "shared"]
    loaded = sets.load(cache / "shared")
    assert (loaded.test is not None) == (sets.describe(cache / "shared")["source"]["by"] == 0)
    sets.verify(cache / "shared")
