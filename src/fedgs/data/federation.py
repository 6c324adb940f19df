"""A federation: factories ▸ devices ▸ train and test samples, as index views into shared arrays.

The paper (Sec. III, Table I): M factories, factory m with K^m devices, device k with N^{m,k} samples of class
distribution P^{m,k}. The pooled distribution that FedGS steers every group of devices towards is (Sec. IV)

    P_real = Σ_m Σ_k N^{m,k} P^{m,k} / Σ_m Σ_k N^{m,k},

the label histogram of all devices divided by its sum: of their train samples here, of train and test samples
with ``include_test`` as in the released code (the difference is negligible).

Devices are numbered factory by factory and by name within a factory, so those of one factory are contiguous
in every (devices, …) array. The train/test split of a device is drawn from a stream named after the device:
it depends on the seed, the name and the device's own samples, and on nothing else.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from hashlib import blake2b
from inspect import signature
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from fedgs.data.arrays import Arrays, digest_of, is_whole
from fedgs.data.build import default_factories, read_datasets, user_factories, user_samples
from fedgs.data.dataset import ONE_BIN, Clients, DataSet, IndexLists, clients_of
from fedgs.data.partition import assign_factories
from fedgs.errors import DataError, suggestion
from fedgs.rng import stream

if TYPE_CHECKING:
    from torch.utils.data import Dataset

FEDERATION = "federation.json"
"""The file with a federation's facts, in the folder of a run or a park."""


@dataclass(frozen=True)
class Federation:
    """The devices of all factories and their samples, in shared arrays that are never written to.

    Make one with :meth:`from_arrays`, :meth:`from_datasets` or :meth:`load`.
    """

    name: str
    inputs: Arrays
    """(samples, …), the data set's own array or memory map, never copied; or a tuple or dict of such arrays."""
    targets: Arrays
    """(samples, …) what is to be predicted."""
    labels: NDArray[np.int32]
    """(samples,) the bin of each sample, which selection balances: its class, or what a task's ``balance`` says."""
    classes: tuple[str, ...]
    """The names of the bins."""
    device_names: tuple[str, ...]
    factory_names: tuple[str, ...]
    factory_of: NDArray[np.int32]
    """(devices,) the factory of each device, non-decreasing."""
    train: IndexLists
    test: IndexLists
    attributes: Mapping[str, NDArray[np.int32]] = field(default_factory=dict)
    """One number a device, by name, such as ``hsf``."""

    def __post_init__(self) -> None:
        devices = len(self.device_names)
        if not len(self.factory_of) == len(self.train) == len(self.test) == devices:
            raise DataError(f"{self.name}: names, factories, train and test lists differ in their number of devices")
        if len(set(self.device_names)) != devices:
            raise DataError(f"{self.name}: two devices have the same name")
        if np.any(np.diff(self.factory_of) < 0):
            raise DataError(f"{self.name}: the devices are not ordered by factory")
        if len(np.unique(self.factory_of)) != len(self.factory_names):
            raise DataError(f"{self.name}: a factory has no device; use fewer factories")
        taken = np.zeros(len(self.labels), bool)
        taken[self.train.flat] = True
        if taken[self.test.flat].any():
            raise DataError(f"{self.name}: a sample is both train and test data")

    def __len__(self) -> int:
        return len(self.device_names)

    @classmethod
    def from_arrays(
        cls,
        inputs: Arrays,
        targets: Arrays,
        *,
        devices: Sequence[Any] | NDArray[Any],
        factories: int | Sequence[Any] | NDArray[Any] | Mapping[Any, Any] | None = None,
        test: Any = 0.1,
        classes: Sequence[str] | None = None,
        name: str = "arrays",
        seed: int = 0,
    ) -> "Federation":
        """Make a federation of arrays with one row per sample. They are not copied, sorted or rounded.

        Args:
            inputs: (samples, …) of any shape and type, or a tuple or dict of such arrays. Memory maps are kept.
            targets: (samples, …). One integer or name per sample is a class; anything else is a value to predict.
                None: there is nothing to predict, as for :func:`fedgs.reconstruction`.
            devices: one id per sample.
            factories: one id per sample, a dict from device to factory, or a number of factories of equal size; by
                default ⌈√devices / 2⌉.
            test: the share of each device's samples that is kept for testing, a mask with True for test samples, or
                separate arrays: ``(inputs, targets, devices)``, or ``(inputs, targets)``, which are
                divided evenly among the devices.
            classes: the names of the classes; by default those that occur, or their numbers.
            name: of the federation, for messages and files.
            seed: of the split and of the factories.

        Examples:
            >>> import fedgs, numpy as np
            >>> signals, faults = np.random.rand(240, 2, 64).astype("float32"), np.arange(240) % 3
            >>> federation = fedgs.Federation.from_arrays(signals, faults, devices=np.arange(240) % 12, factories=3)
            >>> len(federation), federation.factories, federation.inputs.shape
            (12, 3, (240, 2, 64))
        """
        if isinstance(test, np.floating):
            test = float(test)
        if not is_whole(seed):
            raise DataError(f"{name}: seed={seed!r}; give a whole number")
        fields, device_of, names, mask = user_samples(inputs, targets, devices, test, classes, name)
        lists = IndexLists.grouped(device_of, len(names))
        train, tested = split_samples(lists, names, mask, 1 - test if mask is None else 0.0, seed)
        if not train.sizes.all():
            raise DataError(f"{name}: device {names[int(np.argmin(train.sizes))]!r} has no sample to train on")
        if not len(tested.flat):
            how = f"raise test={test}, or give arrays of their own" if mask is None else "test marks none"
            raise DataError(f"{name}: no sample is left to test on; {how}")
        assigned = user_factories(factories, device_of, names, name, seed)
        return assemble_federation({"name": name, **fields}, Clients(names, lists), train, tested, assigned)

    @classmethod
    def from_datasets(
        cls,
        datasets: "Mapping[str, Dataset[Any]]",
        *,
        factories: int | Mapping[str, Any] | None = None,
        test: "float | Mapping[str, Dataset[Any]]" = 0.1,
        classes: Sequence[str] | None = None,
        name: str = "datasets",
        seed: int = 0,
    ) -> "Federation":
        """Make a federation of map-style torch data sets, one per device.

        Every item is (input, target); an input may be a tuple or a dict of arrays. The items are read once and kept in
        memory, so a random transform is applied once: use ``Task(augment=…)`` for random augmentation.

        Args:
            datasets: the training data of each device, by its name.
            factories: a dict from device to factory, or a number of factories of equal size.
            test: the share of each data set that is kept for testing, or separate data sets by the devices' names.
            classes: the names of the classes.
            name: of the federation.
            seed: of the split and of the factories.

        Examples:
            >>> import fedgs, torch
            >>> from torch.utils.data import TensorDataset
            >>> presses = {f"press-{n}": TensorDataset(torch.rand(20, 4), torch.arange(20) % 2) for n in range(6)}
            >>> federation = fedgs.Federation.from_datasets(presses, factories=2)
            >>> sorted(federation.device_names)[:2], federation.factories
            (['press-0', 'press-1'], 2)
        """
        own_tests: Mapping[str, Any] = test if isinstance(test, Mapping) else {}
        inputs, targets, devices, mask = read_datasets(datasets, own_tests, name)
        return cls.from_arrays(
            inputs, targets, devices=devices, factories=factories, test=mask if isinstance(test, Mapping) else test,
            classes=classes, name=name, seed=seed,
        )  # fmt: skip

    @classmethod
    def load(
        cls,
        what: str | Path,
        factories: int | None = None,
        *,
        size: tuple[int, int] | None = None,
        grey: bool | None = None,
        **options: Any,
    ) -> "Federation":
        """Load a data set by name or path and make a federation of it.

        ``what`` is ``glyphs``, ``bearings``, ``femnist``, a set of the cache, a file or a folder
        (:func:`fedgs.data.load_dataset`, where ``size`` and ``grey`` are explained); ``options`` are those of
        :func:`fedgs.data.build_federation`. By default all clients take part, in ⌈√clients / 2⌉ factories.

        Examples:
            >>> import fedgs, numpy as np
            >>> rows = np.arange(90)
            >>> np.savez("presses.npz", inputs=np.random.rand(90, 4), targets=rows % 3, devices=rows % 9)
            >>> len(fedgs.Federation.load("presses.npz", factories=3))
            9
        """
        from fedgs.data.sources import load_dataset

        known = list(signature(build_federation).parameters)[2:]
        for option in options:
            if option not in known:
                raise DataError(f"Federation.load has no option {option!r}; {suggestion(option, known)}")
        dataset: DataSet = load_dataset(what, size=size, grey=grey)
        devices: Any = options.get("devices")
        number = int(devices) if is_whole(devices) else len(devices or dataset.client_names)
        if factories is None and options.get("partition") not in ("by-attribute", "one-per-value"):
            factories = default_factories(number)
        return build_federation(dataset, factories, **options)

    def balanced(self, labels: NDArray[np.integer], classes: Sequence[str]) -> "Federation":
        """Return the same federation with other bins for selection to balance."""
        return replace(self, labels=np.asarray(labels, np.int32), classes=tuple(classes))

    @property
    def factories(self) -> int:
        """The number of factories, M."""
        return len(self.factory_names)

    def for_tuning(self, share: float, seed: int = 0) -> "Federation":
        """Return the federation for tuning: a share of every device's train samples in the place of its test samples.

        What is chosen by its tests has not seen the real test samples.
        """
        train, validation = split_samples(self.train, self.device_names, None, 1 - share, seed, "validation")
        return replace(self, train=train, test=validation)

    def devices_of(self, factory: int) -> NDArray[np.int64]:
        """Return the devices of one factory: consecutive numbers."""
        if not 0 <= factory < self.factories:
            raise IndexError(f"factory {factory} of {self.factories}")
        first, last = np.searchsorted(self.factory_of, [factory, factory + 1])
        return np.arange(first, last)

    def client_of(self, row: int) -> str:
        """Return the name of the device that has a sample."""
        for lists in (self.train, self.test):
            places = np.flatnonzero(lists.flat == row)
            if len(places):
                return self.device_names[int(lists.rows[places[0]])]
        return "none"

    @cached_property
    def factory_sizes(self) -> NDArray[np.int64]:
        """(factories,) the number of devices of each."""
        return np.bincount(self.factory_of, minlength=self.factories)

    def train_indices(self, device: int) -> NDArray[np.int64]:
        """Return the train samples of a device, a view."""
        return self.train[device]

    def test_indices(self, device: int) -> NDArray[np.int64]:
        """Return the test samples of a device, a view."""
        return self.test[device]

    def train_labels(self, device: int) -> NDArray[np.int32]:
        """Return the labels of a device's train samples."""
        return self.labels[self.train[device]]

    def test_labels(self, device: int) -> NDArray[np.int32]:
        """Return the labels of a device's test samples."""
        return self.labels[self.test[device]]

    @cached_property
    def train_counts(self) -> NDArray[np.int64]:
        """(devices, classes) train samples."""
        return self.train.label_counts(self.labels, len(self.classes))

    @cached_property
    def test_counts(self) -> NDArray[np.int64]:
        """(devices, classes) test samples."""
        return self.test.label_counts(self.labels, len(self.classes))

    def facts(self) -> dict[str, Any]:
        """Return factories and devices as plain data, the content of ``federation.json``."""
        return {
            "factories": list(self.factory_names),
            "devices": [list(pair) for pair in zip(self.device_names, self.factory_of.tolist(), strict=True)],
            "classes": list(self.classes),
            "target": self.p_real().tolist(),
        }

    def p_real(self, include_test: bool = False) -> NDArray[np.float64]:
        """Return the pooled class distribution P_real, (classes,), which sums to 1."""
        return pooled_distribution(self.train_counts + self.test_counts if include_test else self.train_counts)

    @cached_property
    def contents(self) -> str:
        """A digest (32 hexadecimal digits) of inputs and targets, whosever they are."""
        return digest_of(self.inputs, self.targets)

    def fingerprint(self) -> str:
        """Return a digest (32 hexadecimal digits) of names, factories, samples and labels (not inputs)."""
        digest = blake2b(digest_size=16)
        digest.update("\x1f".join((*self.device_names, "", *self.factory_names, "", *self.classes)).encode())
        for lists in (self.train, self.test):
            digest.update(lists.offsets.astype("<i8").tobytes() + lists.flat.astype("<i8").tobytes())
        labels = self.labels.astype("u1" if len(self.classes) <= 256 else "<i4")
        digest.update(self.factory_of.astype("<i4").tobytes() + labels.tobytes())
        return digest.hexdigest()


def pooled_distribution(counts: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return P_real of (devices, classes) sample counts."""
    return np.asarray(counts.sum(axis=0) / counts.sum(), dtype=np.float64)


def build_federation(
    dataset: DataSet,
    factories: int | None = 10,
    partition: str = "balanced",
    train_fraction: float = 0.9,
    seed: int = 0,
    devices: int | Sequence[str] | None = None,
    min_samples: int = 0,
    *,
    attribute: str | None = None,
    clients: Clients | None = None,
    split: Literal["auto", "own", "draw"] = "auto",
    empty: Literal["error", "drop"] = "error",
) -> Federation:
    """Make a federation of a data set: clients become devices, and devices are assigned to factories.

    ``devices``: None takes all clients with at least ``min_samples`` samples, a number exactly that many of them
    (seeded shuffle), a list of names those. ``clients`` replaces the data set's own (:mod:`fedgs.data.label_skew`).
    ``split``: ``own`` is the data set's test mask, ``draw`` a fresh split by ``train_fraction``, ``auto`` the
    mask where there is one. ``empty``: what to do with a device that has no train or no test sample.
    """
    if empty not in ("error", "drop"):
        raise DataError(f"no way {empty!r} to treat empty devices; choose one of error, drop")
    if split not in ("auto", "own", "draw"):
        raise DataError(f"no split {split!r}; choose one of auto, own, draw")
    if split == "own" and dataset.test is None:
        raise DataError(f"{dataset.name}: split 'own' was asked for, but the data set brings no test mask; use 'draw'")
    if not 0 < train_fraction < 1:
        raise DataError(f"train_fraction is {train_fraction}; it must lie between 0 and 1")
    everyone = (clients_of(dataset) if clients is None else clients.check(dataset)).sorted()
    largest = everyone.samples.sizes.max(initial=0)
    if not len(everyone) or largest < min_samples:
        raise DataError(
            f"{dataset.name}: none of {len(everyone)} clients has at least {min_samples} samples (the largest has "
            f"{largest}); lower data.min_samples"
        )
    everyone = everyone.pick(np.flatnonzero(everyone.samples.sizes >= min_samples))
    mask = None if split == "draw" else dataset.test
    train, test = split_samples(everyone.samples, everyone.names, mask, train_fraction, seed)
    lacking = (train.sizes == 0) | (test.sizes == 0)
    candidates = np.flatnonzero(~lacking) if empty == "drop" else np.arange(len(everyone))
    chosen = _choose(dataset.name, everyone, candidates, devices, min_samples, seed)
    if not len(chosen):
        raise DataError(f"{dataset.name}: no client is left that has both train and test samples")
    if lacking[chosen].any():
        device = int(chosen[np.argmax(lacking[chosen])])
        raise DataError(
            f"{dataset.name}: device {everyone.names[device]!r} has {train.sizes[device]} train and "
            f"{test.sizes[device]} test samples, it needs at least one of each; raise data.min_samples or use "
            "empty='drop'"
        )
    picked = everyone.pick(chosen)
    assigned = assign_factories(picked.names, factories, partition, seed, picked.attributes, attribute)
    return assemble_federation(fields_of(dataset), picked, train.pick(chosen), test.pick(chosen), assigned)


def fields_of(dataset: DataSet) -> dict[str, Any]:
    """Return what a federation has of a data set: its name, arrays and classes."""
    return {
        "name": dataset.name,
        "inputs": dataset.inputs,
        "targets": dataset.targets,
        "labels": dataset.labels.astype(np.int32) if dataset.classes else np.zeros(len(dataset), np.int32),
        "classes": dataset.classes or ONE_BIN,
    }


def assemble_federation(
    fields: Mapping[str, Any],
    clients: Clients,
    train: IndexLists,
    test: IndexLists,
    assigned: tuple[NDArray[np.int32], tuple[str, ...]],
) -> Federation:
    """Make the federation of clients whose samples are split and which are assigned to factories."""
    factory_of, factory_names = assigned
    order = np.array(sorted(range(len(clients)), key=lambda row: (factory_of[row], clients.names[row])), np.int64)
    return Federation(
        **fields,
        device_names=tuple(clients.names[row] for row in order),
        factory_names=factory_names,
        factory_of=factory_of[order],
        train=train.pick(order),
        test=test.pick(order),
        attributes={key: np.asarray(values)[order] for key, values in clients.attributes.items()},
    )


def train_size(samples: int, fraction: float) -> int:
    """Return LEAF's number of train samples: int(fraction · n), at least 1 (100 → 90, 227 → 204)."""
    return min(samples, max(1, int(fraction * samples)))


def split_samples(
    lists: IndexLists,
    names: Sequence[str],
    mask: NDArray[np.bool_] | None,
    fraction: float,
    seed: int,
    purpose: str = "split",
) -> tuple[IndexLists, IndexLists]:
    """Return the train and the test samples of each device: by the mask, or drawn from the device's own stream."""
    train, test = [], []
    for row, name in enumerate(names):
        samples = lists[row]
        if mask is not None:
            is_test = mask[samples]
        else:
            is_test = np.ones(len(samples), bool)
            drawn = stream(seed, purpose, name).permutation(len(samples))
            is_test[drawn[: train_size(len(samples), fraction)]] = False
        train.append(samples[~is_test])
        test.append(samples[is_test])
    return IndexLists.of(train), IndexLists.of(test)


def _choose(
    name: str,
    clients: Clients,
    candidates: NDArray[np.int64],
    devices: int | Sequence[str] | None,
    min_samples: int,
    seed: int,
) -> NDArray[np.int64]:
    if devices is None:
        return candidates
    if isinstance(devices, str | bool | float):
        raise DataError(f"{name}: devices={devices!r}; give a number of devices or a list of names")
    if isinstance(devices, int | np.integer):
        if not 1 <= devices <= len(candidates):
            raise DataError(
                f"{name}: {devices} devices were asked for, {len(candidates)} clients have at least {min_samples} "
                "samples; lower federation.devices or data.min_samples"
            )
        return np.sort(candidates[stream(seed, "devices").permutation(len(candidates))[:devices]])
    known = {clients.names[row]: row for row in candidates}
    for number, wanted in enumerate(devices):
        if wanted not in known:
            raise DataError(f"{name}: no device {wanted!r} with at least {min_samples} samples in this data set")
        if wanted in devices[:number]:
            raise DataError(f"{name}: device {wanted!r} is asked for twice")
    return np.array(sorted(known[wanted] for wanted in devices), dtype=np.int64)
