"""Selection problems from files: ``.npz`` (counts, target, base, bonus) or ``.csv`` (a device a row, a class a column).

In a CSV file the first line may name the classes and the first column the devices. Where a file has no target, the
classes of all its rows (and of the base) taken together are the target.
"""

import csv
import zipfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from fedgs.errors import InputFileError, ProblemError
from fedgs.selection.problem import Floats, SelectionProblem


@dataclass(frozen=True)
class ProblemFile:
    """A problem and what its file calls the devices."""

    problem: SelectionProblem
    names: tuple[str, ...]
    target_from: str
    """Where the target came from, in words."""


def read_problem(path: str | Path, pick: int) -> ProblemFile:
    """Read a problem; ``pick`` is how many devices to take."""
    path = Path(path)
    if not path.is_file():
        raise InputFileError(f"{path}: no such file; give a .npz with counts and target, or a .csv of counts")
    if path.suffix.lower() == ".csv":
        arrays: dict[str, Floats] = {}
        arrays["counts"], names = _read_csv(path)
    elif path.suffix.lower() == ".npz":
        arrays, names = _read_npz(path), ()
    else:
        raise InputFileError(f"{path}: unknown kind of file {path.suffix!r}; use .npz or .csv")
    counts = arrays["counts"]
    target, target_from = arrays.get("target"), "the file"
    try:
        if target is None:
            target = _pooled(counts, arrays.get("base"))
            target_from = "all rows of the file together"
        problem = SelectionProblem(counts, target, pick, arrays.get("base"), arrays.get("bonus"))
    except ProblemError as error:
        raise InputFileError(f"{path}: {error}") from None
    return ProblemFile(problem, names or tuple(str(i) for i in range(len(problem.counts))), target_from)


def _pooled(counts: Floats, base: Floats | None) -> Floats:
    if counts.ndim != 2:
        raise ProblemError(f"counts must have 2 dimension(s), not shape {counts.shape}")
    total: Floats = counts.sum(axis=0) + (0.0 if base is None else base)
    if not np.isfinite(total).all() or total.min() < 0:
        return np.full(len(total), 1.0 / len(total))  # the problem itself will say which count is wrong
    if total.sum() == 0:
        raise ProblemError("all counts are zero, so there is no distribution to match; give a target")
    pooled: Floats = total / total.sum()
    return pooled


def _read_npz(path: Path) -> dict[str, Floats]:
    try:
        with np.load(path, allow_pickle=False) as archive:
            arrays = {name: archive[name] for name in ("counts", "target", "base", "bonus") if name in archive}
            known = ", ".join(archive.files)
    except (OSError, ValueError, EOFError, zipfile.BadZipFile) as error:
        raise InputFileError(f"{path}: not a readable .npz file ({error})") from None
    if "counts" not in arrays:
        raise InputFileError(f"{path}: holds no array called counts; it has: {known or 'nothing'}")
    for name, array in arrays.items():
        if array.dtype.kind not in "biuf":
            raise InputFileError(f"{path}: {name} holds {array.dtype}, not numbers")
    return {name: np.asarray(array, dtype=np.float64) for name, array in arrays.items()}


def _read_csv(path: Path) -> tuple[Floats, tuple[str, ...]]:
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            lines = [(number, row) for number, row in enumerate(csv.reader(file), start=1) if any(map(str.strip, row))]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise InputFileError(f"{path}: cannot be read as CSV ({error})") from None
    if lines and not any(_is_number(cell) for cell in lines[0][1][1:] or lines[0][1]):
        lines = lines[1:]  # the first line names the classes
    if not lines:
        raise InputFileError(f"{path}: holds no row of counts")
    named = not _is_number(lines[0][1][0])
    width = len(lines[0][1])
    names: list[str] = []
    values = np.empty((len(lines), width - named))
    for position, (number, row) in enumerate(lines):
        if len(row) != width:
            raise InputFileError(f"{path}: line {number} has {len(row)} cells, the lines before it have {width}")
        if named:
            names.append(row[0].strip())
        for column, cell in enumerate(row[named:]):
            if not _is_number(cell):
                raise InputFileError(f"{path}: line {number}, column {column + named + 1}: {cell!r} is not a number")
            values[position, column] = float(cell)
    return values, tuple(names)


def _is_number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return True
