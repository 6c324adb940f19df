import json
import multiprocessing
import os
import re
import shutil
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from small_sets import assert_same, small_set

from fedgs.data import cache as sets
from fedgs.errors import InputFileError, OutputError


def test_round_trip_with_mapped_images(cache: Path) -> None:
    dataset = small_set()
    folder = sets.store(dataset, "small", {"path": "somewhere"})
    assert folder == cache / "small"
    loaded = sets.load(folder)
    assert_same(dataset, loaded)
    assert isinstance(loaded.inputs, np.memmap)
    with pytest.raises(ValueError, match="read-only"):
        loaded.inputs[0] = 0
    assert sets.describe(folder)["source"] == {"path": "somewhere"}
    assert sets.cached_sets() == ["small"]
    sets.verify(folder)


def test_a_set_is_replaced_and_who_has_the_old_one_keeps_it(cache: Path) -> None:
    old = sets.load(sets.store(small_set(), "small", {}))
    before = old.inputs.copy()
    other = small_set(split=False)
    sets.store(replace(other, inputs=255 - other.inputs), "small", {})
    assert np.array_equal(old.inputs, before)
    new = sets.load(cache / "small")
    assert np.array_equal(new.inputs, 255 - before)
    assert new.test is None
    assert os.listdir(cache) == ["small"]
    assert "test.npy" not in os.listdir(cache / "small")


def test_where_the_cache_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/somebody")
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.delenv("FEDGS_DATA", raising=False)
    assert sets.cache_dir() == Path("/home/somebody/.cache/fedgs")
    monkeypatch.setenv("XDG_CACHE_HOME", "/var/cache")
    assert sets.cache_dir() == Path("/var/cache/fedgs")
    monkeypatch.setenv("FEDGS_DATA", "~/data")
    assert sets.cache_dir() == Path("/home/somebody/data")


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), KeyboardInterrupt()])
def test_a_broken_write_leaves_nothing(cache: Path, monkeypatch: pytest.MonkeyPatch, error: BaseException) -> None:
    sets.store(small_set(), "small", {})

    def broken(*_: object) -> None:
        raise error

    monkeypatch.setattr(os, "fsync", broken)
    message = r"cannot be written \(No space left on device\); FEDGS_DATA names"
    for name, split in (("other", True), ("small", False)):
        with pytest.raises((OutputError, KeyboardInterrupt), match=message if isinstance(error, OSError) else None):
            sets.store(small_set(split=split), name, {})
    assert os.listdir(cache) == ["small"]
    assert_same(sets.load(cache / "small"), small_set())  # the old set is untouched


def test_what_a_killed_process_left_is_swept_up_a_day_later(cache: Path) -> None:
    young, old = cache / ".fedgs-writing-femnist-0000aaaa", cache / ".fedgs-writing-femnist-0000bbbb"
    foreign = [
        cache / name for name in (".x.y", ".femnist.0000bbbb", ".fedgs-writing-notes", ".fedgs-writing-a-0000cccc")
    ]
    for folder in (young, old, *foreign):
        folder.mkdir(parents=True)
    (old / "images.npy").write_bytes(b"half of it")
    (foreign[-1] / "thesis.txt").write_text("not made by fedgs")
    long_ago = time.time() - 2 * 24 * 3600
    for folder in (old, *foreign):
        os.utime(folder, (long_ago, long_ago))
    sets.store(small_set(), "small", {})
    assert sorted(os.listdir(cache)) == sorted(["small", young.name, *(folder.name for folder in foreign)])
    assert sets.cached_sets() == ["small"]


def test_the_old_set_is_removed_after_the_new_one_has_its_name(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sets.store(small_set(), "small", {})
    there: list[bool] = []
    written: set[str] = set()
    remove = shutil.rmtree

    def watched(*path: Any, **options: Any) -> None:
        there.append(sets.is_set(cache / "small"))
        remove(*path, **options)

    monkeypatch.setattr(shutil, "rmtree", watched)
    monkeypatch.setattr(os, "fsync", lambda _: written.update(os.listdir(cache)))
    sets.store(small_set(split=False), "small", {})
    assert there
    assert all(there)
    (temporary,) = written - {"small"}
    assert re.fullmatch(r"\.fedgs-writing-small-[0-9a-f]{8}", temporary)


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
    with pytest.raises(InputFileError, match=r"images.npy: \d+ bytes instead of \d+; remove .*small and convert again"):
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
        (json.dumps({"format": 1}), "broken .'name' is wrong"),
        (json.dumps({"format": 1, "files": []}), "broken .'name' is wrong"),
        (json.dumps(facts | {"files": []}), "broken .'files' is wrong"),
        (json.dumps(facts | {"files": {}}), "broken .'images.npy' is wrong"),
        (json.dumps(facts | {"files": facts["files"] | {"../x.npy": {"bytes": 1, "sha256": ""}}}), "broken"),
        (json.dumps(facts | {"files": facts["files"] | {"labels.npy": 7}}), "broken .'labels.npy' is wrong"),
        (json.dumps(facts | {"classes": None}), "broken .'classes' is wrong"),
        ("[" * 100_000, "broken"),
    ]:
        file.write_text(text)
        with pytest.raises(InputFileError, match=f"small.*{message}.*remove {folder} and convert again"):
            sets.load(folder)
        if "no" not in text:
            with pytest.raises(InputFileError, match=f"small.*{message}"):
                sets.verify(folder)
    with pytest.raises(InputFileError, match="is 'absent' in the cache"):
        sets.load(cache / "absent")


def _store_often(number: int) -> None:
    for _ in range(5):
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
