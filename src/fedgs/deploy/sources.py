"""Where a device's batches come from: an interface and three built-in sources.

    npz:FILE                a file of inputs and targets, replayed epoch after epoch as the simulator does
    folder:DIR              images dropped into class folders are the stream: DIR/class/xxx.png, used once
    glyphs:CAMERA           an OCR camera of the embedded data set that never stops
    package.module:name     your own: called without arguments, it gives a Source

Options follow after commas: ``npz:data.npz,seed=3``, ``folder:/srv/in,size=28x28,used=delete``, ``glyphs:7,seed=1``.
"""

import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from fedgs.data import DataSet, Federation
from fedgs.data.arrays import rows_of, take
from fedgs.errors import ConfigError, DataError, FedgsError, InputFileError
from fedgs.imports import load_object

PIECE = 512
"""Samples that are looked at together."""


@dataclass(frozen=True)
class Batch:
    """A mini-batch; it never leaves the device."""

    inputs: Any
    """(samples, …), or a tuple or dict of such arrays."""
    targets: Any
    """(samples, …); class numbers, where the task has classes."""
    classes: tuple[str, ...] = ()
    """The names of the classes in the order of these numbers, where the source knows any; the task may have another."""

    def __len__(self) -> int:
        return rows_of(self.targets)


@runtime_checkable
class Source(Protocol):
    """An iterator over batches, each given once."""

    def batches(self, size: int, classes: int) -> Iterator[Batch | None]:
        """Yield batches of exactly ``size`` samples for a task with ``classes`` bins; None: nothing yet, ask again.

        A batch is asked for while the one before it is being trained on; it may take as long as it likes.

        A source may also have ``held()``, an iterator over the inputs of the samples it holds now, some at a time: what
        ``data.normalise`` is computed from. Of others it is the first batch.
        """
        ...


def open_source(text: str, name: str, seed: int = 0) -> Source:
    """Return the source that ``text`` describes, for the device called ``name``."""
    from fedgs.data.user_data import size_from

    kind, colon, rest = text.partition(":")
    if not colon or not rest:
        raise DataError(f"--source {text}: expected npz:FILE, folder:DIR, glyphs:CAMERA or package.module:name")
    if kind not in ("npz", "folder", "glyphs"):
        return _own(text)
    place, *parts = rest.split(",")
    options = dict(_option(text, part) for part in parts)
    made: Source
    if kind == "folder":
        size = options.pop("size", "")
        pixels = size_from(size, f"--source {text}: size=") if size else None
        made = FolderWatcher(Path(place), pixels, options.pop("used", "keep"))
    elif kind == "npz":
        made = NpzReplay(Path(place), name, _whole(text, "seed", options.pop("seed", str(seed))))
    else:
        made = GlyphCamera(_whole(text, "camera", place), _whole(text, "seed", options.pop("seed", str(seed))))
    if options:
        raise DataError(f"--source {text}: has no option {min(options)!r}")
    return made


class NpzReplay:
    """A data set of one device, replayed exactly as :class:`fedgs.data.DeviceStreams` does: sticky batches."""

    def __init__(self, path: Path, name: str, seed: int = 0) -> None:
        from fedgs.data.sources import load_dataset

        self._data, self._name, self._seed = load_dataset(path), name, seed
        if not len(self._data):
            raise InputFileError(f"{path}: no sample in it")
        names = self._data.client_names
        self._rows = np.arange(len(self._data))
        if len(names) > 1:
            if name not in names:
                raise InputFileError(
                    f"{path}: holds {len(names)} clients and none is called {name!r}; give the device the name of one "
                    "of them"
                )
            self._rows = np.flatnonzero(self._data.clients == names.index(name))

    def batches(self, size: int, classes: int) -> Iterator[Batch | None]:
        """Yield batches for ever."""
        from fedgs.data import DeviceStreams

        alone = one_device(self._data, self._name, self._rows)
        streams = DeviceStreams(alone, size, self._seed)
        while True:
            samples = streams.take([0])[0]
            yield Batch(take(alone.inputs, samples), take(alone.targets, samples), self._data.classes)

    def held(self) -> Iterator[Any]:
        """Yield the inputs of all samples, some at a time."""
        for first in range(0, len(self._rows), PIECE):
            yield take(self._data.inputs, self._rows[first : first + PIECE])


def one_device(data: DataSet, name: str, rows: NDArray[np.int64]) -> Federation:
    """Return the federation of a single device that trains on these samples."""
    from fedgs.data.dataset import ONE_BIN, IndexLists

    labels = data.labels.astype(np.int32) if data.classes else np.zeros(len(data), np.int32)
    return Federation(
        data.name, data.inputs, data.targets, labels, data.classes or ONE_BIN, (name,), ("here",),
        np.zeros(1, np.int32), IndexLists.of([rows]), IndexLists.of([np.empty(0, np.int64)]),
    )  # fmt: skip


class FolderWatcher:
    """A folder with a folder a class; every image that turns up is a sample, once, the oldest first.

    ``used``: ``keep`` leaves used images where they are (a restart sees them again), ``delete`` removes them. The names
    of the folders are those of the classes; an image that cannot be read is left out and named in the log.
    """

    PATIENCE = 0.5
    """Seconds between two looks; a file younger than that may still be being written."""

    def __init__(self, folder: Path, size: tuple[int, int] | None = None, used: str = "keep") -> None:
        if used not in ("keep", "delete"):
            raise DataError(f"used={used} is not possible; choose keep or delete")
        if not folder.is_dir():
            raise InputFileError(f"{folder}: no such folder")
        self.folder, self.size, self.used = folder, size, used

    def batches(self, size: int, classes: int) -> Iterator[Batch | None]:
        """Yield a batch whenever enough new images have come."""
        from fedgs.data.user_data import read_image
        from fedgs.deploy.logs import log

        seen: set[Path] = set()
        waiting: list[tuple[Path, NDArray[np.uint8]]] = []
        while True:
            for path in self._new(seen):
                seen.add(path)
                try:
                    waiting.append((path, read_image(path, self.size)))
                except FedgsError as error:
                    log.warning("image left out", reason=str(error))
            if len(waiting) < size:
                yield None
                continue
            batch, waiting = waiting[:size], waiting[size:]
            shapes = {image.shape for _, image in batch}
            if len(shapes) > 1:
                raise InputFileError(f"{self.folder}: images of {len(shapes)} different sizes; add size=HEIGHTxWIDTH")
            mine = [path.parent.name for path, _ in batch]
            there = {path.name for path in self.folder.iterdir() if path.is_dir() and path.name[0] != "."}
            names = sorted(there.union(mine))
            labels = np.array([names.index(name) for name in mine], np.int64)
            yield Batch(np.stack([image for _, image in batch]), labels, tuple(names))
            if self.used == "delete":
                for path, _ in batch:
                    path.unlink(missing_ok=True)
                    seen.discard(path)

    def held(self) -> Iterator[Any]:
        """Yield the images that are there now, one by one."""
        from fedgs.data.user_data import read_image

        for path in self._new(set()):
            with suppress(FedgsError, FileNotFoundError):  # named in the log when its turn comes, or gone
                yield read_image(path, self.size)[None]

    def _new(self, seen: set[Path]) -> list[Path]:
        from fedgs.data.user_data import image_files

        settled = time.time() - self.PATIENCE
        found = []
        for relative in image_files(self.folder):
            path = self.folder / relative
            if len(relative.parts) == 2 and path not in seen:
                try:
                    changed = path.stat().st_mtime
                except OSError:
                    continue  # gone again
                if changed <= settled:
                    found.append((changed, path))
        return [path for _, path in sorted(found)]


class GlyphCamera:
    """One camera of the embedded data set, reading on for ever; nothing it has read comes twice."""

    BLOCK = 256
    """Characters drawn at a time."""

    def __init__(self, camera: int, seed: int = 0) -> None:
        self.camera, self.seed = camera, seed

    def batches(self, size: int, classes: int) -> Iterator[Batch | None]:
        """Yield batches for ever."""
        from fedgs.data.characters import CHARACTERS
        from fedgs.data.glyphs import read_on

        if classes != len(CHARACTERS):
            raise DataError(f"glyphs: has {len(CHARACTERS)} classes, the task has {classes}")
        block = max(self.BLOCK, size)
        number, images, labels = 0, np.empty((0, 28, 28), np.uint8), np.empty(0, np.uint8)
        while True:
            while len(labels) < size:
                more_images, more_labels = read_on(self.camera, self.seed, number, block)
                images, labels = np.concatenate([images, more_images]), np.concatenate([labels, more_labels])
                number += 1
            yield Batch(images[:size], labels[:size].astype(np.int64), tuple(CHARACTERS))
            images, labels = images[size:], labels[size:]


def _option(text: str, part: str) -> tuple[str, str]:
    key, sign, value = part.partition("=")
    if not sign:
        raise DataError(f"--source {text}: {part!r} is not an option; they are written key=value")
    return key.strip(), value.strip()


def _whole(text: str, key: str, value: str) -> int:
    if not value.isdecimal():
        raise DataError(f"--source {text}: {key}={value} is not a whole number")
    return int(value)


def _own(text: str) -> Source:
    try:
        made = load_object(text, "--source")()
    except ConfigError as error:
        raise DataError(str(error)) from None
    except Exception as error:  # a module, or whatever the user's own code raises
        reason = f"{type(error).__name__}: {error}"
        raise DataError(f"--source {text}: calling it without arguments must give a source ({reason})") from error
    if not isinstance(made, Source):
        raise DataError(f"--source {text}: has no method batches(size, classes)")
    return made
