"""Selection problems from files: ``.npz`` (counts, target, base, bonus) or ``.csv`` (a device a row, a class a column).

How a CSV file is read: every line is a device, unless the caller says that the first is a header, which names the
classes. The first column names the devices if no cell of it is a number, or if the header calls it device or id, or
nothing at all. Where a file has no target, the classes of all its rows (and of the base) together are the target.
"""

import csv
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from fedgs.errors import InputFileError, ProblemError
from fedgs.files import read_npz
from fedgs.selection.problem import Floats, SelectionProblem

NAME_COLUMNS = ("device", "id", "")
ARRAYS = ("counts", "target", "base", "bonus")


@dataclass(frozen=True)
class ProblemFile:
    """A problem, what its file calls the devices, and how the file was read."""

    problem: SelectionProblem
    names: tuple[str, ...]
    reading: str


def read_problem(path: str | Path, pick: int, header: bool = False) -> ProblemFile:
    """Read a problem; ``pick`` is how many devices to take, ``header`` whether a CSV's first line names the classes."""
    path = Path(path)
    if path.is_dir():
        raise InputFileError(f"{path}: is a folder; give a .npz with counts and target, or a .csv of counts")
    if not path.is_file():
        raise InputFileError(f"{path}: no such file; give a .npz with counts and target, or a .csv of counts")
    names: tuple[str, ...] = ()
    reading = ""
    if path.suffix.lower() == ".csv":
        counts, names, reading = _read_csv(path, header)
        arrays = {"counts": counts}
    elif path.suffix.lower() == ".npz":
        arrays = _read_npz(path)
    else:
        raise InputFileError(f"{path}: unknown kind of file {path.suffix!r}; use .npz or .csv")
    try:
        problem = _problem(arrays, pick)
    except ProblemError as error:
        raise InputFileError(f"{path}: {error}") from None
    reading += "target: " + ("the file's" if "target" in arrays else "all rows together")
    return ProblemFile(problem, names or tuple(str(i) for i in range(len(problem.counts))), reading)


def _problem(arrays: dict[str, Floats], pick: int) -> SelectionProblem:
    counts, base, bonus = arrays["counts"], arrays.get("base"), arrays.get("bonus")
    if "target" in arrays:
        return SelectionProblem(counts, arrays["target"], pick, base, bonus)
    # Checked first with any target, so that what is wrong with the counts is said of the counts.
    classes = counts.shape[1] if counts.ndim == 2 else 0
    checked = SelectionProblem(counts, np.full(classes, 1.0 / max(classes, 1)), pick, base, bonus)
    total = checked.counts.sum(axis=0) + checked.base
    if total.sum() == 0:
        raise ProblemError("all counts are zero, so there is no distribution to match; give a target")
    return SelectionProblem(counts, total / total.sum(), pick, base, bonus)


def _read_npz(path: Path) -> dict[str, Floats]:
    found = read_npz(path)
    if "counts" not in found:
        raise InputFileError(f"{path}: holds no array called counts; it has: {', '.join(found) or 'nothing'}")
    arrays = {name: found[name] for name in ARRAYS if name in found}
    for name, array in arrays.items():
        if array.dtype.kind not in "biuf":
            raise InputFileError(f"{path}: {name} holds {array.dtype}, not numbers")
    return {name: np.asarray(array, dtype=np.float64) for name, array in arrays.items()}


def _read_csv(path: Path, header: bool) -> tuple[Floats, tuple[str, ...], str]:
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            cells = [[cell.strip() for cell in row] for row in csv.reader(file)]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise InputFileError(f"{path}: cannot be read as CSV ({error})") from None
    lines = [(number, row) for number, row in enumerate(cells, start=1) if any(row)]
    if len(lines) <= header:
        raise InputFileError(f"{path}: holds no row of counts")
    first, width = lines[0][1][0], len(lines[0][1])
    for number, row in lines:
        if len(row) != width:
            raise InputFileError(f"{path}: line {number} has {len(row)} cells, the lines before it have {width}")
    lines = lines[header:]
    named = (header and first.lower() in NAME_COLUMNS) or not any(_is_number(row[0]) for _, row in lines)
    if width == named:
        raise InputFileError(f"{path}: holds no column of counts; is the separator a comma?")
    values = np.empty((len(lines), width - named))
    for position, (number, row) in enumerate(lines):
        if named and not row[0]:
            raise InputFileError(f"{path}: line {number}, column 1: is empty; give the name of the device, or a count")
        for column, cell in enumerate(row[named:]):
            if not _is_number(cell):
                hint = "" if header or position else "; if the first line names the classes, give --header"
                if not hint and column + named == 0:
                    hint = "; a first column of names holds no number"
                raise InputFileError(
                    f"{path}: line {number}, column {column + named + 1}: {cell!r} is not a number{hint}"
                )
            values[position, column] = float(cell)
    reading = f"first line: {'classes' if header else 'a device'}; first column: {'names' if named else 'a class'}; "
    return values, tuple(row[0] for _, row in lines) if named else (), reading


def _is_number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return "_" not in cell
