"""Against a real server that understands ranges, breaks off, changes its mind, or refuses."""

import hashlib
import os
import re
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from fedgs.data.download import download
from fedgs.errors import DownloadError, OutputError
from fedgs.rng import stream

CONTENT = stream(0, "download").bytes(300_000)


class Server(ThreadingHTTPServer):
    """Serves one content at /file; the attributes are how it misbehaves."""

    daemon_threads = True
    content = CONTENT
    tag: str | None = '"one"'
    knows_ranges = True
    says_length = True
    break_after: list[int]
    """How many bytes each of the next answers sends before the line goes dead."""
    refuse_with: list[int]
    seen: list[str]
    """The Range header of each request."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.break_after, self.refuse_with, self.seen = [], [], []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/file"


class Handler(BaseHTTPRequestHandler):
    server: Server

    def do_GET(self) -> None:
        server = self.server
        asked = self.headers.get("Range", "")
        server.seen.append(asked)
        if server.refuse_with:
            self.send_error(server.refuse_with.pop(0))
            return
        if self.path != "/file":
            self.send_error(404)
            return
        start = 0
        found = re.fullmatch(r"bytes=(\d+)-", asked)
        if found and server.knows_ranges and self.headers.get("If-Range") == server.tag:
            start = int(found[1])
            if start >= len(server.content):
                self.send_error(416)
                return
            self.send_response(206)
            last = len(server.content) - 1
            self.send_header("Content-Range", f"bytes {start}-{last}/{len(server.content)}")
        else:
            self.send_response(200)
        body = server.content[start:]
        if server.says_length:
            self.send_header("Content-Length", str(len(body)))
        if server.tag:
            self.send_header("ETag", server.tag)
        self.end_headers()
        if server.break_after:
            body = body[: server.break_after.pop(0)]
        self.wfile.write(body)
        self.close_connection = True

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    monkeypatch.setenv("no_proxy", "*")
    running = Server()
    thread = threading.Thread(target=running.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield running
    running.shutdown()
    thread.join()
    running.server_close()


@pytest.mark.parametrize(
    ("server_is", "asked"),
    [
        ({}, [""]),
        ({"break_after": [100_000, 50_000]}, ["", "bytes=100000-", "bytes=150000-"]),
        ({"break_after": [100_000], "knows_ranges": False}, ["", "bytes=100000-"]),
        ({"break_after": [100_000], "tag": None}, ["", ""]),  # without a version a range is never trusted
        ({"says_length": False}, [""]),
        ({"refuse_with": [503, 500]}, ["", "", ""]),
    ],
)
def test_a_whole_file(server: Server, tmp_path: Path, server_is: dict[str, object], asked: list[str]) -> None:
    for name, value in server_is.items():
        setattr(server, name, value)
    file = download(server.url, tmp_path / "a.zip", sha256=hashlib.sha256(CONTENT).hexdigest(), pause=0)
    assert file.read_bytes() == CONTENT
    assert os.listdir(tmp_path) == ["a.zip"]
    assert server.seen == asked


def test_given_up_it_goes_on_when_run_again(server: Server, tmp_path: Path) -> None:
    server.break_after = [100_000, *[0] * 10]
    with pytest.raises(DownloadError, match=r"file: broken off after 100,000 bytes"):
        download(server.url, tmp_path / "a.zip", pause=0)
    assert sorted(os.listdir(tmp_path)) == ["a.zip.part", "a.zip.part.version"]
    server.break_after, server.seen = [], []
    assert download(server.url, tmp_path / "a.zip").read_bytes() == CONTENT
    assert server.seen == ["bytes=100000-"]


def test_a_file_that_changed_meanwhile_is_taken_anew(server: Server, tmp_path: Path) -> None:
    server.break_after = [100_000, *[0] * 10]
    with pytest.raises(DownloadError):
        download(server.url, tmp_path / "a.zip", pause=0)
    server.break_after, server.tag, server.content = [], '"two"', CONTENT[::-1][:120_000]
    assert download(server.url, tmp_path / "a.zip").read_bytes() == server.content


def test_all_bytes_were_there_but_not_the_name(server: Server, tmp_path: Path) -> None:
    (tmp_path / "a.zip.part").write_bytes(CONTENT)
    (tmp_path / "a.zip.part.version").write_text('"one"')
    assert download(server.url, tmp_path / "a.zip").read_bytes() == CONTENT
    assert os.listdir(tmp_path) == ["a.zip"]


def test_wrong_checksum(server: Server, tmp_path: Path) -> None:
    with pytest.raises(DownloadError, match=r"file: SHA-256 [0-9a-f]{64} instead of the published 00"):
        download(server.url, tmp_path / "a.zip", sha256="00")
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize(
    ("address", "message"),
    [("{0}/none", "answered 404"), ("http://127.0.0.1:9/file", "cannot be reached"), ("file", "not an address")],
)
def test_what_cannot_be_had(server: Server, tmp_path: Path, address: str, message: str) -> None:
    with pytest.raises(DownloadError, match=message):
        download(address.format(server.url), tmp_path / "a.zip", pause=0)
    assert os.listdir(tmp_path) == []


def test_a_folder_that_is_not_there(server: Server, tmp_path: Path) -> None:
    with pytest.raises(OutputError, match=r"a.zip.part.* cannot be written"):
        download(server.url, tmp_path / "nowhere" / "a.zip")
