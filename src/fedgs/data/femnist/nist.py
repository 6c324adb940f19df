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

from collections import Counter
from hashlib import md5
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fedgs.data.dataset import DataSet
from fedgs.data.femnist.archive import Entry, list_tree, read_all
from fedgs.data.femnist.form import CLASSES, LABEL_OF_HEX, SIDE, Conversion, partition_attribute, read_png
from fedgs.data.parallel import ordered_map, progress_bar
from fedgs.errors import InputFileError

_PIECE = 2000  # files a worker does at a time
_FEW = 2 * _PIECE  # so few files are done here before other processes would have started


def find(path: Path) -> list[Path]:
    """Return the two trees, each a folder or a zip; an empty list when they are not both there."""
    for root in (path, path / "raw_data"):
        trees = [root / name for name in ("by_class", "by_write")]
        trees = [tree if tree.is_dir() else tree.with_suffix(".zip") for tree in trees]
        if all(tree.exists() for tree in trees):
            return trees
    return []


def load(path: Path, leaf_compat: bool = False, workers: int | None = None, progress: bool = False) -> Conversion:
    """Join and shrink the two trees below ``path``; ``workers`` processes share the work."""
    trees = find(path)
    if not trees:
        raise InputFileError(f"{path}: by_class and by_write (folders or .zip) are not both here")
    label_of = _class_table(trees[0], workers, progress)
    entries = _writer_files(trees[1])
    if workers is None and len(entries) < _FEW:
        workers = 1
    names = tuple(sorted({entry.parts[1] for entry in entries}))
    index = {name: number for number, name in enumerate(names)}
    images = np.empty((len(entries), SIDE, SIDE), np.uint8)
    labels = np.empty(len(entries), np.uint8)
    start = 0
    pieces = _pieces(entries)
    with progress_bar("images of by_write", len(entries), progress) as update:
        for piece, (digests, shrunk) in zip(pieces, ordered_map(_shrink, pieces, workers), strict=True):
            for entry, digest, place in zip(piece, digests, range(start, len(entries)), strict=False):
                if digest not in label_of:
                    raise InputFileError(
                        f"{entry.where}: no file of by_class has the same content; its class is unknown"
                    )
                labels[place] = label_of[digest]
            images[start : start + len(piece)] = shrunk
            start += len(piece)
            update(advance=len(piece))
    clients = np.array([index[entry.parts[1]] for entry in entries], np.int32)
    if leaf_compat:
        changes = np.flatnonzero(np.diff(clients)) + 1
        order = np.insert(np.arange(len(clients)), changes, changes)
        images, labels, clients = images[order], labels[order], clients[order]
    # A writer in two partitions (none is known) counts to the lower one: later entries do not overwrite.
    partitions = {entry.parts[1]: int(entry.parts[0][-1]) for entry in reversed(entries)}
    dataset = DataSet("femnist", images, labels, clients, names, CLASSES, partition_attribute(names, partitions))
    return Conversion(dataset, "nist")


def _class_table(tree: Path, workers: int | None, progress: bool) -> dict[bytes, int]:
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
    if workers is None and len(entries) < _FEW:
        workers = 1
    table: dict[bytes, int] = {}
    pieces = _pieces(entries)
    with progress_bar("images of by_class", len(entries), progress) as update:
        for piece, digests in zip(pieces, ordered_map(_hash, pieces, workers), strict=True):
            for entry, digest in zip(piece, digests, strict=True):
                table.setdefault(digest, LABEL_OF_HEX[entry.parts[0]])
            update(advance=len(piece))
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


def _pieces(entries: list[Entry]) -> list[list[Entry]]:
    return [entries[start : start + _PIECE] for start in range(0, len(entries), _PIECE)]


def _hash(piece: list[Entry]) -> list[bytes]:
    return [md5(content, usedforsecurity=False).digest() for _, content in read_all(piece)]


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
