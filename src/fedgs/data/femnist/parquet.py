"""Hugging Face's ``flwrlabs/femnist``: parquet files with columns image, writer_id, hsf_id and character.

``image`` is a struct of the PNG's bytes and its path, ``character`` the label 0..61 as everywhere. The set is not
split and has no doubled images (814,277 rows). The small columns are read first; they tell where each sample
belongs, so that the pictures are decoded straight to their final place.
"""

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedgs.data.dataset import DataSet
from fedgs.data.femnist.form import CLASSES, SIDE, Conversion, check_labels, partition_attribute, read_png
from fedgs.data.parallel import ordered_map, progress_bar
from fedgs.errors import InputFileError, MissingDependencyError

_COLUMNS = ("image", "writer_id", "hsf_id", "character")
_FEW = 5000  # so few rows are decoded here before other processes would have started


class _Piece(NamedTuple):
    file: Path
    row_group: int
    first_row: int
    """Of this row group within the file; error messages count rows from the file's beginning."""
    rows: int


def find(path: Path) -> list[Path]:
    """Return the parquet files of this source: the file itself, those of the folder, or those of its ``data``."""
    if path.is_file():
        return [path] if path.suffix == ".parquet" else []
    return sorted(path.glob("*.parquet")) or sorted((path / "data").glob("*.parquet"))


def load(path: Path, leaf_compat: bool = False, workers: int | None = None, progress: bool = False) -> Conversion:
    """Read all parquet files of ``path``, in the order of their names."""
    files = find(path)
    if not files:
        raise InputFileError(f"{path}: no parquet files here; looked for *.parquet and data/*.parquet")
    pieces: list[_Piece] = []
    writers: list[str] = []
    labels: list[NDArray[np.uint8]] = []
    partitions: dict[str, int] = {}
    for file in files:
        pieces += _row_groups(file)
        table = _read(file, ["writer_id", "hsf_id", "character"])
        names = table.column("writer_id").to_pylist()
        if None in names:
            raise InputFileError(f"{file}: row {names.index(None)} has no writer_id")
        characters, forms = (_whole_numbers(file, table, column) for column in ("character", "hsf_id"))
        labels.append(check_labels(characters, str(file)))
        for name, form in zip(names, forms.tolist(), strict=True):
            partitions.setdefault(name, form)
        writers += names
    if not writers:
        raise InputFileError(f"{files[0]}: there is not one row")
    client_names, clients = np.unique(np.array(writers), return_inverse=True)
    order = np.argsort(clients, kind="stable")
    place = np.empty(len(order), np.int64)
    place[order] = np.arange(len(order))
    images = np.empty((len(order), SIDE, SIDE), np.uint8)
    if workers is None and len(order) < _FEW:
        workers = 1
    start = 0
    with progress_bar("images of parquet files", len(order), progress) as update:
        for decoded in ordered_map(_decode, pieces, workers):
            images[place[start : start + len(decoded)]] = decoded
            start += len(decoded)
            update(advance=len(decoded))
    names_sorted = tuple(map(str, client_names))
    dataset = DataSet(
        "femnist",
        images,
        np.concatenate(labels)[order],
        clients[order].astype(np.int32),
        names_sorted,
        CLASSES,
        partition_attribute(names_sorted, partitions),
    )
    return Conversion(dataset, "parquet")


def _open(file: Path) -> Any:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError:
        raise MissingDependencyError("parquet files need pyarrow: pip install 'fedgs[femnist]'") from None
    try:
        opened = pyarrow.parquet.ParquetFile(file)
    except (pyarrow.ArrowException, OSError) as error:
        raise InputFileError(f"{file}: not a readable parquet file ({error})") from None
    missing = [column for column in _COLUMNS if column not in opened.schema_arrow.names]
    if missing:
        raise InputFileError(f"{file}: no column {missing[0]!r}; flwrlabs/femnist has {', '.join(_COLUMNS)}")
    return opened


def _read(file: Path, columns: list[str], row_group: int | None = None) -> Any:
    import pyarrow

    with _open(file) as opened:
        try:
            return opened.read(columns) if row_group is None else opened.read_row_group(row_group, columns)
        except (pyarrow.ArrowException, OSError) as error:
            raise InputFileError(f"{file}: broken or truncated parquet file ({error})") from None


def _row_groups(file: Path) -> list[_Piece]:
    with _open(file) as opened:
        sizes = [opened.metadata.row_group(group).num_rows for group in range(opened.metadata.num_row_groups)]
    starts = np.cumsum([0, *sizes])
    return [_Piece(file, group, int(starts[group]), rows) for group, rows in enumerate(sizes)]


def _whole_numbers(file: Path, table: Any, column: str) -> NDArray[np.int64]:
    values = table.column(column).to_pylist()
    for row, value in enumerate(values):
        if not isinstance(value, int) or not -(2**31) <= value < 2**31:
            raise InputFileError(f"{file}: {column} of row {row} is {value!r}; a small whole number expected")
    return np.array(values, np.int64)


def _decode(piece: _Piece) -> NDArray[np.uint8]:
    images = np.empty((piece.rows, SIDE, SIDE), np.uint8)
    for row, cell in enumerate(_read(piece.file, ["image"], piece.row_group).column("image").to_pylist()):
        where = f"{piece.file}: image of row {piece.first_row + row}"
        content = cell.get("bytes") if isinstance(cell, dict) else None
        if not isinstance(content, bytes):
            raise InputFileError(f"{where} has no bytes; a struct of bytes and path expected")
        grey = np.asarray(read_png(content, where))
        if grey.shape != (SIDE, SIDE):
            raise InputFileError(f"{where} has {grey.shape[1]}x{grey.shape[0]} pixels; {SIDE}x{SIDE} expected")
        images[row] = grey
    return images
