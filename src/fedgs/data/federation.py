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
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from fedgs.data.arrays import Arrays
from fedgs.data.clients import Clients, clients_of
from fedgs.data.dataset import DataSet
from fedgs.data.indexing import IndexLists
from fedgs.data.partition import assign_factories
from fedgs.errors import DataError
from fedgs.rng import stream

if TYPE_CHECKING:
    from torch.utils.data import Dataset

ONE_BIN = ("all",)
"""The bins of a federation whose targets are no classes, until a task says what to balance."""


@dataclass(frozen=True)
class Federation:
    """Factories and devices over shared arrays, which nothing here writes to.

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

    @staticmethod
    def from_arrays(
        inputs: Arrays,
        targets: Arrays,
        *,
        devices: "Sequence[Any] | NDArray[Any]",
        factories: "int | Sequence[Any] | NDArray[Any] | Mapping[Any, Any] | None" = None,
        test: Any = 0.1,
        classes: Sequence[str] | None = None,
        name: str = "arrays",
        seed: int = 0,
    ) -> "Federation":
        """Make a federation of arrays; see :func:`fedgs.data.build.federation_from_arrays`."""
        from fedgs.data.build import federation_from_arrays

        return federation_from_arrays(
            inputs, targets, devices=devices, factories=factories, test=test, classes=classes, name=name, seed=seed
        )

    @staticmethod
    def from_datasets(
        datasets: "Mapping[str, Dataset[Any]]",
        *,
        factories: "int | Mapping[str, Any] | None" = None,
        test: "float | Mapping[str, Dataset[Any]]" = 0.1,
        classes: Sequence[str] | None = None,
        name: str = "datasets",
        seed: int = 0,
    ) -> "Federation":
        """Make a federation of one torch ``Dataset`` a device: :func:`fedgs.data.build.federation_from_datasets`."""
        from fedgs.data.build import federation_from_datasets

        return federation_from_datasets(datasets, factories=factories, test=test, classes=classes, name=name, seed=seed)

    @staticmethod
    def load(what: Any, factories: int | None = None, **options: Any) -> "Federation":
        """Load a data set by name or path and deal it out; see :func:`fedgs.data.build.load_federation`."""
        from fedgs.data.build import load_federation

        return load_federation(what, factories, **options)

    def balanced(self, labels: NDArray[np.integer], classes: Sequence[str]) -> "Federation":
        """Return the same federation with other bins: what selection balances."""
        return replace(self, labels=np.asarray(labels, np.int32), classes=tuple(classes))

    @property
    def factories(self) -> int:
        """The number of factories, M."""
        return len(self.factory_names)

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
        return "nobody"

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

    def p_real(self, include_test: bool = False) -> NDArray[np.float64]:
        """Return the pooled class distribution P_real, (classes,), which sums to 1."""
        return pooled_distribution(self.train_counts + self.test_counts if include_test else self.train_counts)

    def fingerprint(self) -> str:
        """Return 32 hexadecimal digits that stand for names, factories, samples and labels (not inputs)."""
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
    """Deal a data set out to factories.

    ``devices``: None takes all clients with at least ``min_samples`` samples, a number exactly that many of them
    (seeded shuffle), a list of names those. ``clients`` replaces the data set's own (a synthesiser's result).
    ``split``: ``own`` is the data set's test mask, ``draw`` a fresh split by ``train_fraction``, ``auto`` the
    mask where there is one. ``empty``: what to do with a device that has no train or no test sample.
    """
    if empty not in ("error", "drop"):
        raise DataError(f"no way {empty!r} to treat empty devices; choose one of error, drop")
    everyone = (clients_of(dataset) if clients is None else clients.check(dataset)).sorted()
    largest = everyone.samples.sizes.max(initial=0)
    if not len(everyone) or largest < min_samples:
        raise DataError(
            f"{dataset.name}: none of {len(everyone)} clients has at least {min_samples} samples (the largest has "
            f"{largest}); lower min_samples"
        )
    everyone = everyone.pick(np.flatnonzero(everyone.samples.sizes >= min_samples))
    train, test = _split(dataset, everyone, train_fraction, seed, split)
    lacking = (train.sizes == 0) | (test.sizes == 0)
    candidates = np.flatnonzero(~lacking) if empty == "drop" else np.arange(len(everyone))
    chosen = _choose(dataset.name, everyone, candidates, devices, min_samples, seed)
    if not len(chosen):
        raise DataError(f"{dataset.name}: no client is left that has both train and test samples")
    if lacking[chosen].any():
        device = int(chosen[np.argmax(lacking[chosen])])
        raise DataError(
            f"{dataset.name}: device {everyone.names[device]!r} has {train.sizes[device]} train and "
            f"{test.sizes[device]} test samples, it needs at least one of each; raise min_samples or use empty='drop'"
        )
    picked = everyone.pick(chosen)
    return assemble_federation(
        dataset, picked.names, train.pick(chosen), test.pick(chosen), picked.attributes, factories, partition, seed,
        attribute,
    )  # fmt: skip


def assemble_federation(
    dataset: DataSet,
    names: Sequence[str],
    train: IndexLists,
    test: IndexLists,
    attributes: Mapping[str, NDArray[np.int32]],
    factories: int | None,
    partition: str,
    seed: int,
    attribute: str | None = None,
) -> Federation:
    """Make the federation of devices whose samples are already split, dealing them to factories."""
    factory_of, factory_names = assign_factories(names, factories, partition, seed, attributes, attribute)
    order = np.array(sorted(range(len(names)), key=lambda row: (factory_of[row], names[row])), dtype=np.int64)
    return Federation(
        name=dataset.name,
        inputs=dataset.inputs,
        targets=dataset.targets,
        labels=dataset.labels.astype(np.int32) if dataset.classes else np.zeros(len(dataset), np.int32),
        classes=dataset.classes or ONE_BIN,
        device_names=tuple(names[row] for row in order),
        factory_names=factory_names,
        factory_of=factory_of[order],
        train=train.pick(order),
        test=test.pick(order),
        attributes={key: np.asarray(values)[order] for key, values in attributes.items()},
    )


def train_size(samples: int, fraction: float) -> int:
    """Return LEAF's number of train samples: int(fraction · n), at least 1 (100 → 90, 227 → 204)."""
    return min(samples, max(1, int(fraction * samples)))


def _split(dataset: DataSet, clients: Clients, fraction: float, seed: int, split: str) -> tuple[IndexLists, IndexLists]:
    if split not in ("auto", "own", "draw"):
        raise DataError(f"no split {split!r}; choose one of auto, own, draw")
    if split == "own" and dataset.test is None:
        raise DataError(f"{dataset.name}: split 'own' was asked for, but the data set brings no test mask; use 'draw'")
    if not 0 < fraction < 1:
        raise DataError(f"train_fraction is {fraction}; it must lie between 0 and 1")
    train, test = [], []
    for row, name in enumerate(clients.names):
        samples = clients.samples[row]
        if split == "draw" or dataset.test is None:
            is_test = np.ones(len(samples), bool)
            drawn = stream(seed, "split", name).permutation(len(samples))
            is_test[drawn[: train_size(len(samples), fraction)]] = False
        else:
            is_test = dataset.test[samples]
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
                "samples; ask for fewer devices or lower min_samples"
            )
        return np.sort(candidates[stream(seed, "devices").permutation(len(candidates))[:devices]])
    known = {clients.names[row]: row for row in candidates}
    for number, wanted in enumerate(devices):
        if wanted not in known:
            raise DataError(f"{name}: no device {wanted!r} with at least {min_samples} samples in this data set")
        if wanted in devices[:number]:
            raise DataError(f"{name}: device {wanted!r} is asked for twice")
    return np.array(sorted(known[wanted] for wanted in devices), dtype=np.int64)
