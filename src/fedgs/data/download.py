"""Download a file over HTTP, going on where an earlier try broke off.

The bytes grow in ``<name>.part``; the server's mark of this version of the file (ETag or Last-Modified) lies beside
it, and is sent as ``If-Range``: were the file changed meanwhile, the server sends it from the beginning and so do we
store it. The file gets its name when as many bytes are there as the server announced and the checksum, where one
is known, is right.
"""

import hashlib
import http.client
import re
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from http.client import HTTPResponse
from pathlib import Path

from fedgs.data.parallel import progress_bar
from fedgs.errors import DownloadError, OutputError

_CHUNK = 1 << 18
_TIMEOUT = 30.0  # seconds without a byte
_TRIES = 5  # in a row without a single new byte
_RANGE = re.compile(r"bytes (\d+)-\d+/(\d+)")


class _BrokenOffError(Exception):
    """The connection ended too early; what came is kept."""


def download(url: str, file: Path, *, sha256: str | None = None, pause: float = 1.0, progress: bool = False) -> Path:
    """Fetch ``url`` into ``file``; after ``pause`` seconds (then twice as many) a broken connection is tried again."""
    part, mark = file.with_name(file.name + ".part"), file.with_name(file.name + ".part.version")
    fruitless = 0
    with progress_bar(file.name, None, progress, in_bytes=True) as show:
        while True:
            before = _size(part)
            try:
                _transfer(url, part, mark, show)
                break
            except _BrokenOffError as error:
                fruitless = fruitless + 1 if _size(part) <= before else 0
                if fruitless >= _TRIES:
                    raise DownloadError(f"{url}: broken off after {_size(part):,} bytes ({error})") from None
                time.sleep(pause * 2**fruitless)
            except DownloadError:
                raise
            except OSError as error:
                raise OutputError(f"{part}: cannot be written ({error.strerror or error})") from None
    with part.open("rb") as stream:
        found = hashlib.file_digest(stream, "sha256").hexdigest() if sha256 else None
    if found != sha256:
        part.unlink()
        mark.unlink(missing_ok=True)
        raise DownloadError(f"{url}: SHA-256 {found} instead of the published {sha256}; what came was removed")
    part.replace(file)
    mark.unlink(missing_ok=True)
    return file


def _size(part: Path) -> int:
    return part.stat().st_size if part.exists() else 0


def _transfer(url: str, part: Path, mark: Path, show: Callable[..., None]) -> None:
    have = _size(part)
    version = mark.read_text(encoding="ascii") if mark.exists() else ""
    if not version:
        have = 0  # nothing tells that the old bytes belong to what the server has now
    with _open(url, have, version) as answer:
        start, total = _extent(answer, have)
        mark.write_text(_version_of(answer), encoding="ascii")
        with part.open("r+b" if start else "wb") as out:
            out.seek(start)
            done = start
            show(completed=done, total=total)
            while chunk := _receive(answer):
                out.write(chunk)
                done += len(chunk)
                show(completed=done, total=total)
            out.truncate()
    if total is not None and done < total:
        raise _BrokenOffError(f"{total:,} announced")


def _open(url: str, have: int, version: str) -> HTTPResponse:
    headers = {"User-Agent": "fedgs", "Accept-Encoding": "identity"}
    if have:
        headers |= {"Range": f"bytes={have}-", "If-Range": version}
    try:
        answer: HTTPResponse = urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=_TIMEOUT)
    except urllib.error.HTTPError as error:
        with error:
            if error.code == 416:  # as many bytes as the whole file, or more: nothing is left to send
                return _open(url, 0, "")
            if error.code >= 500:
                raise _BrokenOffError(f"the server answered {error.code} {error.reason}") from None
            raise DownloadError(f"{url}: the server answered {error.code} {error.reason}") from None
    except urllib.error.URLError as error:
        raise DownloadError(f"{url}: cannot be reached ({error.reason})") from None
    except (http.client.HTTPException, OSError) as error:
        raise _BrokenOffError(str(error) or type(error).__name__) from None
    except ValueError:
        raise DownloadError(f"{url}: not an address") from None
    return answer


def _extent(answer: HTTPResponse, have: int) -> tuple[int, int | None]:
    """Return where the bytes that come belong, and how long the whole file is."""
    if answer.status == 206:
        found = _RANGE.fullmatch(answer.headers.get("Content-Range", ""))
        if not found or int(found[1]) != have:
            raise DownloadError(f"{answer.url}: the server sent another range than asked for")
        return have, int(found[2])
    length = answer.headers.get("Content-Length")
    return 0, int(length) if length else None


def _version_of(answer: HTTPResponse) -> str:
    tag = answer.headers.get("ETag", "")
    # A weak tag says "alike", not "the same bytes", and must not be used with If-Range.
    return tag if tag and not tag.startswith("W/") else answer.headers.get("Last-Modified", "")


def _receive(answer: HTTPResponse) -> bytes:
    try:
        return answer.read(_CHUNK)
    except (http.client.HTTPException, OSError) as error:
        raise _BrokenOffError(str(error) or type(error).__name__) from None
