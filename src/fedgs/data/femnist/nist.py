"""NIST Special Database 19, ``by_class`` and ``by_write``: LEAF's whole preprocessing, without LEAF.

    by_class/<hex>/<hsf_N>/*.png        <hex>: the character's ASCII code; tells what was written
    by_write/<hsf_N>/<writer>/<type>/*.png       tells who wrote it

The same images lie in both trees, and the MD5 of a file's bytes joins them. ``train_*`` folders of by_class repeat
its hsf folders and are left out, as are ``*.mit`` lists. Each image becomes 8-bit grey, 28x28 (Pillow's thumbnail
with the LANCZOS filter), labelled by its class folder. Both trees may be folders or the downloaded zips.

LEAF walks folders in whatever order the file system gives; here everything is sorted, so the result is the same
everywhere. LEAF's grouping stores the first image of every writer but the first one twice; ``leaf_compat``
does so too, which makes 817,851 samples of the 814,255 images.

Files in a folder and inside a zip are read alike, so that the two million small files need no unpacking. A zip's table
of contents is read once, by the main process; a worker gets only where its files lie and reads them from there. (A
ZipFile per worker would read the whole table again, a gigabyte each.) Every member's CRC is checked.
"""

import os
import struct
import zipfile
import zlib
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from hashlib import md5
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedgs.data.femnist.form import LABEL_OF_HEX, SIDE, Piece, by_writer, read_png
from fedgs.errors import InputFileError

LOOKED_FOR = "NIST SD19 (by_class with by_write, folders or .zip)"
_PIECE = 2000  # files a worker does at a time
_LOCAL_HEADER = struct.Struct("<4s22xHH")  # magic, …, length of the name, length of the extra field
_FEW = 2 * _PIECE  # so few files are done here before other processes would have started


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


def find(path: Path) -> list[Path]:
    """Return the two trees, each a folder or a zip; an empty list when they are not both there."""
    for root in (path, path / "raw_data"):
        trees = [root / name for name in ("by_class", "by_write")]
        trees = [tree if tree.is_dir() else tree.with_suffix(".zip") for tree in trees]
        if all(tree.exists() for tree in trees):
            return trees
    return []


def read(path: Path, files: list[Path], leaf_compat: bool, spread: Callable[..., Iterator[Any]]) -> Iterator[Piece]:
    """Join and shrink the two trees; with ``leaf_compat`` every writer but the first begins with an image twice."""
    label_of = _class_table(files[0], spread)
    entries = _writer_files(files[1])
    last = entries[0].parts[1]
    for piece, digests, images in _in_pieces(_shrink, entries, spread, "images of by_write"):
        for entry, digest in zip(piece, digests, strict=True):
            if digest not in label_of:
                raise InputFileError(f"{entry.where}: no file of by_class has the same content; its class is unknown")
        labels = np.array([label_of[digest] for digest in digests], np.uint8)
        # A writer in two partitions (none is known) counts to the lower one, which comes first.
        partitions = [int(entry.parts[0][-1]) for entry in piece]
        for part in by_writer(files[1], [entry.parts[1] for entry in piece], images, labels, partitions):
            double = [0] if leaf_compat and part.writer != last else []
            rows = [*double, *range(len(part.labels))]
            yield part._replace(images=part.images[rows], labels=part.labels[rows])
            last = part.writer


def _class_table(tree: Path, spread: Callable[..., Iterator[Any]]) -> dict[bytes, int]:
    """Map the MD5 of every by_class image to its label; of equal images, the first in sorted order counts."""
    entries = [
        entry
        for entry in list_tree(tree)
        if len(entry.parts) == 3
        and entry.parts[0] in LABEL_OF_HEX
        and "hsf" in entry.parts[1]
        and "mit" not in entry.parts[1]
    ]
    seen = {entry.parts[0] for entry in entries}
    missing = [code for code in LABEL_OF_HEX if code not in seen]
    if missing:
        characters = ", ".join(f"{code} ({chr(int(code, 16))})" for code in missing[:5])
        raise InputFileError(
            f"{tree}: {len(missing)} of {len(LABEL_OF_HEX)} classes have no hsf images, first {characters}; "
            "the tree is not complete"
        )
    table: dict[bytes, int] = {}
    for piece, digests in _in_pieces(_hash, entries, spread, "images of by_class"):
        for entry, digest in zip(piece, digests, strict=True):
            table.setdefault(digest, LABEL_OF_HEX[entry.parts[0]])
    return table


def _writer_files(tree: Path) -> list[Entry]:
    entries = list_tree(tree)
    for entry in entries:
        if len(entry.parts) != 4 or not entry.parts[0].startswith("hsf_") or not entry.parts[0][-1].isdigit():
            raise InputFileError(f"{entry.where}: expected by_write/hsf_N/<writer>/<type>/<image>.png")
    if tree.is_dir():  # a zip lists only the files that it has
        counts = Counter(entry.parts[1] for entry in entries)
        for writer in sorted(found for found in tree.glob("hsf_*/*") if found.is_dir()):
            if not counts[writer.name]:
                raise InputFileError(f"{writer}: this writer has no images; remove the empty folder or unpack again")
    if not entries:
        raise InputFileError(f"{tree}: there is not one image")
    # By writer first, then by path: what a writer has is contiguous and ordered, whatever the partition.
    return sorted(entries, key=lambda entry: (entry.parts[1], entry.parts))


def _in_pieces(
    function: Callable[[list[Entry]], Any], entries: list[Entry], spread: Callable[..., Iterator[Any]], title: str
) -> Iterator[tuple[list[Entry], *tuple[Any, ...]]]:
    pieces = [entries[start : start + _PIECE] for start in range(0, len(entries), _PIECE)]
    done = spread(function, pieces, sizes=[len(piece) for piece in pieces], few=_FEW, title=title)
    return ((piece, *result) for piece, result in zip(pieces, done, strict=True))


def _hash(piece: list[Entry]) -> tuple[list[bytes]]:
    return ([md5(content, usedforsecurity=False).digest() for _, content in read_all(piece)],)


def _shrink(piece: list[Entry]) -> tuple[list[bytes], NDArray[np.uint8]]:
    from PIL import Image

    digests = []
    images = np.empty((len(piece), SIDE, SIDE), np.uint8)
    for place, (entry, content) in enumerate(read_all(piece)):
        digests.append(md5(content, usedforsecurity=False).digest())
        grey = read_png(content, entry.where)
        size = grey.size
        grey.thumbnail((SIDE, SIDE), Image.Resampling.LANCZOS)
        if grey.size != (SIDE, SIDE):
            raise InputFileError(f"{entry.where}: {size[0]}x{size[1]} pixels; square images of 28x28 or more expected")
        images[place] = np.asarray(grey)
    return digests, images


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
