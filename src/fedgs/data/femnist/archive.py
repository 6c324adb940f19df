"""Files in a folder or inside a zip, read alike, so that the two million small files of SD19 need no unpacking.

A zip's table of contents is read once, by the main process; a worker gets only where its files lie and reads them
from there. (A ZipFile per worker would read the whole table again, a gigabyte each.) Every member's CRC is checked.
"""

import os
import struct
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path, PurePosixPath
from typing import BinaryIO, NamedTuple

from fedgs.errors import InputFileError

_LOCAL_HEADER = struct.Struct("<4s22xHH")  # magic, …, length of the name, length of the extra field


class Entry(NamedTuple):
    """One file: where it is and how to get its bytes."""

    parts: tuple[str, ...]
    """Its path below the root, as words."""
    file: str
    """The file itself, or the zip it lies in."""
    offset: int = -1
    packed_size: int = 0
    method: int = 0
    crc: int = 0

    @property
    def where(self) -> str:
        """How to name it to a reader."""
        return self.file if self.offset < 0 else f"{self.file}:{'/'.join(self.parts)}"


def list_tree(tree: Path) -> list[Entry]:
    """Return all PNG files below a folder, or below the folder of this name in a zip, sorted by path below it."""
    entries = _walk(str(tree), ()) if tree.is_dir() else _members(tree, tree.stem)
    # Names with a dot in front are some file browser's notes, not images.
    return sorted(e for e in entries if e.parts[-1].lower().endswith(".png") and not e.parts[-1].startswith("."))


def _walk(folder: str, parts: tuple[str, ...]) -> Iterator[Entry]:
    with os.scandir(folder) as found:
        for item in found:
            here = (*parts, item.name)
            if item.is_dir():
                yield from _walk(item.path, here)
            else:
                yield Entry(here, item.path)


def tree_state(folder: str) -> Iterator[tuple[str, int, int]]:
    """Yield name, size and time of change of everything below ``folder``, in the order of names."""
    with os.scandir(folder) as found:
        items = sorted(found, key=lambda item: item.name)
    for item in items:
        if item.is_dir():
            yield item.path, -1, 0
            yield from tree_state(item.path)
        else:
            facts = item.stat()
            yield item.path, facts.st_size, facts.st_mtime_ns


def _members(archive: Path, name: str) -> Iterator[Entry]:
    try:
        with zipfile.ZipFile(archive) as opened:
            for info in opened.infolist():
                parts = PurePosixPath(info.filename).parts
                if info.is_dir() or name not in parts:
                    continue
                below = parts[parts.index(name) + 1 :]
                yield Entry(below, str(archive), info.header_offset, info.compress_size, info.compress_type, info.CRC)
    except (OSError, zipfile.BadZipFile) as error:
        raise InputFileError(f"{archive}: not a readable zip ({error}); download it again") from None


def read_all(entries: list[Entry]) -> Iterator[tuple[Entry, bytes]]:
    """Yield each entry with its bytes; a zip is opened once."""
    with ExitStack() as stack:
        archives: dict[str, BinaryIO] = {}
        for entry in entries:
            try:
                if entry.offset < 0:
                    yield entry, Path(entry.file).read_bytes()
                    continue
                if entry.file not in archives:
                    archives[entry.file] = stack.enter_context(open(entry.file, "rb"))
                yield entry, _unpack(archives[entry.file], entry)
            except (OSError, struct.error, zlib.error) as error:
                raise InputFileError(f"{entry.where}: cannot be read ({error})") from None


def _unpack(archive: BinaryIO, entry: Entry) -> bytes:
    archive.seek(entry.offset)
    magic, name_length, extra_length = _LOCAL_HEADER.unpack(archive.read(_LOCAL_HEADER.size))
    archive.seek(name_length + extra_length, os.SEEK_CUR)
    packed = archive.read(entry.packed_size)
    if entry.method == zipfile.ZIP_DEFLATED:
        content = zlib.decompress(packed, wbits=-zlib.MAX_WBITS)
    elif entry.method == zipfile.ZIP_STORED:
        content = packed
    else:
        raise InputFileError(f"{entry.where}: packed by method {entry.method}, which is not supported; unpack the zip")
    if magic != b"PK\x03\x04" or zlib.crc32(content) != entry.crc:
        raise InputFileError(f"{entry.where}: its checksum in the zip is wrong; download the zip again")
    return content
