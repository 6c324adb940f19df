"""What every form of FEMNIST ends in: 28x28 grey images, paper 255 and ink 0, 62 classes, writers by name.

Labels: 0-9 are the digits, 10-35 'A'-'Z', 36-61 'a'-'z' (LEAF, TFF and the Hugging Face copy agree).
A writer ``f0000_14`` is form 0000; the form number tells which of NIST's partitions (hsf_0 … hsf_7) the writer
belongs to. Partitions 0-2 also copied a paragraph of text, 4 are high-school students, the rest census staff.
"""

import io
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedgs.data.characters import CHARACTERS
from fedgs.data.dataset import DataSet
from fedgs.errors import DataError, InputFileError

if TYPE_CHECKING:
    from PIL.Image import Image as Picture

SIDE = 28
ROUNDING = 0.2
"""Grey levels that a pixel may be off the next whole one: what writing it as float16 or with four digits costs."""
CLASSES = tuple(CHARACTERS)
LABEL_OF_HEX = {f"{ord(character):02x}": label for label, character in enumerate(CLASSES)}
"""SD19's class folders are named by the character's ASCII code in hex: '4a' is 'J' is 19."""
UNKNOWN_PARTITION = -1

_FORMS = {0: (0, 499), 1: (500, 999), 2: (1000, 1499), 3: (1500, 2099), 4: (2100, 2599), 6: (3100, 3599),
          7: (3600, 4099)}  # fmt: skip
_WRITER = re.compile(r"f(\d{4})_\d{2}")
_LOOKED_AT = 4096  # images that the polarity check reads: enough to be sure, few enough to stay instant


class Piece(NamedTuple):
    """Samples of one writer, as a reader finds them: all that the file has, or some."""

    file: Path
    """For messages."""
    writer: str
    images: NDArray[np.uint8]
    labels: NDArray[np.uint8]
    test: bool = False
    """Whether the source has put them into its test part."""
    partition: int | None = None
    """What the source says of the writer's hsf partition; None: the form number tells it."""
    double: NDArray[np.bool_] | None = None
    """Which of them the source marks as LEAF's second copies."""


@dataclass(frozen=True)
class Conversion:
    """A converted set and what was done to it on the way."""

    dataset: DataSet
    layout: str
    doubles_dropped: int = 0
    """Second copies of an image that LEAF's script had made."""


def partition_of(writer: str) -> int:
    """Return the hsf partition that a writer's form number lies in, or UNKNOWN_PARTITION."""
    match = _WRITER.fullmatch(writer)
    form = int(match[1]) if match else -1
    return next((part for part, (first, last) in _FORMS.items() if first <= form <= last), UNKNOWN_PARTITION)


def read_png(content: bytes, where: str) -> "Picture":
    """Return the image in a file's bytes, in grey."""
    from PIL import Image, UnidentifiedImageError

    try:
        with Image.open(io.BytesIO(content)) as opened:
            return opened.convert("L")
    except (UnidentifiedImageError, OSError, SyntaxError, ValueError):
        raise InputFileError(f"{where}: not a readable PNG; unpack or download it again") from None


def check_samples(pixels: Any, labels: Any, where: str) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    """Return a writer's images and labels; pixels k/255 become k, anything else is refused instead of rounded."""
    try:
        pixels, labels = np.asarray(pixels), np.asarray(labels)
    except (TypeError, ValueError):
        for row, image in enumerate(pixels):
            if not isinstance(image, list) or len(image) != SIDE * SIDE:
                raise InputFileError(
                    f"{where}: image {row} has {np.size(image)} pixels; {SIDE * SIDE} expected"
                ) from None
        pixels = labels = np.array([None])
    if not labels.size:
        raise InputFileError(f"{where} has no samples; remove what is empty (LEAF's preprocess.sh: -k 1)")
    if pixels.dtype.kind not in "fiu" or labels.dtype.kind not in "iu" or labels.ndim != 1:
        raise InputFileError(f"{where}: pixels must be numbers, labels must be whole numbers, one a sample")
    if pixels.shape not in ((len(labels), SIDE, SIDE), (len(labels), SIDE * SIDE)):
        raise InputFileError(
            f"{where}: pixels are {pixels.shape} for {len(labels)} labels; (n, {SIDE}, {SIDE}) or (n, {SIDE * SIDE}) "
            "expected"
        )
    low, high = float(pixels.min()), float(pixels.max())
    if not (low >= 0.0 and high <= 1.0):  # NaN fails too
        raise InputFileError(
            f"{where}: pixels must lie in 0..1 but reach from {low:g} to {high:g}; this copy was normalised, take an "
            "untouched one"
        )
    grey = np.rint(pixels * 255.0)
    off = np.abs(pixels * 255.0 - grey).max()
    if off > ROUNDING:
        raise InputFileError(
            f"{where}: a pixel is {off:.2f} off FEMNIST's 256 grey levels, and nothing is rounded; give other "
            "images as arrays (fedgs.Federation.from_arrays)"
        )
    return grey.astype(np.uint8).reshape(-1, SIDE, SIDE), check_labels(labels, where)


def check_labels(labels: NDArray[np.integer], where: str) -> NDArray[np.uint8]:
    """Return the labels as uint8 when all lie in 0..61."""
    wrong = np.flatnonzero((labels < 0) | (labels >= len(CLASSES)))
    if wrong.size:
        raise InputFileError(
            f"{where}: label {int(labels[wrong[0]])} of sample {int(wrong[0])} is not one of 0..{len(CLASSES) - 1}"
        )
    return labels.astype(np.uint8)


def check_polarity(images: NDArray[np.uint8], where: str) -> None:
    """Refuse white ink on black paper: the mean must lie well above one half and the corners be white."""
    if not len(images):
        raise DataError(f"{where}: there is not one image")
    some = images[:: max(1, len(images) // _LOOKED_AT)]
    mean = float(some.mean()) / 255
    corners = float(some[:, :: SIDE - 1, :: SIDE - 1].mean()) / 255
    if mean > 0.5 and corners > 0.9:
        return
    seen = f"mean pixel {mean:.2f}, corners {corners:.2f}"
    if mean < 0.5 and corners < 0.1:
        raise DataError(f"{where}: the images are white on black ({seen}); ask for inversion (invert=True, --invert)")
    raise DataError(f"{where}: these are not FEMNIST images ({seen}; expected above 0.5 and about 1)")


def by_writer(
    file: Path,
    writers: Sequence[str],
    images: NDArray[np.uint8],
    labels: NDArray[np.uint8],
    partitions: Sequence[int] | NDArray[np.integer],
    double: NDArray[np.bool_] | None = None,
) -> Iterator[Piece]:
    """Sort samples whose writers are mixed; the ``partitions`` are those of the samples."""
    names, first, number = np.unique(np.asarray(writers), return_index=True, return_inverse=True)
    order = np.argsort(number, kind="stable")
    for writer, start, rows in zip(names, first, np.split(order, np.cumsum(np.bincount(number))[:-1]), strict=True):
        mark = None if double is None else double[rows]
        yield Piece(file, str(writer), images[rows], labels[rows], partition=int(partitions[start]), double=mark)


def repeats(images: NDArray[np.uint8], labels: NDArray[np.uint8], test: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Mark what LEAF doubled: samples of one writer with the very bytes and label of another one of theirs.

    LEAF's script stores a writer's first image twice. In ``all_data`` the copy follows the original, but
    sampling may shuffle the two and splitting may part them, one into train and one into test; so every pair
    is looked for, wherever it stands. The first one is kept; of a pair across the split the training one, unless
    that left the writer without any test sample.
    """
    order = np.argsort(test, kind="stable")
    mark = _later_copies(images, labels, order)
    if test.any() and not np.any(test & ~mark) and np.count_nonzero(~test) > 1:
        mark = _later_copies(images, labels, order[::-1])
    return mark


def _later_copies(images: NDArray[np.uint8], labels: NDArray[np.uint8], order: NDArray[np.intp]) -> NDArray[np.bool_]:
    mark = np.zeros(len(labels), np.bool_)
    seen: set[tuple[bytes, int]] = set()
    for sample in order:
        content = (images[sample].tobytes(), int(labels[sample]))
        mark[sample] = content in seen
        seen.add(content)
    return mark


def assemble(pieces: Iterable[Piece], layout: str, leaf_compat: bool) -> Conversion:
    """Make the data set: writers by name, the training samples of each before the test samples, LEAF's copies dropped.

    In a split every writer is in both parts.
    """
    found: dict[str, list[Piece]] = {}
    for piece in pieces:
        found.setdefault(piece.writer, []).append(piece)
    if any(piece.test for parts in found.values() for piece in parts):
        for part, other in ((False, "test"), (True, "train")):
            missing = sorted(writer for writer, parts in found.items() if all(piece.test == part for piece in parts))
            if missing:
                raise InputFileError(
                    f"{found[missing[0]][0].file}: writer {missing[0]!r} (and {len(missing) - 1} more) is in "
                    f"{'test' if part else 'train'} but not in {other}; in a split every writer has both"
                )
    names = tuple(sorted(found))
    known = [found[name][0].partition for name in names]
    partitions = [partition_of(name) if part is None else part for name, part in zip(names, known, strict=True)]
    there = sum(len(piece.labels) for parts in found.values() for piece in parts)
    # Each writer's own arrays are let go as soon as they are copied: the set must not be in memory twice.
    whole: tuple[NDArray[Any], ...] = (
        np.empty((there, SIDE, SIDE), np.uint8),
        np.empty(there, np.uint8),
        np.empty(there, np.bool_),
    )
    ends = [0]
    for name in names:
        parts = sorted(found.pop(name), key=lambda piece: piece.test)
        columns = ((piece.images, piece.labels, np.full(len(piece.labels), piece.test)) for piece in parts)
        own = [np.concatenate(column) for column in zip(*columns, strict=True)]
        if not leaf_compat and (layout == "leaf" or parts[0].double is not None):
            marks = [piece.double for piece in parts if piece.double is not None]
            double = np.concatenate(marks) if marks else repeats(*own)
            own = [array[~double] for array in own]
        ends.append(ends[-1] + len(own[1]))
        for array, mine in zip(whole, own, strict=True):
            array[ends[-2] : ends[-1]] = mine
    images, labels, test = (array[: ends[-1]] for array in whole)
    clients = np.repeat(np.arange(len(names), dtype=np.int32), np.diff(ends))
    hsf = {"hsf": np.array(partitions, np.int32)} if set(partitions) - {UNKNOWN_PARTITION} else {}
    dataset = DataSet("femnist", images, labels, clients, names, CLASSES, hsf, test if test.any() else None)
    return Conversion(dataset, layout, there - len(dataset))
