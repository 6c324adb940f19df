"""What a data set or federation looks like: tables, and pictures as PNG files.

:func:`inspect` is what ``fedgs data inspect`` shows: a contact sheet (a row per device, a column per class), the class
histogram, samples per device, and how far the class distributions of devices and factories are from P_real.
"""

import csv
import io
from collections.abc import Iterator
from dataclasses import astuple, dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from fedgs.data.arrays import leaves
from fedgs.data.dataset import ONE_BIN, DataSet, IndexLists, clients_of
from fedgs.data.federation import Federation
from fedgs.data.statistics import Heterogeneity, heterogeneity
from fedgs.errors import DataError
from fedgs.files import make_folder, write_bytes
from fedgs.report.run_figures import new_figure, save_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Cell = str | int | float
TILE = 36
"""Larger images are shown at every second, third, … pixel, so that a tile of the contact sheet stays below this."""
VALUES_LISTED = 12
SIGNAL_LENGTH = 32
"""Shorter rows are a table's; a line through them would say nothing."""
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
    """Return the tables of a data set or federation and, with a folder, write pictures and CSV files into it.

    Targets that are no classes are counted in bins: a value each where there are few, tenths of the samples otherwise.
    """
    source = _in_bins(source)
    statistics = heterogeneity(source)
    *tables, devices = _tables(source, statistics)
    if out_dir is None:
        return Inspection(statistics, tuple(tables), devices, {})
    folder = Path(out_dir)
    make_folder(folder)
    pictures = {"class_histogram": class_histogram(statistics)}
    if _are_images(source.inputs):
        pictures["contact_sheet"] = contact_sheet(source, devices_shown)
    elif _are_signals(source.inputs):
        pictures["signals"] = signal_sheet(source)
    if len(statistics.device_names) > 1:  # one client alone has no spread to show
        pictures["samples_per_device"] = samples_per_device(statistics)
        pictures["divergence"] = divergence_histogram(statistics)
    files = {name: save_figure(figure, folder / f"{name}.png", 150) for name, figure in pictures.items()}
    for table in (*tables, devices):
        files[table.title] = write_bytes(folder / f"{table.title}.csv", table.csv().encode())
    return Inspection(statistics, tuple(tables), devices, files)


def contact_sheet(source: DataSet | Federation, devices_shown: int = 16, classes_shown: int = 64) -> "Figure":
    """Draw one sample of each class (columns) of evenly chosen devices (rows); tinted: the device has none."""
    names, samples = _samples(source)
    rows = _spaced(len(names), devices_shown)
    columns = _spaced(len(source.classes), classes_shown)
    mosaic, height, width = _mosaic(source, samples, rows, columns)
    cell = min(0.4, max(0.2, 8 / len(columns)))  # inches
    longest = max(len(names[row]) for row in rows), max(len(source.classes[column]) for column in columns)
    across, down = 0.4 + 0.075 * longest[0], 0.5 + (0.07 * longest[1] if longest[1] > 2 else 0)
    size = max(4.5, cell * len(columns) + across), cell * len(rows) * height / width + down
    figure, (axes,) = new_figure(1, size=size)
    axes.imshow(mosaic, interpolation="nearest")
    shown = [source.classes[column] for column in columns], [names[row] for row in rows]
    axes.set_xticks((np.arange(len(columns)) + 0.5) * width - 0.5, shown[0], **PLAIN)
    axes.set_yticks((np.arange(len(rows)) + 0.5) * height - 0.5, shown[1], **PLAIN)
    axes.tick_params(length=0, labelsize=7, labeltop=True, labelbottom=False)
    if longest[1] > 2:
        axes.tick_params(axis="x", rotation=90)
    axes.spines[:].set_visible(False)
    axes.grid(visible=False)
    axes.set_title(f"{source.name}: one sample per device and class (tinted: none)", fontsize=9, **PLAIN)
    return figure


def signal_sheet(source: DataSet | Federation, shown: int = 24) -> "Figure":
    """Draw one sample of evenly chosen classes, its channels one above the other."""
    from matplotlib.figure import Figure

    classes = [number for number in range(len(source.classes)) if (source.labels == number).any()]
    classes = [classes[place] for place in _spaced(len(classes), shown)]
    across = min(3, len(classes))
    down = -(-len(classes) // across)
    figure = Figure(figsize=(4 * across, 0.4 + 1.5 * down), layout="constrained")
    grid = np.atleast_1d(figure.subplots(down, across, squeeze=False, sharex=True)).ravel()
    for axes, number in zip(grid, classes, strict=False):
        sample = np.atleast_2d(source.inputs[int(np.argmax(source.labels == number))]).astype(np.float64)
        step = 1.1 * float(np.ptp(sample, axis=1).max() or 1.0)
        for channel, values in enumerate(sample):
            axes.plot(values - channel * step, linewidth=0.5, color=DEVICE_COLOUR)
        axes.set_title(source.classes[number], fontsize=8, **PLAIN)
        axes.set_yticks([])
        axes.tick_params(labelsize=7)
        axes.spines[["top", "right", "left"]].set_visible(False)
    for axes in grid[len(classes) :]:
        axes.set_visible(False)
    channels = 1 if source.inputs.ndim == 2 else source.inputs.shape[1]
    lines = f", its {channels} channels one above the other" if channels > 1 else ""
    figure.suptitle(f"{source.name}: one sample of a class{lines}", fontsize=10, **PLAIN)
    return figure


def class_histogram(statistics: Heterogeneity) -> "Figure":
    """Draw how many samples each class has over all devices."""
    figure, (axes,) = new_figure(1, size=(min(14.0, max(5.0, 0.17 * len(statistics.classes))), 3.2))
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
    figure, (axes,) = new_figure(1, size=(5.5, 3.2))
    median = float(np.median(statistics.device_samples))
    axes.hist(statistics.device_samples, bins=_bins(statistics.device_samples), color=DEVICE_COLOUR)
    axes.axvline(median, color="black", linewidth=1, linestyle="--", label=f"median {median:g}")
    axes.legend(frameon=False, fontsize=8)
    title = f"{statistics.name}: {statistics.counted} of {len(statistics.device_names)} devices"
    _finish(axes, title, f"{statistics.counted} per device", "devices")
    return figure


def divergence_histogram(statistics: Heterogeneity) -> "Figure":
    """Draw how far devices (bars) and factories (lines) are from P_real."""
    figure, (left, right) = new_figure(2, size=(8.5, 3.4))
    for axes, title, devices, factories in (
        (left, "total variation", statistics.device_tv, statistics.factory_tv),
        (right, "L2 distance", statistics.device_l2, statistics.factory_l2),
    ):
        values = devices[~np.isnan(devices)].round(9)  # equal ones differ in their last bits, too little for a bin
        axes.hist(values, bins=_bins(values), color=DEVICE_COLOUR, label=f"devices, mean {values.mean():.3f}")
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


def _are_images(inputs: Any) -> bool:
    return isinstance(inputs, np.ndarray) and inputs.size > 0 and inputs.dtype == np.uint8 and inputs.ndim in (3, 4)


def _are_signals(inputs: Any) -> bool:
    """Whether samples are long enough to be drawn as lines, (length) or (channels, length)."""
    if not isinstance(inputs, np.ndarray) or inputs.size == 0 or inputs.dtype.kind != "f":
        return False
    return inputs.ndim in (2, 3) and inputs.shape[-1] >= SIGNAL_LENGTH and (inputs.ndim == 2 or inputs.shape[1] <= 16)


def _in_bins(source: DataSet | Federation) -> DataSet | Federation:
    """Return the source with bins for classes where its targets are none."""
    if source.classes not in ((), ONE_BIN):
        return source
    name, first = next(leaves(source.targets))
    values = np.asarray(first).reshape(len(first), -1)
    what = f"{name} " if name else ""
    if not values.size or values.dtype.kind not in "biuf":
        raise DataError(f"{source.name}: its targets are neither classes nor numbers, so there is nothing to count")
    numbers = values[:, 0]
    known = np.unique(numbers)
    if len(known) <= VALUES_LISTED:
        bins, names = np.searchsorted(known, numbers), tuple(f"{what}{value:g}" for value in known.astype(float))
    else:
        edges = np.unique(np.quantile(numbers, np.arange(1, 10) / 10))
        edges = edges[edges > numbers.min()]
        bins = np.searchsorted(edges, numbers, side="right")
        shown = [f"{edge:.3g}" for edge in (numbers.min(), *edges, numbers.max())]
        names = tuple(f"{what}{low} to {high}" for low, high in pairwise(shown))
    if len(set(names)) != len(names):
        names = tuple(f"{name} ({number})" for number, name in enumerate(names))
    if isinstance(source, Federation):
        return replace(source, labels=bins.astype(np.int32), classes=names)
    return replace(source, targets=bins.astype(np.int64), classes=names)


def _samples(source: DataSet | Federation) -> tuple[tuple[str, ...], IndexLists]:
    if isinstance(source, Federation):
        return source.device_names, source.train
    clients = clients_of(source)
    return clients.names, clients.samples


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


def _tables(source: DataSet | Federation, statistics: Heterogeneity) -> list[Table]:
    """Return overview, statistics, classes, factories where there are any, and devices."""
    factories: list[str] = [""] * len(statistics.device_names)
    if isinstance(source, Federation):
        factories = [source.factory_names[number] for number in source.factory_of]
    names = ("statistic", "min", "25 %", "median", "mean", "75 %", "max")
    summary = [(title, *astuple(quantiles)) for title, quantiles in statistics.summary().items()]
    tables = [
        Table("overview", ("what", "value"), tuple(_overview(source, statistics))),
        _table("statistics", dict(zip(names, zip(*summary, strict=True), strict=True)), digits=4),
        _table(
            "classes", {"class": statistics.classes, "samples": statistics.class_counts, "share": statistics.p_real}
        ),
    ]
    if statistics.factory_devices is not None:
        columns: dict[str, Any] = {
            "factory": statistics.factory_names,
            "devices": statistics.factory_devices,
            "TV": statistics.factory_tv,
            "L2": statistics.factory_l2,
        }
        tables.append(_table("factories", columns, digits=4))
    columns = {
        "device": statistics.device_names,
        "factory": factories,
        statistics.counted: statistics.device_samples,
        "classes": statistics.device_classes,
        "TV": statistics.device_tv,
        "L2": statistics.device_l2,
    }
    return [*tables, _table("devices", columns)]


def _overview(source: DataSet | Federation, statistics: Heterogeneity) -> Iterator[tuple[Cell, ...]]:
    yield "name", source.name
    if isinstance(source, Federation):
        who = "devices"
        yield from (("factories", source.factories), ("devices", len(source)))
        yield from (("train samples", len(source.train.flat)), ("test samples", len(source.test.flat)))
    else:
        who = "clients"
        yield from (("clients", len(source.client_names)), ("samples", len(source)))
        if source.test is not None:
            yield "of them marked as test", int(source.test.sum())
    yield "classes", len(source.classes)
    yield "classes without a sample", int((statistics.class_counts == 0).sum())
    for name, array in leaves(source.inputs):
        yield f"input {name}".strip(), f"{' × '.join(map(str, array.shape[1:])) or 'one number'}, {array.dtype}"
    for name, values in source.attributes.items():
        known, numbers = np.unique(values, return_counts=True)
        pairs = ", ".join(f"{value}: {number}" for value, number in zip(known, numbers, strict=True))
        yield f"{who} by {name}", pairs if len(known) <= VALUES_LISTED else f"{len(known)} values"


def _table(title: str, columns: dict[str, Any], digits: int = 6) -> Table:
    """Return a table of columns, names or numbers; fractions are rounded."""
    plain = [np.asarray(values).tolist() for values in columns.values()]
    rows = zip(*plain, strict=True)
    rounded = (tuple(round(cell, digits) if isinstance(cell, float) else cell for cell in row) for row in rows)
    return Table(title, tuple(columns), tuple(rounded))


def _finish(axes: "Axes", title: str, horizontal: str, vertical: str) -> None:
    axes.set_title(title, fontsize=10, **PLAIN)
    axes.set(xlabel=horizontal, ylabel=vertical)
    axes.grid(visible=False)


def _bins(values: NDArray[Any]) -> int:
    return min(40, max(1, int(2 * np.sqrt(len(values)))))
