"""Files: written to a temporary name first, then renamed, so that nobody sees half of one; and .npz files read."""

import math
import os
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedgs.errors import InputFileError, OutputError


def make_folder(path: Path) -> None:
    """Create a folder (and those above it), or say why that cannot be."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise OutputError(f"{path}: cannot make this folder ({error.strerror}); choose another") from None
    if not os.access(path, os.W_OK):
        raise OutputError(f"{path}: no permission to write there; choose another folder")


def write_text(path: Path, text: str) -> Path:
    """Write a text file in one step."""
    return write_bytes(path, text.encode())


def write_bytes(path: Path, content: bytes, durable: bool = False) -> Path:
    """Write a file in one step; ``durable``: its content and then its name are on the disk, whatever the power does."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with temporary.open("wb") as file:
            file.write(content)
            if durable:
                file.flush()
                os.fsync(file.fileno())
        os.replace(temporary, path)
        if durable:
            sync_folder(path.parent)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise OutputError(f"{path}: cannot be written ({error.strerror})") from None
    return path


def write_with_mode(path: Path, content: bytes, mode: int, replace: bool = False) -> None:
    """Write in one step; the file never exists with more permissions than ``mode``, nor over another one."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_TRUNC, mode)
        with os.fdopen(handle, "wb") as file:
            file.write(content)
        if replace:
            os.replace(temporary, path)
        else:
            os.link(temporary, path)  # fails where a file is, which a rename would not
            temporary.unlink()
    except FileExistsError:
        temporary.unlink(missing_ok=True)
        raise OutputError(f"{path}: exists already; it is left as it is") from None
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise OutputError(f"{path}: cannot be written ({error.strerror})") from None


def sync_folder(path: Path) -> None:
    """Wait until the names in a folder are on the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def read_npz(path: Path) -> dict[str, NDArray[Any]]:
    """Return every array of a .npz file, or an error that names the file."""
    try:
        with path.open("rb") as file:  # opened here: np.load would leave a broken file open
            opened = np.load(file, allow_pickle=False)
            if isinstance(opened, np.ndarray):
                raise InputFileError(f"{path}: holds a single array; a .npz with several is expected")
            return {key: opened[key] for key in opened.files}
    except InputFileError:
        raise
    except FileNotFoundError:
        raise InputFileError(f"{path}: no such file") from None
    except Exception as error:  # a damaged archive makes numpy fail in a dozen ways, down to its header's parser
        reason = error.strerror if isinstance(error, OSError) and error.strerror else " ".join(str(error).split())
        if "pickle" in reason:  # numpy would tell how to run whatever is in it
            reason = "it is no archive of arrays, or holds Python objects"
        raise InputFileError(f"{path}: not a readable .npz file ({reason})") from None


def finite(value: Any) -> Any:
    """Return plain data in which every number is finite: JSON has no NaN."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [finite(item) for item in value]
    return value
