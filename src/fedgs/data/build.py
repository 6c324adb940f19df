"""What ``Federation.from_arrays`` and ``from_datasets`` are given: checked, and brought into one form.

Arrays are not copied, sorted or rounded: a device is a list of row numbers. A memory map stays a memory map.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedgs.data.arrays import Arrays, JoinedArray, as_arrays, form_of, is_whole, leaves, map_tree, rows_of
from fedgs.data.dataset import ONE_BIN, check_finite, check_rows
from fedgs.data.partition import assign_factories
from fedgs.data.user_data import as_ids, class_numbers, group_by_name
from fedgs.errors import DataError


def user_samples(
    inputs: Arrays, targets: Arrays, devices: Any, test: Any, classes: Sequence[str] | None, name: str
) -> tuple[dict[str, Any], NDArray[np.int64], tuple[str, ...], NDArray[np.bool_] | None]:
    """Check what ``Federation.from_arrays`` was given.

    Returns:
        the federation's ``inputs``, ``targets``, ``labels`` and ``classes``; the device of each sample; the devices'
        names; the test mask, or None where a share of each device's samples is to be drawn.
    """
    inputs, targets = _as_samples(inputs, targets, name)
    ids = as_ids(as_arrays(devices, f"{name}: devices"), "devices", name)
    check_rows(name, inputs=inputs, targets=targets, devices=ids)
    if not len(ids):
        raise DataError(f"{name}: the arrays hold no sample")
    own, mask = len(ids), None
    if isinstance(test, tuple):
        inputs, targets, ids, mask = _with_test_arrays(inputs, targets, ids, test, name)
    elif not isinstance(test, float | int) or isinstance(test, bool):
        try:
            given = np.asarray(test)
        except ValueError:  # a list of arrays
            given = np.empty(0)
        mask = given
        if mask.shape != (len(ids),) or mask.dtype != np.bool_:
            raise DataError(f"{name}: test must be a share, {len(ids)} bools, or a tuple of arrays")
    elif not 0 < test < 1:
        raise DataError(f"{name}: test={test:g}; the share of test samples lies between 0 and 1")
    numbers, class_names = class_numbers(targets, classes, name)
    targets = numbers.astype(np.int64) if class_names else targets
    labels = numbers.astype(np.int32) if class_names else np.zeros(len(ids), np.int32)
    device_of, names = group_by_name(ids)

    def called(row: int) -> str:
        number = f"sample {row}" if row < own else f"test sample {row - own}"
        return f"{number} (device {names[device_of[row]]!r})"

    check_finite(name, called, inputs=inputs, targets=targets)
    fields = {"inputs": inputs, "targets": targets, "labels": labels, "classes": class_names or ONE_BIN}
    return fields, device_of, names, mask


def _with_test_arrays(
    inputs: Arrays, targets: Arrays, ids: NDArray[Any], test: tuple[Any, ...], name: str
) -> tuple[Arrays, Arrays, NDArray[Any], NDArray[np.bool_]]:
    """Lay train and test arrays end to end; the ids and the mask of all of them."""
    if len(test) not in (2, 3):
        raise DataError(f"{name}: test arrays are (inputs, targets) or (inputs, targets, devices)")
    own_inputs, own_targets = _as_samples(test[0], test[1], f"{name}: test")
    samples = rows_of(own_targets)
    everyone = np.unique(ids)
    own_ids = everyone[np.arange(samples) % len(everyone)]
    if len(test) == 3:
        own_ids = as_ids(as_arrays(test[2], f"{name}: the devices of test"), "the devices of test", name)
        unknown = np.setdiff1d(own_ids, ids)
        if len(unknown):
            raise DataError(f"{name}: test samples of {unknown[0].item()!r}, which has nothing to train on")
    check_rows(f"{name}: test", inputs=own_inputs, targets=own_targets, devices=own_ids)
    for key, own, more in (("inputs", inputs, own_inputs), ("targets", targets, own_targets)):
        if form_of(own) != form_of(more):
            raise DataError(f"{name}: test {key} are {form_of(more)}, train {key} {form_of(own)}")
        named = dict(leaves(more))
        for part, mine in leaves(own):
            if mine.shape[1:] != named[part].shape[1:]:
                shapes = f"{tuple(named[part].shape)}, train {key} {tuple(mine.shape)}"
                raise DataError(f"{name}: test {key} have shape {shapes}")
    return (
        map_tree(lambda mine, theirs: JoinedArray([mine, theirs]), inputs, own_inputs),
        map_tree(lambda mine, theirs: np.concatenate([mine, theirs]), targets, own_targets),
        np.concatenate([ids, own_ids]),
        np.arange(len(ids) + samples) >= len(ids),
    )


def _as_samples(inputs: Any, targets: Any, name: str) -> tuple[Arrays, Arrays]:
    """Return inputs and targets as arrays; targets in numpy, where their classes are looked for.

    Where there is nothing to predict, every sample has a zero.
    """
    found = as_arrays(inputs, f"{name}: inputs")
    if targets is None:
        return found, np.zeros(rows_of(found), np.float32)
    return found, map_tree(np.asarray, as_arrays(targets, f"{name}: targets"))


def default_factories(devices: int) -> int:
    """Return how many factories so many devices are assigned to by default: ⌈√devices / 2⌉."""
    return math.ceil(math.sqrt(devices) / 2)


def user_factories(
    given: Any, device_of: NDArray[np.int64], names: Sequence[str], name: str, seed: int
) -> tuple[NDArray[np.int32], tuple[str, ...]]:
    """Return the factory of each device and the factories' names."""
    if given is None or is_whole(given):
        number = default_factories(len(names)) if given is None else int(given)
        return assign_factories(names, number, "balanced", seed, {})
    if isinstance(given, Mapping):
        # Numbers are known with and without leading zeros.
        plain = {device: str(int(device)) if device.isdecimal() else device for device in names}
        by_device = {str(device): str(factory) for device, factory in given.items()}
        lacking = [device for device in names if device not in by_device and plain[device] not in by_device]
        if lacking:
            raise DataError(f"{name}: factories does not say where device {lacking[0]!r} belongs")
        of_device = [by_device[device if device in by_device else plain[device]] for device in names]
    else:
        ids = np.asarray(as_arrays(given, f"{name}: factories"))
        if ids.dtype == object:
            ids = as_ids(ids, "factories", name)
        if ids.shape != device_of.shape:
            raise DataError(f"{name}: factories has {ids.size} entries for {len(device_of)} samples; one id a sample")
        of_device = []
        for row, device in enumerate(names):
            found = np.unique(ids[device_of == row])
            if len(found) > 1:
                one, other = found[:2].tolist()
                raise DataError(f"{name}: device {device!r} has samples in factories {one!r} and {other!r}")
            of_device.append(str(found[0]))
    factory_names = tuple(sorted(set(of_device), key=lambda text: (len(text), text)))
    return np.array([factory_names.index(text) for text in of_device], np.int32), factory_names


def read_datasets(
    datasets: Mapping[str, Any], tests: Mapping[str, Any], name: str
) -> tuple[Arrays, Arrays, NDArray[Any], NDArray[np.bool_]]:
    """Return inputs, targets, devices and test mask of all items of these torch data sets."""
    if not isinstance(datasets, Mapping) or not datasets:
        what = "no data set in it" if isinstance(datasets, Mapping) else f"a {type(datasets).__name__} of data sets"
        raise DataError(f"{name}: {what}; give a dict from device to Dataset")
    unknown = [device for device in tests if device not in datasets]
    if unknown:
        raise DataError(f"{name}: test data of {unknown[0]!r}, which is not among the devices")
    devices = [str(device) for device in (*datasets, *tests)]
    read = [_read_dataset(f"device {device!r}", dataset) for device, dataset in datasets.items()]
    read += [_read_dataset(f"test data of device {device!r}", dataset) for device, dataset in tests.items()]
    sizes = [rows_of(targets) for _, targets in read]
    forms = [" and ".join(map(form_of, part)) for part in read]
    odd = next((place for place, form in enumerate(forms) if form != forms[0]), None)
    if odd is not None:
        raise DataError(f"{name}: samples of device {devices[odd]!r} are {forms[odd]}, those of the first {forms[0]}")
    try:
        inputs, targets = (map_tree(lambda *parts: np.concatenate(parts), *trees) for trees in zip(*read, strict=True))
    except ValueError as error:
        raise DataError(f"{name}: the data sets differ in the shape of their samples ({error})") from None
    return inputs, targets, np.repeat(devices, sizes), np.repeat(np.arange(len(devices)) >= len(datasets), sizes)


def _read_dataset(name: str, dataset: Any) -> tuple[Arrays, Arrays]:
    """Return the inputs and targets of all items."""
    try:
        length = len(dataset)
    except TypeError:
        raise DataError(f"{name}: {type(dataset).__name__} has no length; give a map-style Dataset") from None
    if not length:
        raise DataError(f"{name}: its data set is empty")
    items = []
    for row in range(length):
        try:
            item = dataset[row]
        except Exception as error:  # whatever the user's own class may raise
            raise DataError(f"{name}: item {row} cannot be read ({type(error).__name__}: {error})") from error
        if not isinstance(item, tuple | list) or len(item) != 2:
            raise DataError(f"{name}: item {row} is a {type(item).__name__}; (input, target) is expected")
        items.append(tuple(map_tree(np.asarray, as_arrays(part, f"{name}: item {row}")) for part in item))
    forms = [[(form_of(part), [array.shape for _, array in leaves(part)]) for part in item] for item in items]
    odd = next((row for row in range(length) if forms[row] != forms[0]), None)
    if odd is not None:
        one, first = (", ".join(f"{form} {shapes}" for form, shapes in forms[row]) for row in (odd, 0))
        raise DataError(f"{name}: item {odd} has shapes {one}, the first {first}; all samples must be alike")
    inputs, targets = (map_tree(lambda *parts: np.stack(parts), *trees) for trees in zip(*items, strict=True))
    check_finite(name, lambda row: f"item {row}", inputs=inputs, targets=targets)
    return inputs, targets
