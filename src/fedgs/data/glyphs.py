"""The embedded data set ``glyphs``: printed characters as the OCR cameras of warehouses see them.

No download and no licence question: 62 classes (0-9, A-Z, a-z), 28×28 pixels, dark ink on light paper as in
FEMNIST, drawn from the fonts that come with matplotlib. Each device is a camera with a style of its own
(:mod:`fedgs.data.glyphs_style`) that reads the words of its line (:mod:`fedgs.data.glyphs_words`); how a
character becomes a picture is in :mod:`fedgs.data.glyphs_render`.

A camera's samples follow from (seed, number of the camera, samples_per_device) alone: not from how many other
cameras there are, nor from the number of workers. They come in the order in which the camera read them.
Another version of matplotlib brings another FreeType and perhaps other fonts, so pictures may differ by some
grey values from one version to the next; labels do not.
"""

import os
import shutil
import tempfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fedgs.data.dataset import DataSet
from fedgs.data.glyphs_render import face, render
from fedgs.data.glyphs_style import draw_style
from fedgs.data.glyphs_words import (
    BUSY_SHARES,
    CHARACTERS,
    LINE_SHARES,
    LINES,
    Camera,
    draw_camera,
    labels_and_neighbours,
    read,
)
from fedgs.errors import DataError, OutputError
from fedgs.rng import stream

EDITION = 1
"""Raised whenever the same arguments begin to give other pictures."""
MOST_DEVICES = 100_000
"""Names are numbered with five digits, so that they sort as they count."""

Arrays = dict[str, NDArray[np.generic]]


def load_glyphs(
    devices: int = 350,
    samples_per_device: int = 230,
    seed: int = 0,
    workers: int | None = None,
    cache: bool = True,
) -> DataSet:
    """Return the data set, made anew or from the cache.

    ``samples_per_device`` is the mean: as in FEMNIST most cameras have fewer and some many more.
    ``workers`` threads share the work (None: one per core). The attribute ``line`` indexes
    :data:`fedgs.data.glyphs_words.LINES`, for factories that differ in kind.
    """
    _check("devices", devices, 1, MOST_DEVICES)
    _check("samples_per_device", samples_per_device, 1, 20_000)
    _check("seed", seed, 0, None)
    if workers is not None:
        _check("workers", workers, 1, None)

    def build() -> Arrays:
        return _build(devices, samples_per_device, seed, workers)

    arrays = _cached(_cache_name(devices, samples_per_device, seed), build) if cache else build()
    counts = arrays["counts"]
    return DataSet(
        name="glyphs",
        images=arrays["images"].astype(np.uint8, copy=False),
        labels=arrays["labels"].astype(np.uint8, copy=False),
        owners=np.repeat(np.arange(devices, dtype=np.int32), counts.astype(np.int64)),
        owner_names=tuple(f"camera-{device:05d}" for device in range(devices)),
        classes=tuple(CHARACTERS),
        attributes={"line": arrays["line"].astype(np.int32, copy=False)},
    )


def camera(device: int, seed: int = 0) -> Camera:
    """Return what camera number ``device`` serves."""
    return draw_camera(LINES[_line(device, seed)], stream(seed, "glyphs", device, "camera"))


def _line(device: int, seed: int) -> int:
    # Multiples of the golden ratio, modulo 1, fill [0, 1) evenly from any start: the first ten cameras
    # have the lines in the same proportions as all of them, whatever the seed.
    place = (stream(seed, "glyphs", "line").random() + device * 0.6180339887498949) % 1
    return int(np.searchsorted(np.cumsum(LINE_SHARES)[:-1], place, side="right"))


def _samples(device: int, mean: int, seed: int) -> int:
    """How many samples a camera has: FEMNIST's two humps, here at 0.73 and 1.41 of the mean."""
    draw = stream(seed, "glyphs", device, "samples")
    busy = draw.random() < BUSY_SHARES[_line(device, seed)]
    hump = draw.normal(1.41, 0.14) if busy else draw.normal(0.73, 0.06)
    return max(1, round(mean * max(hump, 0.45)))


def _device(device: int, mean: int, seed: int) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    words = read(camera(device, seed), _samples(device, mean, seed), stream(seed, "glyphs", device, "words"))
    labels, left, right = labels_and_neighbours(words)
    style = draw_style(stream(seed, "glyphs", device, "style"))
    return render(labels, left, right, style, stream(seed, "glyphs", device, "pictures")), labels


def _build(devices: int, mean: int, seed: int, workers: int | None) -> Arrays:
    for font in {draw_style(stream(seed, "glyphs", device, "style")).font for device in range(devices)}:
        face(font)  # once, before the threads ask for it together
    # Threads, not processes: numpy and scipy let go of the interpreter lock while they work on a camera's arrays.
    with ThreadPoolExecutor(workers or os.cpu_count() or 1) as pool:
        made = list(pool.map(lambda device: _device(device, mean, seed), range(devices)))
    return {
        "images": np.concatenate([images for images, _ in made]),
        "labels": np.concatenate([labels for _, labels in made]),
        "counts": np.array([len(labels) for _, labels in made], np.int64),
        "line": np.array([_line(device, seed) for device in range(devices)], np.int32),
    }


def _check(name: str, value: int, least: int, most: int | None) -> None:
    whole = isinstance(value, int | np.integer) and not isinstance(value, bool)
    if not whole or value < least or (most is not None and value > most):
        allowed = f"a whole number from {least}" + ("" if most is None else f" to {most}")
        raise DataError(f"glyphs: {name}={value!r} is not possible; give {allowed}")


def _cache_name(devices: int, mean: int, seed: int) -> str:
    import matplotlib

    return f"glyphs-{EDITION}-matplotlib-{matplotlib.__version__}-{devices}-{mean}-{seed}"


def _cached(name: str, build: Callable[[], Arrays]) -> Arrays:
    """Return the arrays kept under this name, memory-mapped, after making them where there are none."""
    home = os.environ.get("FEDGS_DATA")
    base = Path(home) if home else Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "fedgs")
    folder = base / name
    if not folder.is_dir():
        arrays = build()
        try:
            base.mkdir(parents=True, exist_ok=True)
            new = Path(tempfile.mkdtemp(prefix=f".{name}-", dir=base))
            try:
                for key, array in arrays.items():
                    np.save(new / f"{key}.npy", array)
                new.rename(folder)
            except OSError:
                shutil.rmtree(new, ignore_errors=True)
                if not folder.is_dir():  # otherwise another process was first, with the same bytes
                    raise
        except OSError as error:
            raise OutputError(
                f"{folder}: the cache cannot be written ({error.strerror}); set FEDGS_DATA to a folder that can, "
                "or load with cache=False"
            ) from None
    return {file.stem: np.load(file, mmap_mode="r") for file in sorted(folder.glob("*.npy"))}
