import os
import threading
import zipfile
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from femnist_files import WRITERS, labels, leaf_file, nist_trees, pictures

from fedgs.data.femnist import load_femnist
from fedgs.data.femnist.fetch import default_folder, fetch_femnist
from fedgs.errors import DownloadError, InputFileError

NOWHERE = "http://127.0.0.1:9/"


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
    folder = tmp_path / "mirror"
    folder.mkdir()
    for name in ("by_class", "by_write"):
        with zipfile.ZipFile(folder / f"{name}.zip", "w", zipfile.ZIP_DEFLATED) as archive:
            for file in (tmp_path / "trees" / name).rglob("*"):
                archive.write(file, file.relative_to(tmp_path / "trees"))
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(folder)))
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
    folder = tmp_path / "dir"
    folder.mkdir()
    (folder / "by_class.zip").write_bytes((tmp_path / "mirror" / "by_class.zip").read_bytes())
    assert len(fetch_femnist(folder, url=mirror).dataset) == 74
    assert Quiet.asked == ["/by_write.zip"]


def test_another_layout_in_the_folder_will_do(tmp_path: Path, cache: Path) -> None:
    folder = tmp_path / "dir"
    leaf_file(folder / "all_data" / "all_data_0.json", {name: (pictures(4, name), labels(4, name)) for name in WRITERS})
    assert fetch_femnist(folder, url=NOWHERE).layout == "leaf"
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


def test_a_download_that_is_no_zip(mirror: str, tmp_path: Path, cache: Path) -> None:
    (tmp_path / "mirror" / "by_write.zip").write_bytes(b"<html>moved</html>")
    with pytest.raises(InputFileError, match=r"by_write.zip: not a readable zip .* download it again"):
        fetch_femnist(tmp_path / "dir", url=mirror)
    assert not cache.exists()
