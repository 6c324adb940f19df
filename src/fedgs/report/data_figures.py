"""What a data set or federation looks like: tables, and pictures as PNG files.

:func:`inspect` is what ``fedgs data inspect`` shows: a contact sheet (a row per device, a column per class), the class
histogram, samples per device, and how far the class distributions of devices and factories are from P_real.
"""

import csv
import io
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from fedgs.data.dataset import DataSet
from fedgs.data.federation import Federation
from fedgs.data.indexing import IndexLists
from fedgs.data.owners import owners_of
from fedgs.data.statistics import Heterogeneity, heterogeneity
from fedgs.files import make_folder, write_bytes

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Cell = str | int | float
TILE = 36
"""Larger images are shown at every second, third, … pixel, so that a tile of the contact sheet stays below this."""
VALUES_LISTED = 12
CLASSES_NAMED = 80
"""So many names fit below the class histogram; of more classes every second, third, … is named."""
PLAIN: dict[str, Any] = {"parse_math": False}
"""A name from the data is shown as it is, also when it has dollar signs."""
DEVICE_COLOUR, FACTORY_COLOUR, MISSING = "#4477aa", "#cc6677", (214, 224, 236)


@dataclass(frozen=True)
class Table:
    """A titled table, for the terminal or a CSV file."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]

    def csv(self) -> str:
        """Return the table as comma-separated text."""
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(self.columns)
        writer.writerows(self.rows)
        return text.getvalue()


@dataclass(frozen=True)
class Inspection:
    """What :func:`inspect` found out and wrote."""

    statistics: Heterogeneity
    tables: tuple[Table, ...]
    """Overview, statistics, classes, and factories where there are any."""
    devices: Table
    """One row a device: too long for a terminal, written as ``devices.csv``."""
    files: dict[str, Path]
    """The files written, by name without suffix; empty without a folder."""


def inspect(source: DataSet | Federation, out_dir: str | Path | None = None, devices_shown: int = 16) -> Inspection:
    """Return the tables of a data set or federation and, with a folder, write pictures and CSV files into it."""
    statistics = heterogeneity(source)
    tables = (_overview(source, statistics), _statistics(statistics), _classes(statistics), *_factories(statistics))
    devices = _devices(source, statistics)
    if out_dir is None:
        return Inspection(statistics, tables, devices, {})
    folder = Path(out_dir)
    make_folder(folder)
    pictures = {"class_histogram": class_histogram(statistics)}
    if source.inputs.size:  # a set of labels alone has nothing to show
        pictures["contact_sheet"] = contact_sheet(source, devices_shown)
    if len(statistics.device_names) > 1:  # one owner alone has no spread to show
        pictures["samples_per_device"] = samples_per_device(statistics)
        pictures["divergence"] = divergence_histogram(statistics)
    files = {}
    for name, figure in pictures.items():
        png = io.BytesIO()
        figure.savefig(png, format="png", dpi=150)
        files[name] = write_bytes(folder / f"{name}.png", png.getvalue())
    for table in (*tables, devices):
        files[table.title] = write_bytes(folder / f"{table.title}.csv", table.csv().encode())
    return Inspection(statistics, tables, devices, files)


def contact_sheet(source: DataSet | Federation, devices_shown: int = 16, classes_shown: int = 64) -> "Figure":
    """Draw one sample of each class (columns) of evenly chosen devices (rows); tinted: the device has none."""
    names, samples = _samples(source)
    rows = _spaced(len(names), devices_shown)
    columns = _spaced(len(source.classes), classes_shown)
    mosaic, height, width = _mosaic(source, samples, rows, columns)
    cell = min(0.4, max(0.2, 8 / len(columns)))  # inches
    longest = max(len(names[row]) for row in rows), max(len(source.classes[column]) for column in columns)
    across, down = 0.4 + 0.075 * longest[0], 0.5 + (0.07 * longest[1] if longest[1] > 2 else 0)
    figure, axes = _figure(max(4.5, cell * len(columns) + across), cell * len(rows) * height / width + down)
    axes.imshow(mosaic, interpolation="nearest")
    shown = [source.classes[column] for column in columns], [names[row] for row in rows]
    axes.set_xticks((np.arange(len(columns)) + 0.5) * width - 0.5, shown[0], **PLAIN)
    axes.set_yticks((np.arange(len(rows)) + 0.5) * height - 0.5, shown[1], **PLAIN)
    axes.tick_params(length=0, labelsize=7, labeltop=True, labelbottom=False)
    if longest[1] > 2:
        axes.tick_params(axis="x", rotation=90)
    for spine in axes.spines.values():
        spine.set_visible(False)
    axes.set_title(f"{source.name}: one sample per device and class (tinted: none)", fontsize=9, **PLAIN)
    return figure


def class_histogram(statistics: Heterogeneity) -> "Figure":
    """Draw how many samples each class has over all devices."""
    figure, axes = _figure(min(14.0, max(5.0, 0.17 * len(statistics.classes))), 3.2)
    axes.bar(np.arange(len(statistics.classes)), statistics.class_counts, color=DEVICE_COLOUR)
    named = np.arange(0, len(statistics.classes), -(-len(statistics.classes) // CLASSES_NAMED))
    axes.set_xticks(named, [statistics.classes[number] for number in named], fontsize=8, **PLAIN)
    if max(map(len, statistics.classes), default=1) > 2:
        axes.tick_params(axis="x", rotation=60)
    axes.set_xlim(-0.7, len(statistics.classes) - 0.3)
    _finish(
        axes, f"{statistics.name}: {statistics.samples:,} {statistics.counted} by class", "class", statistics.counted
    )
    return figure


def samples_per_device(statistics: Heterogeneity) -> "Figure":
    """Draw the histogram of device sizes."""
    figure, axes = _figure(5.5, 3.2)
    median = float(np.median(statistics.device_samples))
    axes.hist(statistics.device_samples, bins=min(40, _bins(statistics.device_samples)), color=DEVICE_COLOUR)
    axes.axvline(median, color="black", linewidth=1, linestyle="--", label=f"median {median:g}")
    axes.legend(frameon=False, fontsize=8)
    title = f"{statistics.name}: {statistics.counted} of {len(statistics.device_names)} devices"
    _finish(axes, title, f"{statistics.counted} per device", "devices")
    return figure


def divergence_histogram(statistics: Heterogeneity) -> "Figure":
    """Draw how far devices (bars) and factories (lines) are from P_real."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8.5, 3.4), layout="constrained")
    left, right = figure.subplots(1, 2)
    for axes, title, devices, factories in (
        (left, "total variation", statistics.device_tv, statistics.factory_tv),
        (right, "L2 distance", statistics.device_l2, statistics.factory_l2),
    ):
        values = devices[~np.isnan(devices)]
        axes.hist(values, bins=min(40, _bins(values)), color=DEVICE_COLOUR, label=f"devices, mean {values.mean():.3f}")
        if factories is not None:
            for number, value in enumerate(factories):
                label = f"factories, mean {factories.mean():.3f}" if number == 0 else None
                axes.axvline(value, color=FACTORY_COLOUR, linewidth=1.2, label=label)
        axes.set_xlim(left=0)
        # Above the bars: wherever it lay inside, some data would hide behind it.
        axes.legend(frameon=False, fontsize=8, ncols=2, loc="lower center", bbox_to_anchor=(0.5, 1.0))
        _finish(axes, "", f"{title} from $P_{{real}}$", "devices")
    figure.suptitle(f"{statistics.name}: divergence of class distributions", fontsize=10, **PLAIN)
    return figure


def _samples(source: DataSet | Federation) -> tuple[tuple[str, ...], IndexLists]:
    if isinstance(source, Federation):
        return source.device_names, source.train
    owners = owners_of(source)
    return owners.names, owners.samples


def _spaced(number: int, shown: int) -> NDArray[np.int64]:
    return np.unique(np.linspace(0, number - 1, min(number, shown)).round().astype(np.int64))


def _mosaic(
    source: DataSet | Federation, samples: IndexLists, rows: NDArray[np.int64], columns: NDArray[np.int64]
) -> tuple[NDArray[np.uint8], int, int]:
    """Return the picture (height, width, 3) and the height and width of one cell."""
    step = -(-max(source.inputs.shape[1:3]) // TILE)
    height, width = (len(range(0, side, step)) + 2 for side in source.inputs.shape[1:3])
    mosaic = np.full((len(rows) * height, len(columns) * width, 3), 255, np.uint8)
    for row, device in enumerate(rows):
        mine = samples[int(device)]
        labels = source.labels[mine]
        for column, number in enumerate(columns):
            cell = mosaic[row * height : (row + 1) * height - 2, column * width : (column + 1) * width - 2]
            found = np.flatnonzero(labels == number)
            if len(found):
                tile = source.inputs[mine[found[0]]][::step, ::step]
                grey = tile.ndim == 2 or tile.shape[2] < 3  # of two channels, the first
                cell[:] = np.atleast_3d(tile)[:, :, :1] if grey else tile[:, :, :3]
            else:
                cell[:] = MISSING
    return mosaic, height, width


def _overview(source: DataSet | Federation, statistics: Heterogeneity) -> Table:
    rows: list[tuple[Cell, ...]] = [("name", source.name)]
    if isinstance(source, Federation):
        rows += [("factories", source.factories), ("devices", len(source))]
        rows += [("train samples", len(source.train.flat)), ("test samples", len(source.test.flat))]
    else:
        rows += [("owners", len(source.owner_names)), ("samples", len(source))]
        if source.test is not None:
            rows += [("of them marked as test", int(source.test.sum()))]
    rows += [
        ("classes", len(source.classes)),
        ("classes without a sample", int((statistics.class_counts == 0).sum())),
        ("image shape", " × ".join(map(str, source.inputs.shape[1:]))),
    ]
    for name, values in source.attributes.items():
        known, numbers = np.unique(values, return_counts=True)
        pairs = ", ".join(f"{value}: {number}" for value, number in zip(known, numbers, strict=True))
        who = "devices" if isinstance(source, Federation) else "owners"
        rows += [(f"{who} by {name}", pairs if len(known) <= VALUES_LISTED else f"{len(known)} values")]
    return Table("overview", ("what", "value"), tuple(rows))


def _statistics(statistics: Heterogeneity) -> Table:
    columns = ("statistic", "min", "25 %", "median", "mean", "75 %", "max")
    rows: list[tuple[Cell, ...]] = []
    for title, quantiles in statistics.summary().items():
        rows.append((title, *(round(value, 4) for value in quantiles.as_dict().values())))
    return Table("statistics", columns, tuple(rows))


def _classes(statistics: Heterogeneity) -> Table:
    triples = zip(statistics.classes, statistics.class_counts, statistics.p_real, strict=True)
    rows = tuple((name, int(count), round(float(share), 6)) for name, count, share in triples)
    return Table("classes", ("class", "samples", "share"), rows)


def _factories(statistics: Heterogeneity) -> tuple[Table, ...]:
    if statistics.factory_devices is None or statistics.factory_tv is None or statistics.factory_l2 is None:
        return ()
    numbers = zip(
        statistics.factory_names,
        statistics.factory_devices,
        statistics.factory_tv,
        statistics.factory_l2,
        strict=True,
    )
    rows = tuple((name, int(devices), round(float(tv), 4), round(float(l2), 4)) for name, devices, tv, l2 in numbers)
    return (Table("factories", ("factory", "devices", "TV", "L2"), rows),)


def _devices(source: DataSet | Federation, statistics: Heterogeneity) -> Table:
    factories: list[str] = [""] * len(statistics.device_names)
    if isinstance(source, Federation):
        factories = [source.factory_names[number] for number in source.factory_of]
    numbers = zip(
        statistics.device_names,
        factories,
        statistics.device_samples,
        statistics.device_classes,
        statistics.device_tv,
        statistics.device_l2,
        strict=True,
    )
    rows = tuple(
        (name, factory, int(samples), int(classes), round(float(tv), 6), round(float(l2), 6))
        for name, factory, samples, classes, tv, l2 in numbers
    )
    return Table("devices", ("device", "factory", statistics.counted, "classes", "TV", "L2"), rows)


def _figure(width: float, height: float) -> "tuple[Figure, Axes]":
    # A Figure by itself needs no window system and leaves matplotlib's global state alone.
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    return figure, figure.subplots()


def _finish(axes: "Axes", title: str, horizontal: str, vertical: str) -> None:
    axes.set_title(title, fontsize=10, **PLAIN)
    axes.set_xlabel(horizontal)
    axes.set_ylabel(vertical)
    axes.spines[["top", "right"]].set_visible(False)


def _bins(values: NDArray[Any]) -> int:
    return max(1, int(2 * np.sqrt(len(values))))
