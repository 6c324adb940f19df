"""What every form of FEMNIST ends in: 28x28 grey images, paper 255 and ink 0, 62 classes, writers by name.

Labels: 0-9 are the digits, 10-35 'A'-'Z', 36-61 'a'-'z' (LEAF, TFF and the Hugging Face copy agree).
A writer ``f0000_14`` is form 0000; the form number tells which of NIST's partitions (hsf_0 … hsf_7) the writer
belongs to. Partitions 0-2 also copied a paragraph of text, 4 are high-school students, the rest census staff.
"""

import io
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedgs.data.characters import CHARACTERS
from fedgs.data.dataset import DataSet
from fedgs.errors import DataError, InputFileError

if TYPE_CHECKING:
    from PIL.Image import Image as Picture

SIDE = 28
CLASSES = tuple(CHARACTERS)
LABEL_OF_HEX = {f"{ord(character):02x}": label for label, character in enumerate(CLASSES)}
"""SD19's class folders are named by the character's ASCII code in hex: '4a' is 'J' is 19."""
UNKNOWN_PARTITION = -1

_PARTITION_FORMS = {0: (0, 499), 1: (500, 999), 2: (1000, 1499), 3: (1500, 2099), 4: (2100, 2599)} | {
    6: (3100, 3599),
    7: (3600, 4099),
}
_WRITER = re.compile(r"f(\d{4})_\d{2}")
_LOOKED_AT = 4096  # images that the polarity check reads: enough to be sure, few enough to stay instant


class Samples(NamedTuple):
    """All samples of one writer."""

    images: NDArray[np.uint8]
    labels: NDArray[np.uint8]
    test: NDArray[np.bool_] | None = None


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
    if match:
        form = int(match.group(1))
        for partition, (first, last) in _PARTITION_FORMS.items():
            if first <= form <= last:
                return partition
    return UNKNOWN_PARTITION


def partition_attribute(writers: Iterable[str], known: Mapping[str, int] | None = None) -> dict[str, NDArray[np.int32]]:
    """Return ``{"hsf": …}`` for these writers, or nothing where no writer's partition can be told."""
    known = known or {}
    partitions = np.array([known.get(writer, partition_of(writer)) for writer in writers], np.int32)
    return {"hsf": partitions} if np.any(partitions != UNKNOWN_PARTITION) else {}


def read_png(content: bytes, where: str) -> "Picture":
    """Return the image in a file's bytes, in grey."""
    from PIL import Image, UnidentifiedImageError

    try:
        with Image.open(io.BytesIO(content)) as opened:
            return opened.convert("L")
    except (UnidentifiedImageError, OSError, SyntaxError, ValueError):
        raise InputFileError(f"{where}: not a readable PNG; unpack or download it again") from None


def to_uint8(pixels: NDArray[np.floating], where: str) -> NDArray[np.uint8]:
    """Turn values in 0..1 into round(255 x); anything outside is refused, for it is another scale."""
    if pixels.size and not (float(pixels.min()) >= 0.0 and float(pixels.max()) <= 1.0):  # NaN fails too
        raise InputFileError(
            f"{where}: pixels must lie in 0..1 but reach from {float(pixels.min()):g} to {float(pixels.max()):g}; "
            "this copy was normalised, take an untouched one"
        )
    whole: NDArray[np.uint8] = np.rint(pixels * 255.0).astype(np.uint8)
    return whole


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


def repeats(
    images: NDArray[np.uint8], labels: NDArray[np.uint8], test: NDArray[np.bool_] | None = None
) -> NDArray[np.bool_]:
    """Mark what LEAF doubled: samples of one writer with the very bytes and label of another one of theirs.

    LEAF's script stores a writer's first image twice. In ``all_data`` the copy follows the original, but
    sampling may shuffle the two and splitting may part them, one into train and one into test; so every pair
    is looked for, wherever it stands. The first one is kept; of a pair across the split the training one, unless
    that left the writer without any test sample.
    """
    order = np.arange(len(labels)) if test is None else np.argsort(test, kind="stable")
    mark = _later_copies(images, labels, order)
    if test is not None and test.any() and not np.any(test & ~mark) and np.count_nonzero(~test) > 1:
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


def without_repeats(samples: Samples) -> Samples:
    """Drop the copies that LEAF's script made."""
    keep = ~repeats(*samples)
    return Samples(samples.images[keep], samples.labels[keep], None if samples.test is None else samples.test[keep])


def join_split(
    train: dict[str, Samples], test: dict[str, Samples], file_of: Callable[[str, str], Path]
) -> dict[str, Samples]:
    """Put each writer's training samples before the test samples, with the mask that tells them apart.

    Every writer must be in both parts; ``file_of(part, writer)`` is the file that an error names.
    """
    for part, there, other, elsewhere in (("train", train, "test", test), ("test", test, "train", train)):
        missing = sorted(there.keys() - elsewhere.keys())
        if missing:
            raise InputFileError(
                f"{file_of(part, missing[0])}: writer {missing[0]!r} (and {len(missing) - 1} more) is in {part} but "
                f"not in {other}; in a split every writer has both"
            )
    joined: dict[str, Samples] = {}
    for writer in list(train):
        first, second = train.pop(writer), test.pop(writer)
        joined[writer] = Samples(
            np.concatenate([first.images, second.images]),
            np.concatenate([first.labels, second.labels]),
            np.arange(len(first.labels) + len(second.labels)) >= len(first.labels),
        )
    return joined


def gather(writers: dict[str, Samples]) -> DataSet:
    """Empty ``writers`` into a data set. Each writer's own arrays are let go as soon as they are copied."""
    names = tuple(sorted(writers))
    sizes = np.array([len(writers[writer].labels) for writer in names], np.int64)
    total = int(sizes.sum())
    images = np.empty((total, SIDE, SIDE), np.uint8)
    labels = np.empty(total, np.uint8)
    test = None if writers[names[0]].test is None else np.zeros(total, np.bool_)
    start = 0
    for writer in names:
        samples = writers.pop(writer)
        here = slice(start, start + len(samples.labels))
        images[here] = samples.images
        labels[here] = samples.labels
        if test is not None:
            test[here] = samples.test
        start = here.stop
    clients = np.repeat(np.arange(len(names), dtype=np.int32), sizes)
    return DataSet("femnist", images, labels, clients, names, CLASSES, partition_attribute(names), test)
