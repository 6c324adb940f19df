"""Hugging Face's ``flwrlabs/femnist``: parquet files with columns image, writer_id, hsf_id and character.

``image`` is a struct of the PNG's bytes and its path, ``character`` the label 0..61 as everywhere. The set is not
split and has no doubled images (814,277 rows). The small columns are read and checked first, before any picture is.
"""

from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedgs.data.femnist.form import SIDE, Piece, by_writer, check_labels, read_png
from fedgs.errors import InputFileError, MissingDependencyError

LOOKED_FOR = "parquet files (*.parquet, data/*.parquet)"
_COLUMNS = ("image", "writer_id", "hsf_id", "character")
_FEW = 5000  # so few rows are decoded here before other processes would have started


class _Rows(NamedTuple):
    """A row group of a file, without its pictures."""

    file: Path
    row_group: int
    first: int
    """Its first row within the file; error messages count rows from the file's beginning."""
    writers: list[str]
    labels: NDArray[np.uint8]
    partitions: NDArray[np.int64]


def find(path: Path) -> list[Path]:
    """Return the parquet files of this source: the file itself, those of the folder, or those of its ``data``."""
    if path.is_file():
        return [path] if path.suffix == ".parquet" else []
    return sorted(path.glob("*.parquet")) or sorted((path / "data").glob("*.parquet"))


def read(path: Path, files: list[Path], leaf_compat: bool, spread: Callable[..., Iterator[Any]]) -> Iterator[Piece]:
    """Yield the samples of all files, in the order of their names."""
    groups = [group for file in files for group in _row_groups(file)]
    sizes = [len(group.writers) for group in groups]
    if not sum(sizes):
        raise InputFileError(f"{files[0]}: there is not one row")
    decoded = spread(_decode, groups, sizes=sizes, few=_FEW, title="images of parquet files")
    for group, images in zip(groups, decoded, strict=True):
        yield from by_writer(group.file, group.writers, images, group.labels, group.partitions)


def _read(file: Path, columns: list[str], row_group: int | None = None) -> tuple[Any, list[int]]:
    """Return these columns, of one row group or of all, and the sizes of the file's row groups."""
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError:
        raise MissingDependencyError("parquet files need pyarrow: pip install 'fedgs[femnist]'") from None
    try:
        with pyarrow.parquet.ParquetFile(file) as opened:
            missing = [column for column in _COLUMNS if column not in opened.schema_arrow.names]
            if missing:
                raise InputFileError(f"{file}: no column {missing[0]!r}; flwrlabs/femnist has {', '.join(_COLUMNS)}")
            sizes = [opened.metadata.row_group(group).num_rows for group in range(opened.metadata.num_row_groups)]
            return opened.read(columns) if row_group is None else opened.read_row_group(row_group, columns), sizes
    except (pyarrow.ArrowException, OSError) as error:
        raise InputFileError(f"{file}: not a readable parquet file, or a truncated one ({error})") from None


def _row_groups(file: Path) -> Iterator[_Rows]:
    table, sizes = _read(file, ["writer_id", "hsf_id", "character"])
    writers = table.column("writer_id").to_pylist()
    if None in writers:
        raise InputFileError(f"{file}: row {writers.index(None)} has no writer_id")
    partitions, characters = (_whole_numbers(file, table, column) for column in ("hsf_id", "character"))
    labels = check_labels(characters, str(file))
    ends = np.cumsum([0, *sizes]).tolist()
    for group, (first, last) in enumerate(pairwise(ends)):
        yield _Rows(file, group, first, writers[first:last], labels[first:last], partitions[first:last])


def _whole_numbers(file: Path, table: Any, column: str) -> NDArray[np.int64]:
    values = table.column(column).to_pylist()
    for row, value in enumerate(values):
        if not isinstance(value, int) or not -(2**31) <= value < 2**31:
            raise InputFileError(f"{file}: {column} of row {row} is {value!r}; a small whole number expected")
    return np.array(values, np.int64)


def _decode(rows: _Rows) -> NDArray[np.uint8]:
    images = np.empty((len(rows.writers), SIDE, SIDE), np.uint8)
    for row, cell in enumerate(_read(rows.file, ["image"], rows.row_group)[0].column("image").to_pylist()):
        where = f"{rows.file}: image of row {rows.first + row}"
        content = cell.get("bytes") if isinstance(cell, dict) else None
        if not isinstance(content, bytes):
            raise InputFileError(f"{where} has no bytes; a struct of bytes and path expected")
        grey = np.asarray(read_png(content, where))
        if grey.shape != (SIDE, SIDE):
            raise InputFileError(f"{where} has {grey.shape[1]}x{grey.shape[0]} pixels; {SIDE}x{SIDE} expected")
        images[row] = grey
    return images
