"""Federations from arrays, from torch data sets, and by name: what ``Federation.from_arrays`` and its siblings do.

    Federation.from_arrays(signals, faults, devices=machine_ids, factories=plant_ids)
    Federation.from_datasets({"press-1": dataset, …}, factories={"press-1": "plant-a", …})
    Federation.load("bearings")

Arrays are not copied, sorted or rounded: a device is a list of row numbers. A memory map stays a memory map.
"""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from fedgs.data.arrays import Arrays, JoinedArray, find_not_finite, leaves, map_tree, rows_of
from fedgs.data.checks import is_whole
from fedgs.data.dataset import DataSet
from fedgs.data.federation import ONE_BIN, Federation, build_federation, train_size
from fedgs.data.indexing import IndexLists
from fedgs.data.partition import assign_factories
from fedgs.data.user_data import class_numbers, group_by_name
from fedgs.errors import DataError
from fedgs.rng import stream

if TYPE_CHECKING:
    from torch.utils.data import Dataset


def federation_from_arrays(
    inputs: Arrays,
    targets: Arrays,
    *,
    devices: Sequence[Any] | NDArray[Any],
    factories: int | Sequence[Any] | NDArray[Any] | Mapping[Any, Any] | None = None,
    test: Any = 0.1,
    classes: Sequence[str] | None = None,
    name: str = "arrays",
    seed: int = 0,
) -> Federation:
    """Make a federation of arrays with a row a sample.

    Args:
        inputs: (samples, …) of any shape and type, or a tuple or dict of such arrays.
        targets: (samples, …). One whole number or name a sample is its class; anything else is a value to predict.
        devices: one id a sample.
        factories: one id a sample, a dict from device to factory, or a number of factories to deal the devices out
            to; by default ⌈√devices / 2⌉.
        test: the share of each device's samples that is kept for testing, a mask with True for test samples, or
            arrays of their own: ``(inputs, targets, devices)``, or ``(inputs, targets)`` to be dealt out evenly.
        classes: the names of the classes; by default those that occur, or their numbers.
        name: of the federation, for messages and files.
        seed: of the split and of the dealing out.
    """
    inputs, targets = map_tree(_as_array, inputs), map_tree(_as_array, targets)
    ids = _ids(devices, rows_of(targets), "devices", name)
    mask = None
    if isinstance(test, tuple):
        inputs, targets, ids, mask = _with_test_arrays(inputs, targets, ids, test, name)
    elif not isinstance(test, float | int) or isinstance(test, bool):
        mask = np.asarray(test)
        if mask.shape != (len(ids),) or mask.dtype != np.bool_:
            raise DataError(f"{name}: test must be a share, {len(ids)} bools, or a tuple of arrays")
    elif not 0 < test < 1:
        raise DataError(f"{name}: test={test:g}; the share of test samples lies between 0 and 1")
    samples = len(ids)
    for kind, tree in (("inputs", inputs), ("targets", targets)):
        for key, array in leaves(tree):
            if len(array) != samples:
                raise DataError(f"{name}: {len(array)} {kind}{f' {key!r}' if key else ''} for {samples} samples")
    labels, class_names, targets = _labels(targets, classes, name)
    device_of, names = group_by_name(ids)
    _check_finite(name, inputs, targets, device_of, names)
    order = np.argsort(device_of, kind="stable")
    lists = IndexLists(order, np.searchsorted(device_of[order], np.arange(len(names) + 1)).astype(np.int64))
    train, tested = _split(lists, names, mask, 1 - test if mask is None else 0.0, seed)
    if not train.sizes.all():
        raise DataError(f"{name}: device {names[int(np.argmin(train.sizes))]!r} has no sample to train on")
    if not len(tested.flat):
        raise DataError(f"{name}: no sample is left to test on; raise test={test}, or give arrays of their own")
    factory_of, factory_names = _factories(factories, device_of, names, name, seed)
    ordered = np.array(sorted(range(len(names)), key=lambda row: (factory_of[row], names[row])), dtype=np.int64)
    return Federation(
        name=name,
        inputs=inputs,
        targets=targets,
        labels=labels,
        classes=class_names,
        device_names=tuple(names[row] for row in ordered),
        factory_names=factory_names,
        factory_of=factory_of[ordered],
        train=train.pick(ordered),
        test=tested.pick(ordered),
    )


def federation_from_datasets(
    datasets: "Mapping[str, Dataset[Any]]",
    *,
    factories: int | Mapping[str, Any] | None = None,
    test: "float | Mapping[str, Dataset[Any]]" = 0.1,
    classes: Sequence[str] | None = None,
    name: str = "datasets",
    seed: int = 0,
) -> Federation:
    """Make a federation of map-style torch data sets, one a device.

    Every item is (input, target); an input may be a tuple or a dict of arrays. The items are read once and kept in
    memory, so a random transform is drawn once: what should change from step to step is ``Task(augment=…)``.

    Args:
        datasets: the training data of each device, by its name.
        factories: a dict from device to factory, or a number of factories to deal the devices out to.
        test: the share of each data set that is kept for testing, or data sets of their own by the devices' names.
        classes: the names of the classes.
        name: of the federation.
        seed: of the split and of the dealing out.
    """
    if not datasets:
        raise DataError(f"{name}: no data set in it; give a dict from device to Dataset")
    own_tests = isinstance(test, Mapping)
    if isinstance(test, Mapping):
        unknown = [device for device in test if device not in datasets]
        if unknown:
            raise DataError(f"{name}: test data of {unknown[0]!r}, which is not among the devices")
    read = {str(device): _read_dataset(str(device), dataset) for device, dataset in datasets.items()}
    tests = {str(device): _read_dataset(str(device), dataset) for device, dataset in test.items()} if own_tests else {}  # type: ignore[union-attr]
    together = [*read.values(), *tests.values()]
    ids = np.repeat([*read, *tests], [rows_of(targets) for _, targets in together])
    mask = np.repeat([False] * len(read) + [True] * len(tests), [rows_of(targets) for _, targets in together])
    try:
        inputs, targets = (
            map_tree(lambda *parts: np.concatenate(parts), *trees) for trees in zip(*together, strict=True)
        )
    except ValueError as error:
        raise DataError(f"{name}: the data sets differ in the shape of their samples ({error})") from None
    return federation_from_arrays(
        inputs, targets, devices=ids, factories=factories, test=mask if own_tests else test, classes=classes,
        name=name, seed=seed,
    )  # fmt: skip


def load_federation(what: str | Path, factories: int | None = None, **options: Any) -> Federation:
    """Load a data set by name or path and deal it out.

    ``what`` is ``glyphs``, ``bearings``, ``femnist``, a set of the cache, a file or a folder
    (:func:`fedgs.data.load_dataset`); ``options`` are those of :func:`fedgs.data.build_federation`. By default all
    clients take part, in ⌈√clients / 2⌉ factories.
    """
    from fedgs.data.sources import load_dataset

    dataset: DataSet = load_dataset(what)
    taking_part = options.get("devices")
    number = int(str(taking_part)) if is_whole(taking_part) else len(taking_part or dataset.client_names)
    by_attribute = options.get("partition") == "by-attribute"
    if factories is None and not by_attribute:
        factories = default_factories(number)
    return build_federation(dataset, factories, **options)


def default_factories(devices: int) -> int:
    """Return how many factories devices are dealt out to where nobody says: ⌈√devices / 2⌉."""
    return math.ceil(math.sqrt(devices) / 2)


def _as_array(value: Any) -> Any:
    if hasattr(value, "detach"):  # a torch tensor
        return value.detach().cpu().numpy()
    return value if hasattr(value, "dtype") and hasattr(value, "shape") else np.asarray(value)


def _ids(devices: Any, samples: int, what: str, name: str) -> NDArray[Any]:
    ids = _as_array(devices)
    if getattr(ids, "shape", ()) != (samples,) or ids.dtype.kind not in "iuUO":
        raise DataError(f"{name}: {what} must be one name or number a sample, {samples} of them")
    found: NDArray[Any] = ids.astype(str) if ids.dtype.kind == "O" else ids
    return found


def _with_test_arrays(
    inputs: Arrays, targets: Arrays, ids: NDArray[Any], test: tuple[Any, ...], name: str
) -> tuple[Arrays, Arrays, NDArray[Any], NDArray[np.bool_]]:
    """Lay train and test arrays end to end; the ids and the mask of all of them."""
    if len(test) not in (2, 3):
        raise DataError(f"{name}: test arrays are (inputs, targets) or (inputs, targets, devices)")
    own_inputs, own_targets = (map_tree(_as_array, tree) for tree in test[:2])
    samples = rows_of(own_targets)
    if len(test) == 3:
        own_ids = _ids(test[2], samples, "the devices of test", name)
        unknown = np.setdiff1d(own_ids, ids)
        if len(unknown):
            raise DataError(f"{name}: test samples of {unknown[0]!r}, which has nothing to train on")
    else:
        everyone = np.unique(ids)
        own_ids = everyone[np.arange(samples) % len(everyone)]
    for key, (own, more) in {"inputs": (inputs, own_inputs), "targets": (targets, own_targets)}.items():
        for (_, mine), (_, theirs) in zip(leaves(own), leaves(more), strict=True):
            if mine.shape[1:] != theirs.shape[1:]:
                raise DataError(f"{name}: test {key} have shape {tuple(theirs.shape)}, train {key} {tuple(mine.shape)}")
    return (
        map_tree(lambda mine, theirs: JoinedArray([mine, theirs]), inputs, own_inputs),
        map_tree(lambda mine, theirs: np.concatenate([mine, theirs]), targets, own_targets),
        np.concatenate([ids, own_ids]),
        np.arange(len(ids) + samples) >= len(ids),
    )


def _labels(
    targets: Arrays, classes: Sequence[str] | None, name: str
) -> tuple[NDArray[np.int32], tuple[str, ...], Arrays]:
    """Return the bin of each sample, the bins' names, and the targets with names of classes as numbers."""
    found = class_numbers(targets, classes, name)
    if found is None:
        return np.zeros(rows_of(targets), np.int32), ONE_BIN, targets
    numbers, names = found
    return numbers.astype(np.int32), names, numbers.astype(np.int64)


def _check_finite(
    name: str, inputs: Arrays, targets: Arrays, device_of: NDArray[np.int64], devices: Sequence[str]
) -> None:
    for kind, tree in (("inputs", inputs), ("targets", targets)):
        for key, array in leaves(tree):
            row = find_not_finite(array)
            if row is not None:
                raise DataError(
                    f"{name}: {kind}{f' {key!r}' if key else ''} of sample {row} (device {devices[device_of[row]]!r}) "
                    "hold NaN or infinity; mend or drop the sample"
                )


def _split(
    lists: IndexLists, names: Sequence[str], mask: NDArray[np.bool_] | None, share: float, seed: int
) -> tuple[IndexLists, IndexLists]:
    train, test = [], []
    for row, device in enumerate(names):
        samples = lists[row]
        if mask is not None:
            is_test = mask[samples]
        else:
            is_test = np.ones(len(samples), bool)
            drawn = stream(seed, "split", device).permutation(len(samples))
            is_test[drawn[: train_size(len(samples), share)]] = False
        train.append(samples[~is_test])
        test.append(samples[is_test])
    return IndexLists.of(train), IndexLists.of(test)


def _factories(
    given: Any, device_of: NDArray[np.int64], names: Sequence[str], name: str, seed: int
) -> tuple[NDArray[np.int32], tuple[str, ...]]:
    """Return the factory of each device and the factories' names."""
    if given is None or is_whole(given):
        number = default_factories(len(names)) if given is None else int(given)
        return assign_factories(names, number, "balanced", seed, {})
    if isinstance(given, Mapping):
        by_device = {str(device): str(factory) for device, factory in given.items()}
        lacking = [device for device in names if _looked_up(by_device, device) is None]
        if lacking:
            raise DataError(f"{name}: factories does not say where device {lacking[0]!r} belongs")
        of_device = [str(_looked_up(by_device, device)) for device in names]
    else:
        ids = _as_array(given)
        if ids.shape != device_of.shape:
            raise DataError(f"{name}: factories has {ids.size} entries for {len(device_of)} samples; one id a sample")
        of_device = []
        for row, device in enumerate(names):
            found = np.unique(ids[device_of == row])
            if len(found) > 1:
                raise DataError(f"{name}: device {device!r} has samples in factories {found[0]!r} and {found[1]!r}")
            of_device.append(str(found[0]))
    factory_names = tuple(sorted(set(of_device), key=lambda text: (len(text), text)))
    number_of = {text: number for number, text in enumerate(factory_names)}
    return np.array([number_of[text] for text in of_device], np.int32), factory_names


def _looked_up(by_device: Mapping[str, str], device: str) -> str | None:
    """Return the factory of a device; numbers are known with and without leading zeros."""
    if device in by_device:
        return by_device[device]
    return by_device.get(str(int(device))) if device.isdecimal() else None


def _read_dataset(device: str, dataset: Any) -> tuple[Arrays, Arrays]:
    """Return the inputs and targets of all items."""
    try:
        length = len(dataset)
    except TypeError:
        raise DataError(f"device {device!r}: a data set with a length is needed, not an endless one") from None
    if not length:
        raise DataError(f"device {device!r}: its data set is empty")
    items = []
    for row in range(length):
        item = dataset[row]
        if not isinstance(item, tuple | list) or len(item) != 2:
            raise DataError(f"device {device!r}: item {row} is a {type(item).__name__}; (input, target) is expected")
        items.append(tuple(map_tree(lambda value: np.asarray(_as_array(value)), part) for part in item))
    try:
        inputs, targets = (map_tree(lambda *parts: np.stack(parts), *trees) for trees in zip(*items, strict=True))
    except ValueError:
        row = next(row for row, item in enumerate(items) if _shapes(item) != _shapes(items[0]))
        raise DataError(
            f"device {device!r}: item {row} has shapes {_shapes(items[row])}, the first {_shapes(items[0])}; "
            "all samples must be alike"
        ) from None
    return inputs, targets


def _shapes(item: Any) -> list[Any]:
    return [array.shape for part in item for _, array in leaves(part)]
