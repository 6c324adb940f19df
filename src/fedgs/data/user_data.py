"""User data as a data set: arrays in memory, an .npz file, or a folder of images.

``from_folder`` knows two layouts, told apart by depth: ``root/device/class/xxx.png`` (the devices are yours) and
``root/class/xxx.png`` (one client named "all", to be split by :mod:`fedgs.data.label_skew`).
An .npz holds ``inputs`` (or ``images``) and ``targets`` (or ``labels``) and, if known, ``clients`` (or ``devices``),
``client_names``, ``classes``, ``test``, ``name`` and ``attribute_<name>``. Several inputs are ``inputs_<name>``.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedgs.data.arrays import Arrays, map_tree, rows_of, take
from fedgs.data.dataset import DataSet
from fedgs.data.npz import ATTRIBUTE, texts, tree_in
from fedgs.errors import DataError, InputFileError
from fedgs.files import read_npz

if TYPE_CHECKING:
    from PIL.Image import Image as Picture

SUFFIXES = (".png", ".jpg", ".jpeg", ".bmp")
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
    arrays = map_tree(np.asanyarray, inputs)
    values = map_tree(np.asarray, targets)
    found = class_numbers(values, classes, name)
    values, class_names = (values, ()) if found is None else found
    samples = rows_of(values)
    client, names = _client_names(clients, client_names, samples, name)
    rank = np.empty(len(names), np.int64)
    by_name = sorted(range(len(names)), key=names.__getitem__)
    rank[by_name] = np.arange(len(names))
    client = rank[client]
    mask = None if test is None else np.atleast_1d(np.asarray(test, dtype=bool))
    if not rows_of(arrays) == samples == len(client):
        raise DataError(
            f"{name}: {rows_of(arrays)} inputs, {samples} targets, {len(client)} clients; they must be as many"
        )
    if mask is not None and mask.shape != (samples,):
        raise DataError(f"{name}: the test mask has shape {mask.shape} for {samples} samples; one entry each")
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


def from_npz(path: str | Path, name: str | None = None) -> DataSet:
    """Read an .npz file of arrays."""
    file = Path(path)
    arrays = read_npz(file)
    inputs, targets = (tree_in(arrays, new, old) for new, old in (("inputs", "images"), ("targets", "labels")))
    for key, found in (("inputs' or 'images", inputs), ("targets' or 'labels", targets)):
        if found is None:
            raise InputFileError(f"{file}: no array '{key}'; it holds {', '.join(sorted(arrays)) or 'nothing'}")
    named = {key: texts(file, arrays, key) for key in ("classes", "client_names") if key in arrays}
    try:
        return from_arrays(
            inputs,
            targets,
            next((arrays[key] for key in ("clients", "devices", "owners") if key in arrays), None),
            classes=named.get("classes"),
            client_names=named.get("client_names"),
            attributes={key.removeprefix(ATTRIBUTE): arrays[key] for key in arrays if key.startswith(ATTRIBUTE)},
            test=arrays.get("test"),
            name=name or str(arrays.get("name", file.stem)),
        )
    except DataError as error:
        raise InputFileError(f"{file}: {error}") from None


def from_folder(
    root: str | Path,
    *,
    size: tuple[int, int] | None = None,
    grey: bool | None = None,
    classes: Sequence[str] | None = None,
    name: str | None = None,
) -> DataSet:
    """Read a folder of images, ``device/class/xxx.png`` or ``class/xxx.png``.

    ``size`` (height, width) resizes every image; without it all must have the size of the first. ``grey`` None keeps
    grey images grey and takes colour as soon as the first image has it.
    """
    folder = Path(root)
    if not folder.is_dir():
        raise InputFileError(f"{folder}: no such folder")
    files = image_files(folder)
    if not files:
        raise InputFileError(f"{folder}: no image ({', '.join(SUFFIXES)}) in it")
    depth = len(files[0].parts)
    for file in files:
        if len(file.parts) != depth or depth not in (2, 3):
            raise InputFileError(
                f"{folder / file}: every image must lie at device/class/name or every one at class/name"
            )
    found = {file.parts[-2] for file in files}
    if depth == 3:
        _check_folders(folder, "*", "device", {file.parts[0] for file in files})
    _check_folders(folder, "*/*" if depth == 3 else "*", "class", found | set(classes or ()))
    try:
        return from_arrays(
            _read_images([folder / file for file in files], size, grey),
            np.array([file.parts[-2] for file in files]),
            np.array([file.parts[0] if depth == 3 else ONE_CLIENT for file in files]),
            classes=classes,
            name=name or folder.name,
        )
    except DataError as error:
        raise InputFileError(f"{folder}: {error}") from None


def image_files(folder: Path) -> list[Path]:
    """Return the images below a folder, relative to it and sorted; what begins with a dot does not count."""
    return sorted(
        path.relative_to(folder)
        for path in folder.rglob("*")
        if path.suffix.lower() in SUFFIXES and not any(part.startswith(".") for part in path.relative_to(folder).parts)
    )


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
    from PIL import Image, UnidentifiedImageError

    pixels: NDArray[np.uint8] | None = None
    for row, file in enumerate(files):
        try:
            with Image.open(file) as picture:
                if grey is None:
                    grey = picture.mode in ("1", "L", "LA") or picture.mode[0] in "IF"
                image = _eight_bits(picture).convert("L" if grey else "RGB")
        except (UnidentifiedImageError, OSError, SyntaxError, ValueError) as error:
            raise InputFileError(f"{file}: not a readable image ({error})") from error
        if size is not None and image.size != (size[1], size[0]):
            image = image.resize((size[1], size[0]), Image.Resampling.LANCZOS)
        array = np.asarray(image, dtype=np.uint8)
        if pixels is None:
            pixels = np.empty((len(files), *array.shape), np.uint8)
        if array.shape != pixels.shape[1:]:
            raise InputFileError(
                f"{file}: {image.size[0]}×{image.size[1]} pixels, the first image has "
                f"{pixels.shape[2]}×{pixels.shape[1]}; give a size to resize them all"
            )
        pixels[row] = array
    assert pixels is not None
    return pixels


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


def class_numbers(
    targets: Any, classes: Sequence[str] | None, name: str
) -> tuple[NDArray[Any], tuple[str, ...]] | None:
    """Return the class of each sample as a number, and the classes' names; None where targets are no classes.

    One whole number or one name a sample is a class, unless there are more numbers than any classifier has.
    """
    if not isinstance(targets, np.ndarray) or targets.ndim != 1 or targets.dtype.kind not in "iuUbO":
        if classes is not None:
            raise DataError(f"{name}: labels must be one class number or class name a sample")
        return None
    if targets.dtype.kind == "O":
        targets = targets.astype(str)
    if targets.dtype.kind == "b":
        targets = targets.astype(np.uint8)
    if targets.dtype.kind == "U":
        found = [str(text) for text in np.unique(targets)]
        class_names = tuple(found if classes is None else classes)
        unknown = sorted(set(found) - set(class_names))
        if unknown:
            raise DataError(f"{name}: label {unknown[0]!r} is not among the {len(class_names)} classes")
        number = {text: index for index, text in enumerate(class_names)}
        targets = np.array([number[str(text)] for text in targets], dtype=np.int64)
    elif len(targets) and targets.min() < 0:
        if classes is None:
            return None
        raise DataError(f"{name}: label {targets.min()} is negative; classes are numbered from 0")
    elif classes is None:
        highest = int(targets.max()) if len(targets) else -1
        if highest >= MAX_CLASSES:
            return None
        class_names = tuple(str(index) for index in range(highest + 1))
    else:
        class_names = tuple(classes)
    if len(targets) and targets.max() >= len(class_names):
        raise DataError(f"{name}: label {targets.max()} has no class; there are {len(class_names)} classes")
    return targets.astype(np.uint8 if len(class_names) <= 256 else np.int32), class_names


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
    given = np.asarray(clients)
    if given.ndim != 1 or given.dtype.kind not in "iuU":
        raise DataError(f"{name}: clients must be one name or one number a sample")
    if client_names is not None and given.dtype.kind == "U":
        number_of = {text: index for index, text in enumerate(client_names)}
        unknown = sorted({str(text) for text in np.unique(given)} - set(number_of))
        if unknown:
            raise DataError(f"{name}: client {unknown[0]!r} is not among the {len(client_names)} client names")
        return np.array([number_of[str(text)] for text in given], dtype=np.int64), tuple(client_names)
    if client_names is not None:
        if len(given) and not 0 <= given.min() <= given.max() < len(client_names):
            raise DataError(f"{name}: a client number lies outside the {len(client_names)} client names")
        return given.astype(np.int64), tuple(client_names)
    return group_by_name(given)
