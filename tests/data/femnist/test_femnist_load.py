"""Which layout lies there, the cache of conversions, and the download of what is missing."""

import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest
from femnist_files import WRITERS, labels, leaf_file, nist_trees, pictures

from fedgs.data import cache as sets
from fedgs.data.femnist import Layout, convert_femnist, default_folder, fetch_femnist, load_femnist, recognise, remember
from fedgs.errors import DataError, DownloadError, InputFileError

NOWHERE = "http://127.0.0.1:9/"


@pytest.fixture
def source(tmp_path: Path) -> Path:
    folder = tmp_path / "leaf"
    leaf_file(folder / "all_data" / "all_data_0.json", {name: (pictures(4, name), labels(4, name)) for name in WRITERS})
    return folder


def test_the_second_load_comes_from_the_cache(source: Path, cache: Path) -> None:
    assert len(load_femnist(source, use_cache=False)) == 12
    assert not cache.exists()
    first = load_femnist(source)
    (entry,) = cache.iterdir()
    before = entry.stat().st_mtime_ns
    second = load_femnist(source)
    assert isinstance(second.inputs, np.memmap)
    assert np.array_equal(first.inputs, second.inputs)
    assert entry.stat().st_mtime_ns == before
    assert sets.describe(entry)["source"] == {"path": str(source), "layout": "leaf", "doubles_dropped": 0}
    assert len(load_femnist(entry)) == 12  # a folder of the cache can be named


def test_a_changed_source_or_option_is_another_set(source: Path, cache: Path) -> None:
    load_femnist(source)
    load_femnist(source, leaf_compat=True)
    leaf_file(source / "all_data" / "all_data_1.json", {"f0003_03": (pictures(2, "new"), labels(2, "new"))})
    assert len(load_femnist(source)) == 14
    assert len(list(cache.iterdir())) == 3


def test_a_damaged_cached_set_is_converted_again(source: Path, cache: Path) -> None:
    load_femnist(source)
    (entry,) = cache.iterdir()
    (entry / "images.npy").write_bytes(b"")
    assert len(load_femnist(source)) == 12
    (entry / "set.json").write_text('{"format": 1}')
    assert len(load_femnist(source)) == 12
    assert list(cache.iterdir()) == [entry]
    sets.verify(entry)


def test_the_fetched_set_needs_no_path(source: Path, cache: Path) -> None:
    with pytest.raises(InputFileError, match="FEMNIST is not there; run 'fedgs data fetch femnist'"):
        load_femnist()
    remember(convert_femnist(source), source)
    assert len(load_femnist()) == 12
    assert os.listdir(cache) == ["femnist"]


def test_nothing_fits(tmp_path: Path, cache: Path) -> None:
    (tmp_path / "by_class").mkdir()
    (tmp_path / "notes.json").write_text('{"description": {}}')
    looked_for = r"no FEMNIST here; looked for LEAF .* NIST .* parquet .* TFF .* .npz with writers"
    with pytest.raises(InputFileError, match=looked_for):
        load_femnist(tmp_path)
    for layout in (None, "leaf"):
        with pytest.raises(InputFileError, match="nowhere: there is no such file or folder"):
            load_femnist(tmp_path / "nowhere", layout=layout)  # type: ignore[arg-type]
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
        ("nist", "no NIST SD19 .by_class with by_write"),
        ("parquet", "no parquet files"),
        ("tff", "no TFF files"),
        ("npz", "no .npz with writers"),
        ("csv", "layout 'csv' is unknown; choose one of leaf, nist, parquet, tff, npz"),
    ],
)
def test_a_wrong_layout(source: Path, layout: Layout, message: str) -> None:
    with pytest.raises((InputFileError, DataError), match=message):
        load_femnist(source, layout=layout)


def test_no_workers(source: Path) -> None:
    with pytest.raises(DataError, match="workers=0: there must be at least one"):
        load_femnist(source, workers=0)


def test_without_a_library_the_message_tells_how_to_get_it(tmp_path: Path) -> None:
    libraries = {"pyarrow": "a.parquet", "h5py": "a.h5", "ijson": "a.json"}
    for name in libraries.values():
        (tmp_path / name).write_bytes(b"")
    program = (
        f"import sys; sys.modules.update(dict.fromkeys({list(libraries)}))\n"
        "from fedgs.data.femnist import load_femnist\n"
        "from fedgs.errors import MissingDependencyError\n"
        f"for name in {list(libraries.values())}:\n"
        f"    try: load_femnist({str(tmp_path)!r} + '/' + name)\n"
        "    except MissingDependencyError as error: print(error)"
    )
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    for library, line in zip(libraries, found.splitlines(), strict=True):
        assert library in line
        assert "pip install 'fedgs[femnist]'" in line


class Quiet(SimpleHTTPRequestHandler):
    asked: list[str] = []  # noqa: RUF012 (one server at a time)

    def do_GET(self) -> None:
        self.asked.append(self.path)
        super().do_GET()

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def mirror(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A server with the two archives, made of small trees."""
    monkeypatch.setenv("no_proxy", "*")
    Quiet.asked = []
    nist_trees(tmp_path / "trees")
    for name in ("by_class", "by_write"):
        shutil.make_archive(str(tmp_path / "mirror" / name), "zip", tmp_path / "trees", name)
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(tmp_path / "mirror")))
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


def test_download_convert_and_cache(mirror: str, tmp_path: Path, cache: Path) -> None:
    done = fetch_femnist(url=mirror)
    assert len(done.dataset) == 74
    assert sorted(os.listdir(default_folder())) == ["by_class.zip", "by_write.zip"]
    assert sorted(os.listdir(cache)) == ["downloads", "femnist"]
    assert len(load_femnist()) == 74
    fetch_femnist(url=NOWHERE)  # everything is there: no network is needed


def test_only_what_is_missing_is_downloaded(mirror: str, tmp_path: Path, cache: Path) -> None:
    (tmp_path / "dir").mkdir()
    shutil.copy(tmp_path / "mirror" / "by_class.zip", tmp_path / "dir")
    (tmp_path / "mirror" / "by_write.zip").write_bytes(b"<html>moved</html>")
    with pytest.raises(InputFileError, match=r"by_write.zip: not a readable zip .* download it again"):
        fetch_femnist(tmp_path / "dir", url=mirror)
    assert Quiet.asked == ["/by_write.zip"]
    assert not cache.exists()


def test_another_layout_in_the_folder_will_do(source: Path, cache: Path) -> None:
    assert fetch_femnist(source, url=NOWHERE).layout == "leaf"
    assert len(load_femnist()) == 12


def test_no_network(tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("no_proxy", "*")
    with pytest.raises(DownloadError) as caught:
        fetch_femnist(tmp_path / "dir", url=NOWHERE)
    text = str(caught.value)
    assert "cannot be reached" in text
    assert f"download {NOWHERE}by_class.zip and {NOWHERE}by_write.zip by hand into {tmp_path / 'dir'}" in text
    assert "\n" not in text
    assert not cache.exists()
