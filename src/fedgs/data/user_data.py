"""User data as a data set: arrays in memory, or a folder of images.

``from_folder`` knows three layouts, told apart by depth: ``root/device/class/xxx.png``, the same with a folder a
factory above (``root/factory/device/class/xxx.png``: the attribute ``factory`` numbers them by name), and
``root/class/xxx.png`` (one client named "all", to be split by :mod:`fedgs.data.label_skew`).
"""

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedgs.data.arrays import Arrays, as_arrays, map_tree, rows_of, take
from fedgs.data.dataset import DataSet, check_classes, check_finite, check_mask, check_names, check_rows
from fedgs.errors import DataError, InputFileError

if TYPE_CHECKING:
    from PIL.Image import Image as Picture

SUFFIXES = (".png", ".jpg", ".jpeg", ".bmp", ".webp", ".tif", ".tiff")
FOREIGN = (".heic", ".heif", ".avif", ".jxl", ".gif", ".svg", ".raw", ".dng", ".cr2", ".cr3", ".nef", ".arw")
"""Pictures that are not read: to pass over them without a word would be to train on a part of the data."""
LAYOUTS = "device/class/photo.png, factory/device/class/photo.png or class/photo.png"
MAX_CLASSES = 1 << 16
"""Whole numbers from here on are values, not classes, where the classes are not named."""
ONE_CLIENT = "all"


def from_arrays(
    inputs: Arrays,
    targets: ArrayLike,
    clients: ArrayLike | None = None,
    *,
    classes: Sequence[str] | None = None,
    client_names: Sequence[str] | None = None,
    attributes: Mapping[str, ArrayLike] | None = None,
    test: ArrayLike | None = None,
    name: str = "arrays",
) -> DataSet:
    """Make a data set of arrays.

    ``inputs``: (samples, …) of any shape and type, or a tuple or dict of such arrays; nothing is rounded. ``targets``:
    class numbers, class names, or values to predict. ``clients``: one name a sample, or one number (an index into
    ``client_names`` where given); None: all belong to "all". ``client_names`` may name clients without samples.
    ``attributes``: whole numbers in the order of ``client_names``. Arrays are copied only when they are not grouped by
    client.
    """
    arrays = as_arrays(inputs, f"{name}: inputs")
    values = map_tree(np.asarray, as_arrays(targets, f"{name}: targets"))
    values, class_names = class_numbers(values, classes, name)
    samples = rows_of(values)
    client, names = _client_names(clients, client_names, samples, name)
    check_rows(name, inputs=arrays, targets=values, clients=client)
    check_finite(
        name, lambda row: f"sample {row} (device {names[client[row]]!r})", inputs=arrays, targets=values
    )  # before they are sorted: the user knows his own numbers
    by_name = sorted(range(len(names)), key=names.__getitem__)
    rank = np.empty(len(names), np.int64)
    rank[by_name] = np.arange(len(names))
    client = rank[client]
    mask = None if test is None else np.atleast_1d(np.asarray(test))
    if mask is not None and mask.dtype.kind in "iu" and np.isin(mask, (0, 1)).all():
        mask = mask.astype(bool)
    check_mask(name, mask, samples)
    if np.any(np.diff(client) < 0):
        order = np.argsort(client, kind="stable")
        arrays, values, client = take(arrays, order), take(values, order), client[order]
        mask = None if mask is None else mask[order]
    return DataSet(
        name=name,
        inputs=arrays,
        targets=values,
        clients=client.astype(np.int32),
        client_names=tuple(names[row] for row in by_name),
        classes=class_names,
        attributes={
            key: _attribute(f"{name}: attribute {key!r}", value, len(names))[by_name]
            for key, value in (attributes or {}).items()
        },
        test=mask,
    )


def from_folder(
    root: str | Path,
    *,
    size: tuple[int, int] | None = None,
    grey: bool | None = None,
    classes: Sequence[str] | None = None,
    name: str | None = None,
) -> DataSet:
    """Read a folder of images: ``device/class/xxx.png``, the same below a folder a factory, or ``class/xxx.png``.

    ``size`` (height, width) resizes every image; without it all must have the size of the first. ``grey`` None keeps
    grey images grey, and makes colour ones of all as soon as one has colour.
    """
    folder = Path(root)
    if not folder.is_dir():
        raise InputFileError(f"{folder}: no such folder")
    files = all_images(folder)
    if not files:
        raise InputFileError(f"{folder}: no image ({', '.join(SUFFIXES)}) in it; put them there as {LAYOUTS}")
    depth = len(files[0].parts)
    odd = next((file for file in files if len(file.parts) != depth or depth not in (2, 3, 4)), None)
    if odd is not None:
        raise InputFileError(f"{folder / odd}: every image must lie at the same depth, as {LAYOUTS}")
    known = [{file.parts[place] for file in files} for place in range(depth - 1)]
    known[-1] |= set(classes or ())
    for place, kind in enumerate(("factory", "device", "class")[4 - depth :]):
        _check_folders(folder, "/".join("*" * (place + 1)), kind, known[place])
    # Two factories may call a camera the same.
    clients = ["-".join(file.parts[:-2]) or ONE_CLIENT for file in files]
    names = sorted(set(clients))
    factory_of = {client: file.parts[0] for client, file in zip(clients, files, strict=True)} if depth == 4 else {}
    numbers = {factory: number for number, factory in enumerate(sorted(set(factory_of.values())))}
    try:
        return from_arrays(
            _read_images([folder / file for file in files], size, grey),
            np.array([file.parts[-2] for file in files]),
            np.array(clients),
            classes=classes,
            client_names=names,
            attributes={"factory": [numbers[factory_of[client]] for client in names]} if factory_of else None,
            name=name or folder.resolve().name,
        )
    except DataError as error:
        raise InputFileError(f"{folder}: {error}") from None


def image_files(folder: Path, suffixes: Sequence[str] = SUFFIXES) -> list[Path]:
    """Return the images below a folder, relative to it and sorted; what begins with a dot does not count."""
    return sorted(
        path.relative_to(folder)
        for path in folder.rglob("*")
        if path.suffix.lower() in suffixes and not any(part.startswith(".") for part in path.relative_to(folder).parts)
    )


def all_images(folder: Path) -> list[Path]:
    """Return the same, or refuse pictures of kinds that cannot be read."""
    for foreign in image_files(folder, FOREIGN):
        raise InputFileError(
            f"{folder / foreign}: {foreign.suffix} images cannot be read; convert them ({', '.join(SUFFIXES)})"
        )
    return image_files(folder)


def size_from(text: str, option: str) -> tuple[int, int]:
    """Return the height and width that HEIGHTxWIDTH stands for; ``option`` is what an error begins with."""
    height, cross, width = text.partition("x")
    if not cross or not height.isdecimal() or not width.isdecimal() or not int(height) * int(width):
        raise DataError(f"{option}{text} is not possible; write HEIGHTxWIDTH, for example 28x28")
    return int(height), int(width)


def read_image(path: Path, size: tuple[int, int] | None = None, grey: bool | None = None) -> NDArray[np.uint8]:
    """Read one image, resized to (height, width) where that is given."""
    image: NDArray[np.uint8] = _read_images([path], size, grey)[0]
    return image


def _check_folders(root: Path, pattern: str, kind: str, known: set[str]) -> None:
    for folder in sorted(root.glob(pattern)):
        hidden = any(part.startswith(".") for part in folder.relative_to(root).parts)
        if folder.is_dir() and not hidden and folder.name not in known:
            raise InputFileError(f"{folder}: a {kind} without any image; remove the folder or put images into it")


def _read_images(files: list[Path], size: tuple[int, int] | None, grey: bool | None) -> NDArray[np.uint8]:
    from PIL import Image

    if grey is None:
        grey = all(map(_is_grey, files))  # up to the first one in colour
    pixels: NDArray[np.uint8] | None = None
    for row, file in enumerate(files):
        with _open_image(file) as picture:
            image = _eight_bits(picture).convert("L" if grey else "RGB")
        if pixels is None:
            height, width = size or (image.size[1], image.size[0])
            pixels = _room(len(files), height, width, () if grey else (3,))
        if size is not None and image.size != (size[1], size[0]):
            image = image.resize((size[1], size[0]), Image.Resampling.LANCZOS)
        array = np.asarray(image, dtype=np.uint8)
        if array.shape != pixels.shape[1:]:
            raise InputFileError(
                f"{file}: {image.size[0]}×{image.size[1]} pixels, the first image has "
                f"{pixels.shape[2]}×{pixels.shape[1]}; resize them all, for example with data.size=64 (size=(64, 64))"
            )
        pixels[row] = array
    assert pixels is not None
    return pixels


@contextmanager
def _open_image(file: Path) -> "Iterator[Picture]":
    """Open an image; what is wrong with it is one line, also where its pixels are read later, within the block."""
    from PIL import Image, UnidentifiedImageError

    try:
        with Image.open(file) as picture:
            yield picture
    except (UnidentifiedImageError, Image.DecompressionBombError, OSError, SyntaxError, ValueError) as error:
        raise InputFileError(f"{file}: not a readable image ({error})") from error


def _is_grey(file: Path) -> bool:
    with _open_image(file) as picture:  # reads no more than its head
        return picture.mode in ("1", "L", "LA") or picture.mode[0] in "IF"


def _room(count: int, height: int, width: int, channels: tuple[int, ...]) -> NDArray[np.uint8]:
    """Return an array for the pixels of images, unless the machine has no memory for them."""
    shape = (count, height, width, *channels)
    try:
        if prod(shape) > os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"):
            raise MemoryError
        return np.empty(shape, np.uint8)
    except MemoryError:
        raise InputFileError(
            f"{count} images of {width}×{height} pixels need {prod(shape) / 1e9:,.1f} GB, more than this machine has; "
            "make them smaller, for example with data.size=64 (size=(64, 64))"
        ) from None


def _eight_bits(picture: "Picture") -> "Picture":
    """Scale grey values of 16 bits, which Pillow's own conversion would cut off at 255."""
    from PIL import Image

    if picture.mode[0] not in "IF":
        return picture
    values = np.asarray(picture)
    if values.dtype.kind == "f" or values.min() < 0 or values.max() > 65535:
        raise ValueError(f"its pixels are {values.dtype} from {values.min():g} to {values.max():g}; save it as 8-bit")
    return Image.fromarray(np.round(values / 257).astype(np.uint8))  # 65535 = 257 · 255


def _attribute(where: str, given: ArrayLike, clients: int) -> NDArray[np.int32]:
    values = np.asarray(given)
    if values.shape != (clients,):
        raise DataError(f"{where} has {values.size} values for {clients} clients; give a list, one number each")
    whole = values.dtype.kind in "biuf" and np.all(np.isfinite(values)) and np.all(np.abs(values) < 2**31)
    if not whole or np.any(values != np.round(values)):
        raise DataError(f"{where} must be whole numbers; number what else it is (0, 1, 2, …)")
    return values.astype(np.int32)


def class_numbers(targets: Any, classes: Sequence[str] | None, name: str) -> tuple[Any, tuple[str, ...]]:
    """Return the class of each sample as a number, and the classes' names; targets as they are, where they are none.

    One whole number or one name a sample is a class, unless there are more numbers than any classifier has.
    """
    if classes is not None and (isinstance(classes, str) or not isinstance(classes, Iterable)):
        raise DataError(f"{name}: classes={classes!r}; give a list of names")
    kind = targets.dtype.kind if isinstance(targets, np.ndarray) and targets.ndim == 1 else "?"
    numbers = targets.astype(np.uint8) if kind == "b" else targets
    if kind in "UO":
        if kind == "O":
            lacking = [row for row, label in enumerate(targets) if is_missing(label)]
            if lacking:
                raise DataError(
                    f"{name}: sample {lacking[0]} has no label ({targets[lacking[0]]}); name it, or drop it"
                )
        found, numbers = np.unique(targets.astype(str), return_inverse=True)
        names = found.tolist() if classes is None else list(classes)
        unknown = sorted(set(found.tolist()) - set(names))
        if unknown:
            raise DataError(f"{name}: label {unknown[0]!r} is not among the {len(names)} classes")
        numbers = np.array([names.index(text) for text in found], np.int64)[numbers]
    elif classes is not None:
        names = list(classes)
    elif kind in "iub" and (not len(numbers) or (numbers.min() >= 0 and numbers.max() < MAX_CLASSES)):
        names = [str(index) for index in range(int(numbers.max()) + 1 if len(numbers) else 0)]
    else:
        return targets, ()
    check_names(name, "class", names)
    check_classes(name, numbers, names)
    return numbers.astype(np.uint8 if len(names) <= 256 else np.int32), tuple(names)


def is_missing(value: Any) -> bool:
    """Tell whether a table has nothing in this place: None, or what numpy and pandas write instead."""
    return not isinstance(value, str) and str(value) in ("None", "nan", "NaT", "<NA>")


def as_ids(given: Any, what: str, name: str) -> NDArray[Any]:
    """Return one name or one number a sample."""
    ids = np.asarray(given)
    if ids.ndim != 1 or ids.dtype.kind not in "iuUO":
        raise DataError(f"{name}: {what} must be one name or one number a sample")
    lacking = [row for row, one in enumerate(ids) if is_missing(one)] if ids.dtype.kind == "O" else []
    if lacking:
        raise DataError(f"{name}: {what} of sample {lacking[0]} is {ids[lacking[0]]}; name it, or drop the sample")
    return ids.astype(str) if ids.dtype.kind == "O" else ids


def group_by_name(ids: NDArray[Any]) -> tuple[NDArray[np.int64], tuple[str, ...]]:
    """Return the number of each id and the names in their order; whole numbers are written equally wide."""
    found, number = np.unique(ids, return_inverse=True)
    width = max((len(str(value)) for value in found), default=1)
    numeric = ids.dtype.kind != "U"
    return number.astype(np.int64), tuple(f"{int(value):0{width}d}" if numeric else str(value) for value in found)


def _client_names(
    clients: ArrayLike | None, client_names: Sequence[str] | None, samples: int, name: str
) -> tuple[NDArray[np.int64], tuple[str, ...]]:
    """Return the client number of each sample and the clients' names, in any order."""
    if clients is None:
        return np.zeros(samples, np.int64), (ONE_CLIENT,)
    given = as_ids(clients, "clients", name)
    if client_names is None:
        return group_by_name(given)
    if given.dtype.kind == "U":
        number_of = {text: index for index, text in enumerate(client_names)}
        unknown = sorted({str(text) for text in np.unique(given)} - set(number_of))
        if unknown:
            raise DataError(f"{name}: client {unknown[0]!r} is not among the {len(client_names)} client names")
        given = np.array([number_of[str(text)] for text in given], dtype=np.int64)
    elif len(given) and not 0 <= given.min() <= given.max() < len(client_names):
        raise DataError(f"{name}: a client number lies outside the {len(client_names)} client names")
    return given.astype(np.int64), tuple(client_names)
