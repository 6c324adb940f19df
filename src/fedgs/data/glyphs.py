"""The embedded data set ``glyphs``: printed characters as the OCR cameras of warehouses see them.

No download and no licence question: 62 classes (0-9, A-Z, a-z), 28×28 pixels, dark ink on light paper as in
FEMNIST, drawn from the fonts that come with matplotlib. Each device is a camera with a style of its own
that reads the words of its line (:mod:`fedgs.data.glyphs_words`); how a
character becomes a picture is in :mod:`fedgs.data.glyphs_render`.

A camera's samples follow from (seed, number of the camera, samples_per_device) alone: not from how many other
cameras there are, nor from the number of workers. They come in the order in which the camera read them.
Another version of matplotlib brings another FreeType and perhaps other fonts, so pictures may differ by some
grey values from one version to the next; labels do not.
"""

import os
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import numpy as np
from numpy.typing import NDArray

from fedgs.data.arrays import is_whole
from fedgs.data.cache import cache_dir, is_set, load, store
from fedgs.data.characters import CHARACTERS
from fedgs.data.dataset import DataSet
from fedgs.data.glyphs_render import draw_style, face, render
from fedgs.data.glyphs_words import BUSY_SHARES, LINE_SHARES, LINES, Camera, draw_camera, labels_and_neighbours, read
from fedgs.errors import DataError, InputFileError
from fedgs.rng import stream

EDITION = 1
"""Raised whenever the same arguments begin to give other pictures."""
MOST_DEVICES = 100_000
"""Names are numbered with five digits, so that they sort as they count."""


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

    if not cache:
        return _build(devices, samples_per_device, seed, workers)
    key = _cache_key(devices, samples_per_device, seed)
    folder = cache_dir() / key
    if is_set(folder):
        with suppress(InputFileError):  # damaged: made anew below
            return load(folder)
    made = _build(devices, samples_per_device, seed, workers)
    return load(store(made, key, {"layout": "glyphs", "seed": seed}))


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


def _device(device: int, seed: int, samples: int, *block: int) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    words = read(camera(device, seed), samples, stream(seed, "glyphs", device, "words", *block))
    labels, left, right = labels_and_neighbours(words)
    style = draw_style(stream(seed, "glyphs", device, "style"))
    return render(labels, left, right, style, stream(seed, "glyphs", device, "pictures", *block)), labels


def read_on(device: int, seed: int, block: int, samples: int) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    """Return pictures and labels of what a camera reads next: block after block, it never comes to an end."""
    return _device(device, seed, samples, block)


def _build(devices: int, mean: int, seed: int, workers: int | None) -> DataSet:
    for font in {draw_style(stream(seed, "glyphs", device, "style")).font for device in range(devices)}:
        face(font)  # once, before the threads ask for it together
    # Threads, not processes: numpy and scipy let go of the interpreter lock while they work on a camera's arrays.
    with ThreadPoolExecutor(workers or os.cpu_count() or 1) as pool:
        made = list(pool.map(lambda device: _device(device, seed, _samples(device, mean, seed)), range(devices)))
    return DataSet(
        name="glyphs",
        inputs=np.concatenate([images for images, _ in made]),
        targets=np.concatenate([labels for _, labels in made]),
        clients=np.repeat(np.arange(devices, dtype=np.int32), [len(labels) for _, labels in made]),
        client_names=tuple(f"camera-{device:05d}" for device in range(devices)),
        classes=tuple(CHARACTERS),
        attributes={"line": np.array([_line(device, seed) for device in range(devices)], np.int32)},
    )


def _check(name: str, value: int, least: int, most: int | None) -> None:
    if not is_whole(value) or value < least or (most is not None and value > most):
        allowed = f"a whole number from {least}" + ("" if most is None else f" to {most}")
        raise DataError(f"glyphs: {name}={value!r} is not possible; give {allowed}")


def _cache_key(devices: int, mean: int, seed: int) -> str:
    import matplotlib

    return f"glyphs-{EDITION}-matplotlib-{matplotlib.__version__}-{devices}-{mean}-{seed}"
