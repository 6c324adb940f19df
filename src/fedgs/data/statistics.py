"""How different devices are: divergence of class distributions, classes and samples per device.

For a device (or factory) with class distribution p and the pooled distribution P_real,

    total variation  TV = ½ Σ_c |p_c − P_c|, between 0 and 1 (the share of samples that would have to change class),
    L2               ‖p − P‖₂, the paper's measure of divergence (Sec. V and VII-B).

What selection can gain, before any run: a team of L of a factory's K devices, each with n samples of its own
distribution p_k, has if it is drawn at random (p̄ = Σ p_k/K, the finite-population variance of a mean)

    E‖p_team − P‖² = ‖p̄ − P‖² + (K − L)/(K − 1)/L · mean_k ‖p_k − p̄‖² + mean_k (1 − ‖p_k‖²)/(L·n)

and L·n samples of P itself have (1 − ‖P‖²)/(L·n).
"""

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedgs.data.dataset import DataSet, clients_of
from fedgs.data.federation import Federation, pooled_distribution
from fedgs.errors import DataError


@dataclass(frozen=True)
class Quantiles:
    """Where a handful of numbers lie."""

    minimum: float
    lower_quartile: float
    median: float
    mean: float
    upper_quartile: float
    maximum: float

    @classmethod
    def of(cls, values: NDArray[Any]) -> "Quantiles":
        """Summarise ``values``; those that are NaN do not count."""
        numbers = np.asarray(values, dtype=np.float64)
        numbers = numbers[~np.isnan(numbers)]
        if not len(numbers):
            return cls(*[float("nan")] * 6)
        low, first, middle, third, high = np.quantile(numbers, [0, 0.25, 0.5, 0.75, 1])
        return cls(float(low), float(first), float(middle), float(numbers.mean()), float(third), float(high))


@dataclass(frozen=True)
class Heterogeneity:
    """The statistics of a federation, or of a data set's clients (then without factories and test samples)."""

    name: str
    counted: str
    """Which samples were counted: "train samples" or "samples"."""
    samples: int
    classes: tuple[str, ...]
    class_counts: NDArray[np.int64]
    """(classes,) samples of each class."""
    p_real: NDArray[np.float64]
    device_names: tuple[str, ...]
    device_samples: NDArray[np.int64]
    device_classes: NDArray[np.int64]
    """(devices,) how many different classes a device has."""
    device_tv: NDArray[np.float64]
    device_l2: NDArray[np.float64]
    factory_names: tuple[str, ...] = ()
    factory_devices: NDArray[np.int64] | None = None
    factory_tv: NDArray[np.float64] | None = None
    factory_l2: NDArray[np.float64] | None = None

    def summary(self) -> dict[str, Quantiles]:
        """Return the quantiles of each statistic, by its title."""
        rows = {
            f"{self.counted} per device": self.device_samples,
            "classes per device": self.device_classes,
            "TV divergence of devices": self.device_tv,
            "L2 divergence of devices": self.device_l2,
        }
        if self.factory_tv is not None and self.factory_l2 is not None and self.factory_devices is not None:
            rows["devices per factory"] = self.factory_devices
            rows["TV divergence of factories"] = self.factory_tv
            rows["L2 divergence of factories"] = self.factory_l2
        return {title: Quantiles.of(values) for title, values in rows.items()}


def divergences(
    counts: NDArray[np.int64], target: NDArray[np.float64]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return total variation and L2 distance of each row of ``counts`` (rows, classes); NaN for an empty row."""
    totals = counts.sum(axis=1, keepdims=True, dtype=np.float64)
    shares = np.divide(counts, totals, out=np.full(counts.shape, np.nan), where=totals > 0)
    difference = shares - target
    return np.abs(difference).sum(axis=1) / 2, np.sqrt((difference**2).sum(axis=1))


def heterogeneity(source: DataSet | Federation, include_test: bool = False) -> Heterogeneity:
    """Measure a federation's train samples (with ``include_test`` all), or all samples of a data set's clients."""
    factories: dict[str, Any] = {}
    if isinstance(source, Federation):
        counts = source.train_counts + source.test_counts if include_test else source.train_counts
    else:
        counts = clients_of(source).samples.label_counts(source.labels, len(source.classes))
    if not counts.any():
        raise DataError(f"{source.name}: no sample in it, so there is nothing to measure")
    p_real = pooled_distribution(counts)
    tv, l2 = divergences(counts, p_real)
    if isinstance(source, Federation):
        of_factory = np.zeros((source.factories, len(source.classes)), np.int64)
        np.add.at(of_factory, source.factory_of, counts)
        factory_tv, factory_l2 = divergences(of_factory, p_real)
        factories = {
            "factory_names": source.factory_names,
            "factory_devices": source.factory_sizes,
            "factory_tv": factory_tv,
            "factory_l2": factory_l2,
        }
    return Heterogeneity(
        name=source.name,
        counted="train samples" if factories and not include_test else "samples",
        samples=int(counts.sum()),
        classes=source.classes,
        class_counts=counts.sum(axis=0),
        p_real=p_real,
        device_names=source.device_names if isinstance(source, Federation) else source.client_names,
        device_samples=counts.sum(axis=1),
        device_classes=(counts > 0).sum(axis=1),
        device_tv=tv,
        device_l2=l2,
        **factories,
    )


class TeamDivergence(NamedTuple):
    """How far from P_real the samples of one iteration are: root mean squares, means over factories."""

    random: float
    """Of a team at random."""
    factory: float
    """Of all samples of a factory: what no even use of its devices can mend."""
    independent: float
    """Of as many samples of P_real itself: what is left without any skew."""


def team_divergence(federation: Federation, pick: int, batch_size: int) -> TeamDivergence:
    """Return how far from P_real teams are. Devices without a sample do not count."""
    target = federation.p_real()
    random, whole = [], []
    for factory in range(federation.factories):
        counts = federation.train_counts[federation.factory_of == factory].astype(np.float64)
        counts = counts[counts.sum(axis=1) > 0]
        devices, team = len(counts), min(pick, len(counts))
        if not devices:
            continue
        shares = counts / counts.sum(axis=1, keepdims=True)
        middle = shares.mean(axis=0)
        spread = ((shares - middle) ** 2).sum(axis=1).mean() / team
        left_out = (devices - team) / (devices - 1) if devices > 1 else 0.0
        noise = (1 - (shares**2).sum(axis=1)).mean() / (team * batch_size)
        off = ((middle - target) ** 2).sum()
        random.append(np.sqrt(off + left_out * spread + noise))
        whole.append(np.sqrt(off))
    independent = np.sqrt((1 - (target**2).sum()) / (pick * batch_size))
    return TeamDivergence(float(np.mean(random)), float(np.mean(whole)), float(independent))
