import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from femnist_files import WRITERS, labels, leaf_file, parquet_file, pictures, png

from fedgs.data.femnist import convert_femnist, load_femnist, recognise
from fedgs.errors import DataError, InputFileError

pytest.importorskip("pyarrow")
Row = tuple[str, int, int, bytes]


def rows(writer: str, partition: int, count: int) -> list[Row]:
    return [
        (writer, partition, int(label), png(image))
        for image, label in zip(pictures(count, writer), labels(count, writer), strict=True)
    ]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Writers out of order, one of them in both files, as no promise of the source forbids."""
    first, second, third = (rows(writer, partition, 5) for writer, partition in zip(WRITERS, (0, 0, 4), strict=True))
    parquet_file(tmp_path / "data" / "train-00000-of-00002.parquet", third + first[:2])
    parquet_file(tmp_path / "data" / "train-00001-of-00002.parquet", first[2:] + second)
    return tmp_path


def test_rows_are_grouped_by_writer(folder: Path) -> None:
    assert recognise(folder) == "parquet"
    dataset = convert_femnist(folder).dataset
    assert dataset.client_names == WRITERS
    assert dataset.clients.tolist() == [0] * 5 + [1] * 5 + [2] * 5
    assert dataset.attributes["hsf"].tolist() == [0, 0, 4]
    assert dataset.test is None
    for number, writer in enumerate(WRITERS):
        assert np.array_equal(dataset.inputs[dataset.clients == number], pictures(5, writer))
        assert np.array_equal(dataset.labels[dataset.clients == number], labels(5, writer))


def test_workers_change_nothing(folder: Path) -> None:
    one, two = (convert_femnist(folder, workers=workers).dataset for workers in (1, 2))
    assert np.array_equal(one.inputs, two.inputs)
    users = {name: (pictures(4, name), labels(4, name)) for name in WRITERS}
    for name in WRITERS:
        leaf_file(folder / "leaf" / f"{name}.json", {name: users[name]})
    one, two = (convert_femnist(folder / "leaf", workers=workers).dataset for workers in (1, 2))
    assert np.array_equal(one.inputs, two.inputs)
    assert one.client_names == two.client_names == WRITERS


def test_one_file(folder: Path) -> None:
    assert len(convert_femnist(folder / "data" / "train-00001-of-00002.parquet").dataset) == 8


def test_there_is_nothing_to_keep_for_leaf_compat(folder: Path) -> None:
    with pytest.raises(DataError, match="parquet files never have them"):
        convert_femnist(folder, leaf_compat=True)


@pytest.mark.parametrize(
    ("row", "message"),
    [
        (("f0001_41", 0, 62, png(pictures(1)[0])), "label 62 of sample 5"),
        (("f0001_41", 0, 3, b"not a png"), "image of row 5: not a readable PNG"),
        (("f0001_41", 0, 3, png(pictures(1)[0])[:90]), "image of row 5: not a readable PNG"),
        (("f0001_41", 0, 3, png(np.full((32, 28), 255, np.uint8))), "image of row 5 has 28x32 pixels"),
        (("f0001_41", 0, 3, None), "image of row 5 has no bytes"),
        ((None, 0, 3, png(pictures(1)[0])), "row 5 has no writer_id"),
        (("f0001_41", None, 3, png(pictures(1)[0])), "hsf_id of row 5 is None"),
        (("f0001_41", 0, None, png(pictures(1)[0])), "character of row 5 is None"),
        (("f0001_41", 2**40, 1, png(pictures(1)[0])), "hsf_id of row 5 is 1099511627776; a small whole number"),
    ],
)
def test_bad_rows(tmp_path: Path, cache: Path, row: Row, message: str) -> None:
    file = parquet_file(tmp_path / "odd.parquet", [*rows("f0001_41", 0, 5), row])
    with pytest.raises(InputFileError, match=f"odd.parquet: {message}"):
        load_femnist(file)
    assert not cache.exists()


def test_missing_column(tmp_path: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    pq.write_table(pa.table({"image": [b""], "writer_id": ["a"], "hsf_id": [0]}), tmp_path / "odd.parquet")
    with pytest.raises(InputFileError, match=r"odd.parquet: no column 'character'"):
        load_femnist(tmp_path)


@pytest.mark.parametrize("damage", [slice(-20, None), slice(4, 400)])
def test_damaged_file(folder: Path, cache: Path, damage: slice) -> None:
    file = folder / "data" / "train-00000-of-00002.parquet"
    content = bytearray(file.read_bytes())
    content[damage] = b"\xff" * len(content[damage])
    file.write_bytes(content)
    with pytest.raises(InputFileError, match=f"{file.name}: "):
        load_femnist(folder)
    assert not cache.exists()


def test_no_rows(tmp_path: Path) -> None:
    with pytest.raises(InputFileError, match="there is not one row"):
        load_femnist(parquet_file(tmp_path / "odd.parquet", []))


@pytest.mark.parametrize(("library", "name"), [("pyarrow", "a.parquet"), ("h5py", "a.h5"), ("ijson", "a.json")])
def test_without_the_library_the_message_tells_how_to_get_it(tmp_path: Path, library: str, name: str) -> None:
    (tmp_path / name).write_bytes(b"")
    program = (
        f"import sys; sys.modules[{library!r}] = None\n"
        "from fedgs.data.femnist import load_femnist\n"
        "from fedgs.errors import MissingDependencyError\n"
        f"try: load_femnist({str(tmp_path / name)!r})\n"
        "except MissingDependencyError as error: print(error)"
    )
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    assert library in found
    assert "pip install 'fedgs[femnist]'" in found
