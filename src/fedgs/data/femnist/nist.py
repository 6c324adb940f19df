"""NIST Special Database 19, ``by_class`` and ``by_write``: LEAF's whole preprocessing, without LEAF.

    by_class/<hex>/<hsf_N>/*.png        <hex>: the character's ASCII code; tells what was written
    by_write/<hsf_N>/<writer>/<type>/*.png       tells who wrote it

The same images lie in both trees, and the MD5 of a file's bytes joins them. ``train_*`` folders of by_class repeat
its hsf folders and are left out, as are ``*.mit`` lists. Each image becomes 8-bit grey, 28x28 (Pillow's thumbnail
with the LANCZOS filter), labelled by its class folder. Both trees may be folders or the downloaded zips.

LEAF walks folders in whatever order the file system gives; here everything is sorted, so the result is the same
everywhere. LEAF's grouping stores the first image of every writer but the first one twice; ``leaf_compat``
does so too, which makes 817,851 samples of the 814,255 images.
"""

import io
from collections import Counter
from hashlib import md5
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fedgs.data.dataset import DataSet
from fedgs.data.femnist.archive import Entry, list_tree, read_all
from fedgs.data.femnist.form import CLASSES, HEX_CODES, SIDE, Conversion, label_of_hex, partition_attribute
from fedgs.data.parallel import ordered_map, progress_bar
from fedgs.errors import InputFileError

_PIECE = 2000  # files a worker does at a time
_FEW = 2 * _PIECE  # so few files are done here before other processes would have started
_DIGEST = 16  # bytes of an MD5


def find(path: Path) -> list[Path]:
    """Return the two trees, each a folder or a zip; an empty list when they are not both there."""
    root = _root(path)
    if root is None:
        return []
    trees = [root / name for name in ("by_class", "by_write")]
    return [tree if tree.is_dir() else tree.with_suffix(".zip") for tree in trees]


def _root(path: Path) -> Path | None:
    def has(root: Path, name: str) -> bool:
        return (root / name).is_dir() or (root / f"{name}.zip").is_file()

    return next((root for root in (path, path / "raw_data") if has(root, "by_class") and has(root, "by_write")), None)


def load(path: Path, leaf_compat: bool = False, workers: int | None = None, progress: bool = False) -> Conversion:
    """Join and shrink the two trees below ``path``; ``workers`` processes share the work."""
    root = _root(path)
    if root is None:
        raise InputFileError(f"{path}: by_class and by_write (folders or .zip) are not both here")
    label_of = _class_table(root, workers, progress)
    entries = _writer_files(root)
    if workers is None and len(entries) < _FEW:
        workers = 1
    names = tuple(sorted({entry.parts[1] for entry in entries}))
    index = {name: number for number, name in enumerate(names)}
    images = np.empty((len(entries), SIDE, SIDE), np.uint8)
    labels = np.empty(len(entries), np.uint8)
    start = 0
    pieces = _pieces(entries)
    with progress_bar("images of by_write", len(entries), progress) as advance:
        for piece, (digests, shrunk) in zip(pieces, ordered_map(_shrink, pieces, workers), strict=True):
            for entry, digest, place in zip(piece, _cut(digests), range(start, len(entries)), strict=False):
                if digest not in label_of:
                    raise InputFileError(
                        f"{entry.where}: no file of by_class has the same content; its class is unknown"
                    )
                labels[place] = label_of[digest]
            images[start : start + len(piece)] = shrunk
            start += len(piece)
            advance(len(piece))
    clients = np.array([index[entry.parts[1]] for entry in entries], np.int32)
    if leaf_compat:
        images, labels, clients = _double_first(images, labels, clients)
    # A writer in two partitions (none is known) counts to the lower one: later entries do not overwrite.
    partitions = {entry.parts[1]: int(entry.parts[0][-1]) for entry in reversed(entries)}
    dataset = DataSet("femnist", images, labels, clients, names, CLASSES, partition_attribute(names, partitions))
    return Conversion(dataset, "nist")


def _class_table(root: Path, workers: int | None, progress: bool) -> dict[bytes, int]:
    """Map the MD5 of every by_class image to its label; of equal images, the first in sorted order counts."""
    entries = [
        entry
        for entry in list_tree(root, "by_class")
        if len(entry.parts) == 3
        and entry.parts[0] in HEX_CODES
        and "hsf" in entry.parts[1]
        and "mit" not in entry.parts[1]
    ]
    seen = {entry.parts[0] for entry in entries}
    missing = [code for code in HEX_CODES if code not in seen]
    if missing:
        characters = ", ".join(f"{code} ({chr(int(code, 16))})" for code in missing[:5])
        raise InputFileError(
            f"{root / 'by_class'}: {len(missing)} of {len(HEX_CODES)} classes have no hsf images, first {characters}; "
            "the tree is not complete"
        )
    if workers is None and len(entries) < _FEW:
        workers = 1
    table: dict[bytes, int] = {}
    pieces = _pieces(entries)
    with progress_bar("images of by_class", len(entries), progress) as advance:
        for piece, digests in zip(pieces, ordered_map(_hash, pieces, workers), strict=True):
            for entry, digest in zip(piece, _cut(digests), strict=True):
                table.setdefault(digest, label_of_hex(entry.parts[0]))
            advance(len(piece))
    return table


def _writer_files(root: Path) -> list[Entry]:
    entries = list_tree(root, "by_write")
    for entry in entries:
        if len(entry.parts) != 4 or not entry.parts[0].startswith("hsf_") or not entry.parts[0][-1].isdigit():
            raise InputFileError(f"{entry.where}: expected by_write/hsf_N/<writer>/<type>/<image>.png")
    folder = root / "by_write"
    if folder.is_dir():  # a zip lists only the files that it has
        counts = Counter(entry.parts[1] for entry in entries)
        for writer in sorted(found for found in folder.glob("hsf_*/*") if found.is_dir()):
            if not counts[writer.name]:
                raise InputFileError(f"{writer}: this writer has no images; remove the empty folder or unpack again")
    if not entries:
        raise InputFileError(f"{folder}: there is not one image")
    # By writer first, then by path: what a writer has is contiguous and ordered, whatever the partition.
    return sorted(entries, key=lambda entry: (entry.parts[1], entry.parts))


def _pieces(entries: list[Entry]) -> list[list[Entry]]:
    return [entries[start : start + _PIECE] for start in range(0, len(entries), _PIECE)]


def _cut(digests: bytes) -> list[bytes]:
    return [digests[start : start + _DIGEST] for start in range(0, len(digests), _DIGEST)]


def _hash(piece: list[Entry]) -> bytes:
    return b"".join(md5(content, usedforsecurity=False).digest() for _, content in read_all(piece))


def _shrink(piece: list[Entry]) -> tuple[bytes, NDArray[np.uint8]]:
    from PIL import Image, UnidentifiedImageError

    digests = []
    images = np.empty((len(piece), SIDE, SIDE), np.uint8)
    for place, (entry, content) in enumerate(read_all(piece)):
        digests.append(md5(content, usedforsecurity=False).digest())
        try:
            with Image.open(io.BytesIO(content)) as opened:
                grey = opened.convert("L")
        except (UnidentifiedImageError, OSError, SyntaxError, ValueError):
            raise InputFileError(f"{entry.where}: not a readable PNG; unpack or download it again") from None
        size = grey.size
        grey.thumbnail((SIDE, SIDE), Image.Resampling.LANCZOS)
        if grey.size != (SIDE, SIDE):
            raise InputFileError(f"{entry.where}: {size[0]}x{size[1]} pixels; square images of 28x28 or more expected")
        images[place] = np.asarray(grey)
    return b"".join(digests), images


def _double_first(
    images: NDArray[np.uint8], labels: NDArray[np.uint8], clients: NDArray[np.int32]
) -> tuple[NDArray[np.uint8], NDArray[np.uint8], NDArray[np.int32]]:
    changes = np.flatnonzero(np.diff(clients)) + 1
    order = np.insert(np.arange(len(clients)), changes, changes)
    return images[order], labels[order], clients[order]
