import csv
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from fedgs.data import DataSet, Federation, build_federation, from_arrays, heterogeneity
from fedgs.errors import OutputError
from fedgs.report.data_figures import MISSING, _mosaic, _samples, class_histogram, inspect


def coloured(channels: int | None = None, side: int = 6) -> DataSet:
    shape = (40, side, side) if channels is None else (40, side, side, channels)
    images = np.broadcast_to((np.arange(40) * 5).astype(np.uint8).reshape(40, *[1] * (len(shape) - 1)), shape).copy()
    labels = np.tile([0, 1, 1, 2, 0, 0, 1, 2, 2, 1], 4)
    return from_arrays(images, labels, np.repeat(list("abcd"), 10), classes=["x", "y", "z", "unseen"], name="toy")


def test_inspect_a_federation_writes_pictures_and_tables(tmp_path: Path) -> None:
    result = inspect(build_federation(coloured(), 2), tmp_path / "new" / "folder")
    names = {"contact_sheet", "class_histogram", "samples_per_device", "divergence"}
    tables = {"overview", "statistics", "classes", "factories", "devices"}
    assert set(result.files) == names | tables
    assert {path.name for path in (tmp_path / "new" / "folder").iterdir()} == {
        path.name for path in result.files.values()
    }
    for name in names:
        with Image.open(result.files[name]) as picture:
            assert np.asarray(picture.convert("L")).std() > 5
    with result.files["devices"].open() as file:
        rows = list(csv.DictReader(file))
    assert [row["device"] for row in rows] == list(result.statistics.device_names)
    assert [row["train samples"] for row in rows] == ["9"] * 4
    overview = dict(result.tables[0].rows)  # type: ignore[arg-type]
    assert overview["factories"] == 2
    assert overview["train samples"] == 36
    assert overview["classes without a sample"] == 1


def test_inspect_a_data_set_without_a_folder_writes_nothing(tmp_path: Path) -> None:
    result = inspect(coloured())
    assert result.files == {}
    assert [table.title for table in result.tables] == ["overview", "statistics", "classes"]
    assert result.tables[2].rows[0] == ("x", 12, 0.3)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("channels", "side"), [(None, 6), (3, 6), (2, 6), (4, 6), (1, 90)])
def test_contact_sheet_shows_the_first_sample_of_each_class(channels: int | None, side: int) -> None:
    dataset = coloured(channels, side)
    _, samples = _samples(dataset)
    mosaic, height, width = _mosaic(dataset, samples, np.array([0, 3]), np.array([0, 2, 3]))
    assert height == width == (8 if side == 6 else 32)
    assert mosaic.shape == (2 * height, 3 * width, 3)
    assert mosaic[0, 0].tolist() == [0, 0, 0]
    assert mosaic[0, width].tolist() == [15, 15, 15]
    assert mosaic[height, width].tolist() == [165, 165, 165]
    assert mosaic[0, 2 * width].tolist() == list(MISSING)


def test_a_folder_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(OutputError, match="cannot make this folder"):
        inspect(coloured(), tmp_path / "file" / "below")
    (tmp_path / "out" / "overview.csv").mkdir(parents=True)
    with pytest.raises(OutputError, match=r"overview\.csv: cannot be written"):
        inspect(coloured(), tmp_path / "out")
    assert not [path for path in (tmp_path / "out").iterdir() if path.name.startswith(".")]


def test_labels_without_images_have_no_contact_sheet(tmp_path: Path) -> None:
    result = inspect(coloured(side=0), tmp_path)
    assert "contact_sheet" not in result.files
    assert "class_histogram" in result.files


def test_names_are_not_mathematics(tmp_path: Path) -> None:
    names = [r"$\frac$", "$x", "y", "z"]
    dataset = from_arrays(
        np.zeros((4, 3, 3), np.uint8), [0, 1, 2, 3], [r"$\frac$", "a", "b", "c"], classes=names, name=r"$\frac$"
    )
    assert len(inspect(dataset, tmp_path).files) == 8


def test_many_classes_fit_on_one_picture() -> None:
    dataset = from_arrays(np.zeros((256, 1, 1), np.uint8), np.arange(256))
    figure = class_histogram(heterogeneity(dataset))
    assert figure.get_size_inches()[0] <= 14
    assert [text.get_text() for text in figure.axes[0].get_xticklabels()][:3] == ["0", "4", "8"]


def test_overview_counts_the_owners_by_attribute() -> None:
    dataset = replace(coloured(), attributes={"line": np.int32([3, 1, 3, 3])})
    assert ("clients by line", "1: 1, 3: 3") in inspect(dataset).tables[0].rows
    assert ("devices by line", "1: 1, 3: 3") in inspect(build_federation(dataset, 2)).tables[0].rows


def test_signals_and_targets_that_are_no_classes(tmp_path: Path) -> None:
    waves = np.random.default_rng(0).normal(size=(40, 2, 64)).astype(np.float32)
    machines = np.repeat(np.arange(4), 10)
    wear = from_arrays(waves, np.linspace(0.5, 20.0, 40), clients=machines, name="wear")
    found = inspect(wear, tmp_path / "wear")
    assert {"signals", "class_histogram"} <= set(found.files)
    assert "contact_sheet" not in found.files
    counts = [row[1] for table in found.tables if table.title == "classes" for row in table.rows]
    assert counts == [4] * 10  # tenths of the samples
    assert ("input", "2 × 64, float32") in found.tables[0].rows
    modes = from_arrays(
        {"a": waves, "b": waves[:, 0, :5]}, {"mode": machines % 2, "odd": machines > 2}, clients=machines
    )
    found = inspect(modes, tmp_path / "modes")
    assert [row[:2] for table in found.tables if table.title == "classes" for row in table.rows] == [
        ("mode 0", 20),
        ("mode 1", 20),
    ]
    assert ("input b", "5, float32") in found.tables[0].rows
    assert not {"signals", "contact_sheet"} & set(found.files)
    federation = Federation.from_arrays(waves, np.linspace(0, 1, 40), devices=machines, factories=2, test=0.1)
    assert len(inspect(federation).statistics.classes) == 10
